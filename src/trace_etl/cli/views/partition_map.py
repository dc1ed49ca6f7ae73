"""`trace map`: show which blocks of a dataset are committed, as one line."""

from typing import Annotated

import typer

from trace_etl.cli.client import Answer, quote_segment, session
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from trace_etl.cli.output import format_count, format_number, print_answer

_WIDTH = 72
_LEVELS = " ░▒▓█"


def partition_map(
    name: Annotated[str, typer.Argument(metavar="DATASET", help="Published name.")],
    blocks: Annotated[
        str | None, typer.Option("--range", metavar="START-END", help="Only these blocks.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Show which blocks of a dataset are committed.

    A full block of the line is committed, an empty one is missing. Letters mark unfinished work (R running,
    Q queued, F failed), blocks in a hot table (H), and partitions whose inputs were replaced (S stale).
    """
    start, _, end = (blocks or "").partition("-")
    with session(home) as client:
        answer = client.get(
            f"/v1/datasets/{quote_segment(name)}/map",
            start=start or None,
            end=end or None,
            buckets=_WIDTH,
        )
    print_answer(answer, as_json, _print_map)


def _print_map(answer: Answer) -> None:
    if answer["first"] is None:
        typer.echo("No partition has a block range yet.")
        return
    width, buckets = answer["end"] - answer["start"] + 1, answer["buckets"]
    hot = _list_hot_blocks(answer)
    line = [
        _choose_mark(
            answer, bucket, hot, range(bucket * width // buckets, (bucket + 1) * width // buckets)
        )
        for bucket in range(buckets)
    ]
    for tasks in answer["tasks"]:
        mark = next(k for k in ("failed", "running", "queued") if tasks[k] or k == "queued")
        line[tasks["bucket"]] = mark[0].upper()
    typer.echo(f"│{''.join(line)}│")
    first, last = format_number(answer["start"]), format_number(answer["end"])
    typer.echo(f" {first}{last:>{buckets - len(first)}}")
    covered = sum(answer["blocks"])
    parts = [
        format_count(sum(answer["partitions"]), "partition"),
        f"{format_number(covered)} of {format_count(width, 'block')} committed",
        f"{format_number(width - covered - len(hot))} missing",
    ]
    if hot:
        parts.insert(2, f"{format_number(len(hot))} in a hot table")
    if stale := sum(answer["stale"]):
        parts.append(f"{format_count(stale, 'partition')} stale")
    if reorganisations := sum(item["is_reorganisation"] for item in answer["invalidations"]):
        parts.append(format_count(reorganisations, "reorganisation"))
    typer.echo(", ".join(parts))


def _list_hot_blocks(answer: Answer) -> range:
    """Return the blocks of the window that are in a hot table, counted from its start."""
    hot, start = answer["hot"], answer["start"]
    if hot is None:
        return range(0)
    return range(max(hot["start"] - start, 0), min(hot["end"], answer["end"]) - start + 1)


def _choose_mark(answer: Answer, bucket: int, hot: range, blocks: range) -> str:
    if hot and hot[0] < blocks.stop and blocks.start <= hot[-1]:
        return "H"
    if answer["stale"][bucket]:
        return "S"
    return _LEVELS[_find_level(answer["blocks"][bucket], len(blocks))]


def _find_level(covered: int, blocks: int) -> int:
    """Return the level of shading: empty and full only if that is exactly true."""
    if covered in (0, blocks):
        return 0 if covered == 0 else len(_LEVELS) - 1
    return min(len(_LEVELS) - 2, 1 + covered * (len(_LEVELS) - 2) // blocks)
