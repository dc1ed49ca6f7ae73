"""`trace demo`: run the quickstart DAG on a temporary stack and a development chain."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trace_etl.cli.client import (
    EXIT_NOT_RUNNING,
    NotRunning,
    RequestRejected,
    StackClient,
    fail,
    list_errors,
)
from trace_etl.cli.dags.triggers import format_lost_task, list_lost_tasks
from trace_etl.cli.data.query.query import print_result
from trace_etl.cli.output import format_count, format_duration, format_number, print_rows

if TYPE_CHECKING:
    from trace_etl.cli.stack.demo_stack import DemoStack

DAG, SOURCE, INGEST, RECEIVERS = "quickstart", "request", "ingest", "receivers"
EXIT_INTERRUPTED = 130
_EXAMPLE = Path("examples", "quickstart", "dag.yaml")
_SIZE_LINE = "size: 500 "
TOP_RECEIVERS = """
SELECT receiver, sum(transfers)::BIGINT AS transfers, count(DISTINCT token) AS tokens
  FROM receivers
 GROUP BY receiver
 ORDER BY transfers DESC, receiver
 LIMIT 10"""


@dataclass
class Stopwatch:
    """Measures the duration of each phase."""

    phases: list[tuple[str, float, str]] = field(default_factory=list[tuple[str, float, str]])
    began: float = field(default_factory=time.monotonic)
    _since: float = field(default_factory=time.monotonic)

    def has(self, phase: str) -> bool:
        return any(name == phase for name, _, _ in self.phases)

    def restart(self) -> None:
        self._since = time.monotonic()

    def end(self, phase: str, remark: str = "") -> None:
        """Record the time since the last end or `restart` as the duration of this phase."""
        self.phases.append((phase, time.monotonic() - self._since, remark))
        self.restart()


def demo(
    blocks: Annotated[
        int, typer.Option(min=1, max=1_000_000, help="Number of blocks to ingest.")
    ] = 10_000,
    range_size: Annotated[
        int, typer.Option(min=1, max=10_000_000, help="Blocks per partition.")
    ] = 500,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Number of worker processes.")] = 1,
    rpc_url: Annotated[
        str | None, typer.Option(help="Ethereum node to read. Default: a development chain.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the stack running.")] = False,
) -> None:
    """Run the quickstart DAG on a temporary stack.

    Prints the result and the duration of each phase, and deletes the stack.
    """
    from trace_etl.cli.stack.demo_stack import open_demo_stack
    from trace_etl.lite.errors import StackError

    stopwatch = Stopwatch()
    text = _read_example(range_size)
    try:
        with open_demo_stack(blocks, workers, rpc_url, keep=keep) as stack:
            stopwatch.end("stack up", f"{format_count(workers, 'worker')}, sink, {stack.chain}")
            _run_example(stack, text, blocks, range_size, stopwatch)
            _print_times(stopwatch)
            _print_next_steps(stack.home if keep else None, stack.chain_pid)
    except StackError as error:
        fail([str(error), *([f"what to do: {error.remedy}"] if error.remedy else [])])
    except NotRunning as error:
        fail([str(error)], EXIT_NOT_RUNNING)
    except RequestRejected as error:
        fail(list_errors(error, str(_EXAMPLE)))
    except KeyboardInterrupt:
        typer.echo("Interrupted.", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _read_example(range_size: int) -> str:
    root = Path(__file__).parents[4]
    try:
        text = (root / _EXAMPLE).read_text(encoding="utf-8")
    except OSError as error:
        fail([f"{root / _EXAMPLE}: {error.strerror}; run the demo in a clone of the repository"])
    return text.replace(_SIZE_LINE, f"size: {range_size} ")


def _run_example(
    stack: "DemoStack", text: str, blocks: int, range_size: int, stopwatch: Stopwatch
) -> None:
    client = stack.client
    client.post("/v1/dags", {"text": text, "filename": _EXAMPLE.name})
    body = {"dag": DAG, "job": SOURCE, "start": 0, "end": blocks - 1}
    client.post("/v1/triggers", body)
    typer.echo(f"Deployed {_EXAMPLE} and triggered blocks 0-{blocks - 1}.")
    _wait_for_ranges(stack, blocks, -(-blocks // range_size), stopwatch)
    answer = client.query(TOP_RECEIVERS)
    stopwatch.end("final ranking", "one query, DuckDB")
    typer.echo(f"\nTop receivers of ERC-20 transfers in {format_number(blocks)} blocks:\n")
    print_result(answer)


def _wait_for_ranges(stack: "DemoStack", blocks: int, ranges: int, stopwatch: Stopwatch) -> None:
    """Show progress until every range is done. Exits if a task fails and has no retry left."""
    from trace_etl.cli.stack.progress import show_progress
    from trace_etl.cli.tasks.watch import change_signals

    stopwatch.restart()
    with show_progress(blocks, ranges) as progress, change_signals(stack.client, DAG) as signals:
        for _ in signals:
            stack.check_workers()
            jobs = stack.client.get("/v1/tasks/summary", dag=DAG)["jobs"]
            counts: dict[str, dict[str, Any]] = {job["job"]: job for job in jobs}
            for line in _list_retries(stack.client, counts):
                progress.print_once(f"  {line}")
            progress.update(counts[INGEST], counts[RECEIVERS])
            if progress.began is not None and not stopwatch.has("Spark start"):
                stopwatch.end("Spark start", "in the background, once per worker")
            if counts[INGEST]["completed"] >= ranges and not stopwatch.has(INGEST):
                rate = format_number(int(progress.rate))
                stopwatch.end(INGEST, f"{ranges} ranges, {rate} blocks/s")
            if counts[RECEIVERS]["completed"] >= ranges and stopwatch.has(INGEST):
                stopwatch.end(RECEIVERS, "SQL on Spark, ranges left after the last block")
                return


def _list_retries(client: StackClient, counts: dict[str, dict[str, Any]]) -> list[str]:
    """List failures that will be retried. Exits if one has no retry left."""
    if not any(job["failed"] or job["canceled"] for job in counts.values()):
        return []
    lost = list_lost_tasks(client, DAG).values()
    if final := [task for task in lost if task["retry_at"] is None]:
        fail([format_lost_task(task) for task in final])
    return [format_lost_task(task) for task in lost]


def _print_times(stopwatch: Stopwatch) -> None:
    typer.echo("")
    rows = [
        [phase, format_duration(seconds), remark] for phase, seconds, remark in stopwatch.phases
    ]
    rows.append(["total", format_duration(time.monotonic() - stopwatch.began), ""])
    print_rows(["phase", "duration", ""], rows, right=["duration"])


def _print_next_steps(home: Path | None, chain_pid: int | None) -> None:
    typer.echo("\nWhat to try next:\n")
    if home is None:
        typer.echo("  trace demo --keep                       # leave the stack running,")
        typer.echo("                                          # and open it in a browser")
        typer.echo("  trace demo --rpc-url URL --blocks 1000  # the same DAG on a real node")
        typer.echo("  trace up                                # a permanent stack; see the README")
        return
    typer.echo(f"  export TRACE_HOME={home}")
    typer.echo("  trace console --open   # see it in a browser")
    typer.echo("  trace tasks; trace datasets; trace status")
    typer.echo("  trace query 'SELECT max(block_number) FROM blocks'")
    stop = f" && kill {chain_pid}" if chain_pid else ""
    typer.echo(f"  trace down --purge --yes{stop}   # stop and delete it")
