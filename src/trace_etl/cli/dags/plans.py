"""Print plans and rollouts, and wait for a rollout."""

import json
from collections.abc import Mapping
from difflib import ndiff
from typing import TYPE_CHECKING, Any

import typer

from trace_etl.cli.output import format_cell, format_count, format_number
from trace_etl.cli.progress import show_counts

if TYPE_CHECKING:
    from trace_etl.cli.client import StackClient

Json = Mapping[str, Any]
_SIGNS = {"added": "+", "changed": "~", "removed": "-", "unchanged": "="}
_MAX_LINES = 20


def print_plan(plan: Json) -> None:
    """Print a plan: one line per changed job, and one line for all unchanged jobs."""
    unchanged = [job["name"] for job in plan["jobs"] if job["action"] == "keep"]
    for job in plan["jobs"]:
        if job["action"] != "keep":
            is_new = job["action"] in ("build", "start") and job["change"] != "added"
            sign = "~" if is_new else _SIGNS[job["change"]]
            typer.echo(f"  {sign} {job['name']}: {_format_action(job)}")
            for change in job["fields"]:
                _print_change(change)
    if unchanged:
        typer.echo(
            f"  = {', '.join(unchanged)}: {'keep' if len(unchanged) > 1 else 'keeps'} running"
        )
    for added in plan.get("added_columns", ()):
        typer.echo(
            f"  + {added['dataset']}: new column {added['column']} ({added['type']}), null in existing rows"
        )
    for name in plan["names"]:
        typer.echo(f"  {_format_name(name)}")
        if name["readers"]:
            advice = "also deploy their DAGs again" if name["after"] else "refused"
            typer.echo(f"      read by {', '.join(name['readers'])}: {advice}")
    if plan["breaking"]:
        typer.echo(
            "A deploy is refused: other DAGs read names that disappear. Change these DAGs first, or "
            "deploy with --allow-breaking."
        )
    if plan.get("losing_rows"):
        typer.echo(
            f"A deploy is refused: rows that {', '.join(plan['losing_rows'])} appended for past ticks cannot "
            "be made again. Publish the output with `write_mode: buffered` to keep them, or deploy with "
            "--allow-breaking."
        )
    if plan["builds"]:
        typer.echo(
            f"{format_count(plan['partitions'], 'partition')} to rebuild, by about "
            f"{format_count(plan['tasks'], 'task')}. Readers see the old partitions until the new ones "
            "are complete."
        )


def _print_change(change: Json) -> None:
    before, after = change["before"], change["after"]
    is_text = isinstance(before, str) and isinstance(after, str)
    if is_text and ("\n" in before + after or _shorten(before) == _shorten(after)):
        typer.echo(f"      {change['field']}:")
        lines = [line for line in ndiff(before.splitlines(), after.splitlines()) if line[0] in "-+"]
        for line in lines[:_MAX_LINES]:
            typer.echo(f"        {line}")
        if len(lines) > _MAX_LINES:
            typer.echo(f"        … {len(lines) - _MAX_LINES} more lines")
    else:
        if _shorten(before) == _shorten(
            after
        ):  # another type, such as the text "1000" and the number
            before, after = json.dumps(before), json.dumps(after)
        typer.echo(f"      {change['field']}: {_shorten(before)} → {_shorten(after)}")


def _format_action(job: Json) -> str:
    if job["action"] == "retire":
        return "removed"
    if job["action"] == "adopt":
        if job["change"] == "added":
            return "added again"
        what = "checks changed" if _changes_only_checks(job) else "changed"
        return f"{what}; its data is kept"
    if job["change"] == "added":
        return "added"
    change = f"new generation ({', '.join(job['because'])})"
    if job["action"] == "start":
        return f"{change}, current immediately: the old one has no data"
    rebuilt = job["rebuild"].items()
    outputs = "; ".join(f"{name}: {_format_existing_data(data)}" for name, data in rebuilt)
    return f"{change}, built beside the old one: {outputs}"


def _changes_only_checks(job: Json) -> bool:
    fields = [change["field"] for change in job["fields"]]
    return bool(fields) and all(name.startswith("checks") for name in fields)


def _format_existing_data(data: Json) -> str:
    noun = "partition" if data["partitions"] else "scope"
    ranges = [f"{start}-{end}" for start, end in data["ranges"][:3]]
    more = ", …" if len(data["ranges"]) > 3 else ""
    return format_count(data["scopes"], noun) + (f" ({', '.join(ranges)}{more})" if ranges else "")


def _format_name(name: Json) -> str:
    if name["before"] is None:
        return f"+ published as {name['name']}: {name['after']}"
    if name["after"] is None:
        return f"- no longer published: {name['name']}"
    when = ", when the new data is complete" if name["rebuild"] else ""
    return f"~ {name['name']} moves from {name['before']} to {name['after']}{when}"


def _shorten(value: object) -> str:
    text = " ".join(format_cell(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def print_rollout(rollout: Json) -> None:
    """Print the progress of a rollout and the reason it waits."""
    typer.echo(f"{rollout['dag']}: {rollout['state']} (version {rollout['dag_version']})")
    for target in rollout["targets"]:
        typer.echo(f"  {target['job']}.{target['output']}: {_format_target(target)}")
    if rollout["reason"]:
        typer.echo(f"  {rollout['reason']}")


def _format_target(target: Json) -> str:
    if target["blocks"]:
        done = target["blocks"] - target["missing_blocks"]
        return f"{format_number(done)} of {format_number(target['blocks'])} blocks"
    if target["cursor"] is not None:
        return f"at {format_cell(target['new_cursor'])} of {format_number(target['cursor'])}"
    return f"{format_number(target['new_partitions'])} of {format_number(target['old_partitions'])} partitions"


def wait_for_rollout(client: "StackClient", dag: str, dag_version: str) -> dict[str, Any]:
    """Show the progress of a rollout until it ends or is stuck."""
    from trace_etl.cli.tasks.watch import change_signals

    with show_counts() as report, change_signals(client, dag) as signals:
        for _ in signals:
            rollout = client.get(f"/v1/dags/{dag}/rollout", dag_version=dag_version)
            if rollout["state"] != "building" or is_stuck(rollout):
                return rollout
            total = sum(target["blocks"] for target in rollout["targets"])
            missing = sum(target["missing_blocks"] for target in rollout["targets"])
            report("blocks", total - missing, total, rollout["reason"] or "committing")
    raise AssertionError("the iterator of signals never ends")


def is_stuck(rollout: Json) -> bool:
    """Return whether the rollout cannot complete: no task is left that could finish it."""
    if rollout["state"] != "building" or rollout["reason"] is None:
        return False
    jobs: list[Json] = rollout["jobs"]
    return not any(job["queued"] or job["running"] or job["retrying"] for job in jobs)
