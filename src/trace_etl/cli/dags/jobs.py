"""`trace jobs`, `trace job`."""

from operator import itemgetter
from typing import Annotated, Any

import typer

from trace_etl.cli.client import Answer, quote_segment, session
from trace_etl.cli.listing import ListTable, print_list
from trace_etl.cli.options import (
    DEFAULT_HOME,
    DagArgument,
    HomeOption,
    JsonOption,
    LimitOption,
    OneDagArgument,
    WideOption,
)
from trace_etl.cli.output import (
    Columns,
    format_job,
    format_time,
    print_answer,
    print_fields,
    print_items,
)


def jobs(
    dag: OneDagArgument = None,
    limit: LimitOption = 200,
    home: HomeOption = DEFAULT_HOME,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """List the jobs of all deployed DAGs."""
    print_list(home, "/v1/jobs", _JOBS, as_json=as_json, dag=dag, limit=limit)


def job(
    dag: DagArgument,
    name: Annotated[str, typer.Argument(metavar="JOB", help="Name of the job.")],
    home: HomeOption = DEFAULT_HOME,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show one job and why its tasks wait."""
    with session(home) as client:
        answer = client.get(f"/v1/jobs/{quote_segment(dag)}/{quote_segment(name)}")
    print_answer(answer, as_json, _print_job)


def _print_job(job: Answer) -> None:
    print_fields(
        {
            "job": format_job(job),
            "operator": f"{job['operator']} on {job['runtime']}",
            "reads": ", ".join(_format_input(item, job["dag"]) for item in job["inputs"]) or None,
            "writes": ", ".join(_format_output(item) for item in job["outputs"]) or None,
            "priority": job["priority"],
            "running": job["running"],
            "queued": job["queued"],
            "retrying": job["retrying"] or None,
            "failed": _format_failed(job),
            "oldest queued": format_time(job["oldest_queued_at"]) if job["queued"] else None,
            "paused by": _format_pause(job),
            "reason": job["reason"],
        }
    )
    if job["upstream"]:
        typer.echo()
        print_items(job["upstream"], _UPSTREAM, right=_COUNTS)


def _format_failed(job: Answer) -> str | None:
    """Show how many tasks failed permanently, the last error, and the command that runs them again."""
    last = job["last_failure"]
    if not job["failed"] or last is None:
        return None
    scope = f" ({last['partition_key']})" if last["partition_key"] else ""
    error = ": ".join(str(part) for part in (last["error_code"], last["error_message"]) if part)
    return (
        f"{job['failed']} permanently; last{scope}: {error or 'no error message'}; "
        f"run them again with: trace retry --dag {job['dag']} --job {job['job']}"
    )


def _format_pause(item: dict[str, Any]) -> str | None:
    if item["paused_by"] or not item["bulk_paused_by"]:
        return item["paused_by"]
    return f"bulk work only: {item['bulk_paused_by']}"


def _format_input(item: dict[str, Any], dag: str) -> str:
    prefix = "" if item["dag"] == dag else f"{item['dag']}."
    return f"{prefix}{item['job']}.{item['output']}"


def _format_output(item: dict[str, Any]) -> str:
    return f"{item['name']} as {item['published']}" if item["published"] else str(item["name"])


_JOBS = ListTable(
    {
        **{name: itemgetter(name) for name in ("dag", "job", "activation", "operator", "runtime")},
        "source": lambda item: item["schedule"] or item["source_kind"],
        "failed": lambda item: item["failed"] or None,
        "paused by": _format_pause,
    },
    empty="No jobs. Deploy a DAG with: trace deploy FILE",
    right=["failed"],
    wide=["activation", "runtime"],
)
_COUNTS = ("queued", "running", "retrying", "failed")
_UPSTREAM: Columns = {
    "upstream": format_job,
    **{name: itemgetter(name) for name in _COUNTS},
    "paused by": itemgetter("paused_by"),
}
