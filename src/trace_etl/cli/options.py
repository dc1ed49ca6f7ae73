"""Arguments and options that several commands share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trace_etl.cli.client import EXIT_REJECTED, fail
from trace_etl.cli.output import choose_json, choose_wide

if TYPE_CHECKING:
    from trace_etl.model.scope import Range

DEFAULT_HOME = Path("~/.trace")
HomeOption = Annotated[
    Path, typer.Option("--home", envvar="TRACE_HOME", help="Directory of the stack.")
]
JsonOption = Annotated[
    bool,
    typer.Option("--json", help="Print JSON instead of text.", callback=choose_json, is_eager=True),
]
WideOption = Annotated[
    bool,
    typer.Option(
        "--wide",
        help="Print all columns, in full.",
        callback=choose_wide,
        is_eager=True,
        expose_value=False,
    ),
]
LimitOption = Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of entries.")]
AfterOption = Annotated[
    str | None, typer.Option(help="Continue after a page: its `next` value.", metavar="NEXT")
]
RangeOption = Annotated[
    str, typer.Option("--range", metavar="START-END", help="Block range, both ends included.")
]
DagArgument = Annotated[str, typer.Argument(metavar="DAG", help="Name of the DAG.")]
OneDagArgument = Annotated[
    str | None, typer.Argument(metavar="[DAG]", help="Only this DAG. Default: all.")
]
DatasetArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the dataset.")]
DagFileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="DAG file (YAML).")]


def parse_range(blocks: str, *, exit_code: int = EXIT_REJECTED) -> "Range":
    """Parse the value of --range. Exits with an error message if it is not a range."""
    from trace_etl.model.errors import Invalid
    from trace_etl.model.scope import Range

    try:
        return Range.parse(blocks)
    except Invalid as error:
        fail([f"--range: {fault.message}" for fault in error.faults], exit_code)
