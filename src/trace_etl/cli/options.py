"""Options that many commands share."""

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_HOME = Path("~/.trace")
HomeOption = Annotated[
    Path, typer.Option("--home", envvar="TRACE_HOME", help="Where the stack keeps everything.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
