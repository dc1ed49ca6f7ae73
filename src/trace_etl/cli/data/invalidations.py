"""`trace invalidate`, `trace invalidations`."""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from trace_etl.cli.client import fail, session
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from trace_etl.cli.output import local_time, print_json, print_rows


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command()(invalidate)
    app.command()(invalidations)


def invalidate(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A published dataset.")],
    partition: Annotated[str | None, typer.Option(help="One partition, by its key: 0-999.")] = None,
    blocks: Annotated[
        str | None, typer.Option("--range", metavar="A-B", help="Blocks, both inclusive.")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=VALUE", help="Only these rows of the range; repeatable."),
    ] = None,
    reason: Annotated[str, typer.Option(help="Why, for whoever looks later.")] = "",
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Make the scope itself again, too.")
    ] = False,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Say that a part of a dataset is wrong: whatever was made from it is made again."""
    body = _scope(partition, blocks, where or [])
    body |= {"reason": reason, "rebuild": rebuild}
    with session(home) as client:
        answer = client.post(f"/v1/datasets/{quote(name, safe='')}/invalidations", body)
    if as_json:
        print_json(answer)
    elif answer["rebuilding"]:
        typer.echo(f"{answer['rebuilding']} tasks make it again; what was made from it follows.")
    else:
        typer.echo(f"Invalid: {_what(answer)}. `trace invalidations` shows who has dealt with it.")


def invalidations(
    dataset: Annotated[str | None, typer.Option(help="Only of this published dataset.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 50,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """List what became invalid, newest first, and how much of the work that made is done."""
    with session(home) as client:
        answer = client.get("/v1/invalidations", dataset=dataset, limit=limit)
    if as_json:
        print_json(answer)
        return
    items: list[dict[str, Any]] = answer["items"]
    if not items:
        typer.echo("Nothing became invalid.")
        return
    print_rows(
        ["when", "dataset", "what", "why", "by", "done"],
        [
            [
                local_time(item["made_at"]),
                item["dataset"] or f"{item['dag']}.{item['job']}.{item['output']}",
                _what(item),
                item["reason"] or None,
                item["made_by"],
                f"{item['processed']} of {item['tasks']}" if item["routed_at"] else "not routed",
            ]
            for item in items
        ],
    )


def _scope(partition: str | None, blocks: str | None, where: list[str]) -> dict[str, Any]:
    from trace_etl.model.errors import Invalid
    from trace_etl.model.scope import Range

    if (partition is None) == (blocks is None):
        fail(["give --partition or --range, one of them"], 2)
    if partition is not None:
        return {"partition_key": partition} | ({"filter": _filter(where)} if where else {})
    try:
        span = Range.parse(blocks or "")
    except Invalid as error:
        fail([str(error)], 2)
    return {"start": span.start, "end": span.end, "filter": _filter(where) if where else None}


def _filter(conditions: list[str]) -> dict[str, Any]:
    """`a=1 a=2 b=x` as the map that an input's `where` is."""
    found: dict[str, list[str | int]] = {}
    for condition in conditions:
        column, sign, value = condition.partition("=")
        if not sign:
            fail([f"--where: write COLUMN=VALUE, not {condition!r}"], 2)
        number = value.removeprefix("-").isdecimal()
        found.setdefault(column.strip(), []).append(int(value) if number else value)
    return {column: items[0] if len(items) == 1 else items for column, items in found.items()}


def _what(item: dict[str, Any]) -> str:
    if item["partition_key"] is not None:
        return f"partition {item['partition_key']}"
    return f"blocks {item['start']}-{item['end']}"
