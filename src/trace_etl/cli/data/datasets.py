"""`trace datasets`, `trace dataset`."""

from operator import itemgetter
from typing import Annotated, Any

import typer

from trace_etl.cli.client import (
    Answer,
    NotRunning,
    RequestRejected,
    StackClient,
    quote_segment,
    session,
)
from trace_etl.cli.listing import ListTable, print_list_answer
from trace_etl.cli.options import DEFAULT_HOME, DatasetArgument, HomeOption, JsonOption, WideOption
from trace_etl.cli.output import (
    Columns,
    format_count,
    format_id,
    format_job,
    format_number,
    format_scope,
    format_size,
    format_time,
    print_answer,
    print_fields,
    print_items,
)


def datasets(
    home: HomeOption = DEFAULT_HOME, wide: WideOption = False, as_json: JsonOption = False
) -> None:
    """List datasets and their block ranges."""
    with session(home) as client:
        answer = client.get_all("/v1/datasets")
        for item in answer["items"]:
            _count_rows_of_table(client, item)
    print_list_answer(answer, _DATASETS, as_json=as_json)


def dataset(
    name: DatasetArgument,
    limit: Annotated[
        int, typer.Option(min=1, max=1000, help="Maximum number of partitions.")
    ] = 1000,
    schema: Annotated[
        bool, typer.Option("--schema", help="Show the columns: names, types and comments.")
    ] = False,
    home: HomeOption = DEFAULT_HOME,
    wide: WideOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show one dataset and its partitions.

    Shows gaps too; with --schema, the columns instead.
    """
    from trace_etl.client.schemas import read_schema

    with session(home) as client:
        if schema:
            columns = [column.model_dump() for column in read_schema(client, name)]
            print_answer({"name": name, "columns": columns}, as_json, _print_schema)
            return
        answer = client.get(f"/v1/datasets/{quote_segment(name)}", limit=limit)
        _count_rows_of_table(client, answer)
    print_answer(answer, as_json, _print_dataset)


def _count_rows_of_table(client: StackClient, item: dict[str, Any]) -> None:
    """Count the rows of a table in Postgres, which has no partitions. Unknown if it cannot be queried."""
    if item["row_count"] or item["name"] is None:
        return
    try:
        # Published names are identifiers, so they need no quotes.
        rows = client.query(f"SELECT count(*) FROM {item['name']}")["rows"]  # noqa: S608
    except (RequestRejected, NotRunning):
        return
    item["row_count"] = rows[0][0]


def _print_schema(item: Answer) -> None:
    if not item["columns"]:
        typer.echo(f"The columns of {item['name']} are not known before its first rows.")
        return
    print_items(item["columns"], _COLUMNS)


def _print_dataset(item: Answer) -> None:
    readers = [f"{format_job(c)} up to {c['cursor']}" for c in item["consumers"]]
    print_fields(
        {
            "dataset": item["name"],
            "about": item["description"] or None,
            "from": _format_producers(item),
            "version": item["dataset_version"],
            "blocks": format_scope(item),
            "gaps": ", ".join(f"{a}-{b}" for a, b in item["gaps"]) or "none",
            "rows": format_number(item["row_count"]),
            "size": format_size(item["byte_count"]),
            "generations": _format_generations(item["generations"]),
            "read by": ", ".join(readers) or None,
        }
    )
    partitions = item["partition_list"]
    print_items(partitions, _PARTITIONS, right=_COUNTS, wide=["attempt"])
    if item["next"] is not None:
        typer.echo(f"({len(partitions)} of {format_number(item['partitions'])} partitions)")


def _format_generations(items: list[dict[str, Any]]) -> str:
    return ", ".join(
        f"{g['generation_no']} ({g['state']}, {format_count(g['partitions'], 'partition')})"
        for g in items
    )


def _format_producers(item: dict[str, Any]) -> str:
    return ", ".join(item["producers"])


_COUNTS = ("partitions", "rows", "size")
_ROWS_AND_SIZE: Columns = {
    "rows": lambda item: format_number(item["row_count"]),
    "size": lambda item: format_size(item["byte_count"]),
}
_DATASETS = ListTable(
    {
        "dataset": lambda item: item["name"] or f"{_format_producers(item)} (not published)",
        "from": _format_producers,
        "blocks": format_scope,
        "partitions": lambda item: format_number(item["partitions"]),
        **_ROWS_AND_SIZE,
        "updated": lambda item: format_time(item["updated_at"]),
    },
    empty="No datasets. Deploy a DAG with: trace deploy FILE",
    right=_COUNTS,
    wide=["from", "updated"],
)
_COLUMNS: Columns = {
    "column": itemgetter("name"),
    "type": itemgetter("type"),
    "comment": lambda item: item["comment"] or "",
}
_PARTITIONS: Columns = {
    "partition": itemgetter("partition_key"),
    **_ROWS_AND_SIZE,
    "task": lambda item: format_id(item["task_id"]),
    "attempt": itemgetter("attempt"),
    "committed": lambda item: format_time(item["committed_at"]),
}
