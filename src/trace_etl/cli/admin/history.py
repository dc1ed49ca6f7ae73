"""`trace check-history`: check a recorded run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trace_etl.cli.options import JsonOption
from trace_etl.cli.output import print_json

if TYPE_CHECKING:
    from trace_etl.devtools.history.report import HistoryReport

_EXIT_REFUTED = 1
_EXIT_UNREADABLE = 2


def check_history(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Recorded run (JSON lines).")],
    clock_skew: Annotated[
        float,
        typer.Option(
            min=0, help="Maximum clock difference between recorder and Postgres, in seconds."
        ),
    ] = 1.0,
    as_json: JsonOption = False,
) -> None:
    """Check the task invariants of a recorded run.

    Exit codes: 0 if they are proven, 1 if one is refuted, 2 if the file cannot be read.
    """
    report = _check_file(file, clock_skew)
    if as_json:
        print_json(_make_document(report))
    else:
        _print_report(report)
    raise typer.Exit(0 if report.proven else _EXIT_REFUTED)


def _check_file(file: Path, clock_skew: float) -> "HistoryReport":
    from trace_etl.devtools.history.checker import check
    from trace_etl.devtools.history.lines import Unreadable, parse

    try:
        with file.open(encoding="utf-8") as lines:
            return check(parse(lines), clock_skew=clock_skew)
    except (OSError, UnicodeDecodeError, Unreadable) as error:
        typer.echo(f"error: {file}: {error}", err=True)
        raise typer.Exit(_EXIT_UNREADABLE) from error


def _make_document(report: "HistoryReport") -> dict[str, Any]:
    from dataclasses import asdict

    return {"proven": report.proven, **asdict(report)}


def _print_report(report: "HistoryReport") -> None:
    for violation in report.violations:
        lines = ", ".join(str(line) for line in violation.lines)
        typer.echo(f"{violation.invariant}: {violation.message} (lines {lines})")
    for gap in report.unchecked:
        typer.echo(f"not checked: {gap}")
    typer.echo(
        f"{'Proven' if report.proven else 'Refuted'}: {report.calls} calls"
        f" ({report.unanswered} unanswered), {report.tasks} tasks,"
        f" {report.attempts} attempts, {len(report.violations)} violations."
    )
