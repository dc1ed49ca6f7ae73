"""`trace certify`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from trace_etl.cli.client import fail, quote_segment, session
from trace_etl.cli.options import (
    DEFAULT_HOME,
    DatasetArgument,
    HomeOption,
    JsonOption,
    parse_range,
)
from trace_etl.cli.output import format_count, print_answer
from trace_etl.cli.progress import show_counts


def certify(
    name: DatasetArgument,
    blocks: Annotated[
        str | None,
        typer.Option("--range", metavar="START-END", help="Only partitions with these blocks."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File. Default: NAME.manifest.jws.")
    ] = None,
    home: HomeOption = DEFAULT_HOME,
    as_json: JsonOption = False,
) -> None:
    """Write a signed manifest of a dataset.

    The manifest has the certificate of each partition. Check it with `trace verify --manifest`.
    """
    params = {"range": parse_range(blocks).key} if blocks else {}
    target = output or Path(f"{name}.manifest.jws")
    with session(home) as client, show_counts() as report:
        report("signing", 0, 0)
        signed = client.get(f"/v1/datasets/{quote_segment(name)}/manifest", **params)
    try:
        target.write_text(signed["jws"] + "\n")
    except OSError as error:
        fail([f"--output: cannot write {target}: {error.strerror}; choose another file"])
    answer = {"file": str(target), "kid": signed["kid"], "partitions": signed["partitions"]}
    print_answer(answer, as_json, _print_written)


def _print_written(answer: dict[str, Any]) -> None:
    typer.echo(
        f"Wrote {answer['file']}: {format_count(answer['partitions'], 'partition')}, signed with key "
        f"{answer['kid']}. `trace keys certificates` prints the public key."
    )
