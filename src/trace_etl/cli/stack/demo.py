"""`trace demo`: the quickstart DAG end to end, on a stack and a chain of its own."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trace_etl.cli.client import EXIT_NOT_RUNNING, Client, NotRunning, Refused, fail, reasons
from trace_etl.cli.data.query import print_result
from trace_etl.cli.output import duration, number, print_rows

if TYPE_CHECKING:
    from trace_etl.cli.stack.playground import Playground

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
    """How long each part took."""

    parts: list[tuple[str, float, str]] = field(default_factory=list[tuple[str, float, str]])
    began: float = field(default_factory=time.monotonic)
    _since: float = field(default_factory=time.monotonic)

    def has(self, part: str) -> bool:
        return any(name == part for name, _, _ in self.parts)

    def restart(self) -> None:
        self._since = time.monotonic()

    def note(self, part: str, remark: str = "") -> None:
        """The time since the last `restart` belongs to this part."""
        self.parts.append((part, time.monotonic() - self._since, remark))


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command()(demo)


def demo(
    blocks: Annotated[int, typer.Option(min=1, max=1_000_000, help="Blocks to ingest.")] = 10_000,
    range_size: Annotated[
        int, typer.Option(min=1, max=10_000_000, help="Blocks per partition.")
    ] = 500,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Worker processes.")] = 1,
    rpc_url: Annotated[
        str | None, typer.Option(help="Read this node instead of a chain of our own.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything running.")] = False,
) -> None:
    """Run the quickstart DAG on a stack of its own, show the result, and clean up."""
    from trace_etl.cli.stack.playground import playground
    from trace_etl.lite.errors import StackError

    watch = Stopwatch()
    text = _dag_text(range_size)
    try:
        with playground(blocks, workers, rpc_url, keep=keep) as place:
            watch.note("stack up", f"{workers} worker{'s' if workers > 1 else ''}, {place.chain}")
            _show(place, text, blocks, range_size, watch)
            _print_times(watch)
            _print_next(place.home if keep else None, place.chain_pid)
    except StackError as refused:
        fail([str(refused), *([f"what to do: {refused.remedy}"] if refused.remedy else [])])
    except NotRunning as gone:
        fail([str(gone)], EXIT_NOT_RUNNING)
    except Refused as refused:
        fail(reasons(refused, str(_EXAMPLE)))
    except KeyboardInterrupt:
        typer.echo("Interrupted.", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _dag_text(range_size: int) -> str:
    root = Path(__file__).parents[4]
    try:
        text = (root / _EXAMPLE).read_text(encoding="utf-8")
    except OSError as error:
        fail([f"{root / _EXAMPLE}: {error.strerror}; run the demo in a clone of the project"])
    return text.replace(_SIZE_LINE, f"size: {range_size} ")


def _show(place: "Playground", text: str, blocks: int, range_size: int, watch: Stopwatch) -> None:
    client = place.client
    client.post("/v1/dags", {"text": text, "filename": _EXAMPLE.name})
    body = {"dag": DAG, "job": SOURCE, "start": 0, "end": blocks - 1}
    client.post("/v1/triggers", body)
    typer.echo(f"Deployed {_EXAMPLE} and asked for blocks 0-{blocks - 1}.")
    _wait(place, blocks, -(-blocks // range_size), watch)
    watch.restart()
    answer = client.query(TOP_RECEIVERS)
    watch.note("final ranking", "one query, DuckDB")
    typer.echo(f"\nTop receivers of ERC-20 transfers in {number(blocks)} blocks:\n")
    print_result(answer)


def _wait(place: "Playground", blocks: int, ranges: int, watch: Stopwatch) -> None:
    """Follow both jobs until every range is done. Ends the program when a task fails for good."""
    from trace_etl.cli.stack.progress import follow
    from trace_etl.cli.tasks.watch import signals

    watch.restart()
    with follow(blocks, ranges) as progress, signals(place.client, DAG) as news:
        for _ in news:
            place.check_workers()
            jobs = place.client.get("/v1/tasks/summary", dag=DAG)["jobs"]
            tallies: dict[str, dict[str, Any]] = {job["job"]: job for job in jobs}
            for line in _failures(place.client, tallies):
                progress.tell(f"  {line}")
            progress.update(tallies[INGEST], tallies[RECEIVERS])
            if progress.began is not None and not watch.has("Spark start"):
                watch.note("Spark start", "in the background, once per worker")
                watch.restart()
            if tallies[INGEST]["completed"] >= ranges and not watch.has(INGEST):
                watch.note(INGEST, f"{ranges} ranges, {number(int(progress.rate))} blocks/s")
                watch.restart()
            if tallies[RECEIVERS]["completed"] >= ranges and watch.has(INGEST):
                watch.note(RECEIVERS, "SQL on Spark, what was left after the last block")
                return


def _failures(client: Client, tallies: dict[str, dict[str, Any]]) -> list[str]:
    """What failed and will be tried again. Ends the program when something failed for good."""
    if not any(job["failed"] or job["canceled"] for job in tallies.values()):
        return []
    retrying: list[str] = []
    for status in ("Failed", "Canceled"):
        for task in client.get("/v1/tasks", dag=DAG, status=status, limit=1000)["items"]:
            why = task["reason"] or task["error_message"] or status.lower()
            line = f"{task['dag']}.{task['job']} of blocks {task['partition_key']}: {why}"
            if task["retry_at"] is None:
                fail([line])
            retrying.append(line)
    return retrying


def _print_times(watch: Stopwatch) -> None:
    typer.echo("")
    rows = [[part, duration(seconds), remark] for part, seconds, remark in watch.parts]
    rows.append(["all of it", duration(time.monotonic() - watch.began), ""])
    print_rows(["part", "took", ""], rows, right=["took"])


def _print_next(home: Path | None, chain_pid: int | None) -> None:
    typer.echo("\nWhat to try next:\n")
    if home is None:
        typer.echo("  trace demo --keep                     # the same, and then look around")
        typer.echo("  trace demo --rpc-url URL --blocks 1000  # the same DAG on a real node")
        typer.echo("  trace up                              # a stack that stays; see the README")
        return
    typer.echo(f"  export TRACE_HOME={home}")
    typer.echo("  trace tasks; trace datasets; trace status")
    typer.echo("  trace query 'SELECT max(block_number) FROM blocks'")
    stop = f" && kill {chain_pid}" if chain_pid else ""
    typer.echo(f"  trace down --purge --yes{stop}   # when you have seen enough")
