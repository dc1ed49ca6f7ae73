"""`trace datasets`, `trace dataset`."""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from trace_etl.cli.client import session
from trace_etl.cli.options import DEFAULT_HOME, HomeOption, JsonOption
from trace_etl.cli.output import (
    blocks,
    local_time,
    number,
    print_fields,
    print_json,
    print_rows,
    size,
)

_COUNTS = ("partitions", "rows", "size")


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command()(datasets)
    app.command()(dataset)


def datasets(home: HomeOption = DEFAULT_HOME, as_json: JsonOption = False) -> None:
    """List the datasets: how much is committed, and of which blocks."""
    with session(home) as client:
        answer = client.get_all("/v1/datasets")
    if as_json:
        print_json(answer)
        return
    items: list[dict[str, Any]] = answer["items"]
    if not items:
        typer.echo("No datasets. They come with a DAG: trace deploy FILE")
        return
    print_rows(
        ["dataset", "from", "blocks", *_COUNTS, "updated"],
        [_row(item) for item in items],
        right=_COUNTS,
    )


def dataset(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A published dataset.")],
    limit: Annotated[
        int, typer.Option(min=1, max=1000, help="How many partitions at most.")
    ] = 1000,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Show one published dataset: its partitions, and the blocks missing between them."""
    with session(home) as client:
        answer = client.get(f"/v1/datasets/{quote(name, safe='')}", limit=limit)
    if as_json:
        print_json(answer)
        return
    print_fields(
        {
            "dataset": answer["name"],
            "from": _origin(answer),
            "version": answer["dataset_version"],
            "blocks": blocks(answer),
            "missing": ", ".join(f"{a}-{b}" for a, b in answer["gaps"]) or "none between them",
            "rows": number(answer["row_count"]),
            "size": size(answer["byte_count"]),
            "history": _generations(answer["generations"]),
            "read by": ", ".join(f"{c['dag']}.{c['job']} up to {c['cursor']}" for c in readers)
            if (readers := answer["consumers"])
            else None,
        }
    )
    _print_partitions(answer["partition_list"])
    if answer["next"] is not None:
        shown = len(answer["partition_list"])
        typer.echo(f"({shown} of {number(answer['partitions'])} partitions are shown)")


def _generations(items: list[dict[str, Any]]) -> str:
    return ", ".join(
        f"{g['generation_no']} ({g['state']}, {number(g['partitions'])} partitions)" for g in items
    )


def _row(item: dict[str, Any]) -> list[object]:
    return [
        item["name"] or "(not published)",
        _origin(item),
        blocks(item),
        number(item["partitions"]),
        number(item["row_count"]),
        size(item["byte_count"]),
        local_time(item["updated_at"]),
    ]


def _origin(item: dict[str, Any]) -> str:
    return ", ".join(item["producers"])


def _print_partitions(partitions: list[dict[str, Any]]) -> None:
    print_rows(
        ["partition", "rows", "size", "task", "attempt", "committed"],
        [
            [
                p["partition_key"],
                number(p["row_count"]),
                size(p["byte_count"]),
                p["task_id"],
                p["attempt"],
                local_time(p["committed_at"]),
            ]
            for p in partitions
        ],
        right=_COUNTS,
    )
