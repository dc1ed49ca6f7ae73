"""`trace check-history`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trace_etl.cli.options import JsonOption
from trace_etl.cli.output import print_json

if TYPE_CHECKING:
    from trace_etl.devtools.history.verdict import Verdict

_REFUTED = 1
_UNREADABLE = 2


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("check-history")(check_history)


def check_history(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A recorded run, as JSON lines.")],
    clock_skew: Annotated[
        float,
        typer.Option(min=0, help="How far the recorder's and Postgres's clocks may differ, in s."),
    ] = 1.0,
    as_json: JsonOption = False,
) -> None:
    """Prove or refute the task lifecycle's invariants from a recorded run.

    Exits 0 when they are proven, 1 when one is refuted, 2 when the file cannot be read.
    """
    verdict = _verdict(file, clock_skew)
    if as_json:
        print_json(_document(verdict))
    else:
        _print(verdict)
    raise typer.Exit(0 if verdict.proven else _REFUTED)


def _verdict(file: Path, clock_skew: float) -> "Verdict":
    from trace_etl.devtools.history.checker import check
    from trace_etl.devtools.history.lines import Unreadable, parse

    try:
        with file.open(encoding="utf-8") as lines:
            return check(parse(lines), clock_skew=clock_skew)
    except (OSError, UnicodeDecodeError, Unreadable) as error:
        typer.echo(f"{file}: {error}", err=True)
        raise typer.Exit(_UNREADABLE) from error


def _document(verdict: "Verdict") -> dict[str, Any]:
    from dataclasses import asdict

    return {"proven": verdict.proven, **asdict(verdict)}


def _print(verdict: "Verdict") -> None:
    for violation in verdict.violations:
        lines = ", ".join(str(line) for line in violation.lines)
        typer.echo(f"{violation.invariant}: {violation.message} (lines {lines})")
    for gap in verdict.unchecked:
        typer.echo(f"not checked: {gap}")
    typer.echo(
        f"{'Proven' if verdict.proven else 'Refuted'}: {verdict.calls} calls"
        f" ({verdict.unanswered} unanswered), {verdict.tasks} tasks,"
        f" {verdict.attempts} attempts, {len(verdict.violations)} violations."
    )
