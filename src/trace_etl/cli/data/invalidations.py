"""`trace invalidate`, `trace invalidations`."""

from operator import itemgetter
from typing import Annotated, Any

import typer

from trace_etl.cli.client import Answer, fail, quote_segment, session
from trace_etl.cli.listing import ListTable, print_list
from trace_etl.cli.options import (
    DEFAULT_HOME,
    DatasetArgument,
    HomeOption,
    JsonOption,
    LimitOption,
    WideOption,
    parse_range,
)
from trace_etl.cli.output import format_count, format_job, format_time, print_answer

_EXIT_USAGE = 2


def invalidate(
    name: DatasetArgument,
    partition: Annotated[str | None, typer.Option(help="Key of one partition: 0-999.")] = None,
    blocks: Annotated[
        str | None,
        typer.Option("--range", metavar="START-END", help="Block range, both ends included."),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=VALUE", help="Only rows with this value. Repeatable."),
    ] = None,
    reason: Annotated[str, typer.Option(help="Reason, shown to other users.")] = "",
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Also rebuild the invalid partitions.")
    ] = False,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Mark a range of a dataset as invalid.

    Everything derived from the range is rebuilt.
    """
    body = _parse_scope(partition, blocks, where or []) | {"reason": reason, "rebuild": rebuild}
    with session(home) as client:
        answer = client.post(f"/v1/datasets/{quote_segment(name)}/invalidations", body)
    print_answer(answer, as_json, _print_invalidated)


def invalidations(
    dataset: Annotated[str | None, typer.Option(help="Only of this published dataset.")] = None,
    limit: LimitOption = 50,
    home: HomeOption = DEFAULT_HOME,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """List invalidations, newest first."""
    path = "/v1/invalidations"
    print_list(home, path, _INVALIDATIONS, as_json=as_json, dataset=dataset, limit=limit)


def _parse_scope(partition: str | None, blocks: str | None, where: list[str]) -> dict[str, Any]:
    if (partition is None) == (blocks is None):
        fail(["give either --partition or --range, and not both"], _EXIT_USAGE)
    if partition is not None:
        return {"partition_key": partition} | ({"filter": _parse_filter(where)} if where else {})
    span = parse_range(blocks or "", exit_code=_EXIT_USAGE)
    return {"start": span.start, "end": span.end, "filter": _parse_filter(where) if where else None}


def _parse_filter(conditions: list[str]) -> dict[str, Any]:
    """Parse `a=1 a=2 b=x` to `{"a": [1, 2], "b": "x"}`, the form of an input's `where`."""
    values: dict[str, list[str | int]] = {}
    for condition in conditions:
        column, equals, value = condition.partition("=")
        if not equals:
            fail([f"--where: {condition!r} is not a condition; write COLUMN=VALUE"], _EXIT_USAGE)
        is_number = value.removeprefix("-").isdecimal()
        values.setdefault(column.strip(), []).append(int(value) if is_number else value)
    return {column: items[0] if len(items) == 1 else items for column, items in values.items()}


def _print_invalidated(answer: Answer) -> None:
    if answer["rebuilding"]:
        count = format_count(answer["rebuilding"], "task")
        typer.echo(f"Rebuilding the scope with {count}. Derived data follows.")
    else:
        scope = _format_scope(answer)
        typer.echo(f"Invalid: {scope}. `trace invalidations` shows the progress of the rebuild.")


def _format_scope(item: dict[str, Any]) -> str:
    if item["partition_key"] is not None:
        return f"partition {item['partition_key']}"
    return f"blocks {item['start']}-{item['end']}"


_INVALIDATIONS = ListTable(
    {
        "created": lambda item: format_time(item["made_at"]),
        "dataset": lambda item: item["dataset"] or f"{format_job(item)}.{item['output']}",
        "scope": _format_scope,
        "reason": lambda item: item["reason"] or None,
        "by": itemgetter("made_by"),
        "rebuilt": lambda item: (
            f"{item['processed']} of {item['tasks']}" if item["routed_at"] else "not routed"
        ),
    },
    empty="No invalidations.",
    wide=["by"],
)
