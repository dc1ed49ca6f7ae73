"""`trace doctor`: test what this machine can isolate."""

from dataclasses import asdict

import typer

from trace_etl.cli.client import EXIT_REJECTED
from trace_etl.cli.options import JsonOption, WideOption
from trace_etl.cli.output import print_json, print_rows


def doctor(wide: WideOption = False, as_json: JsonOption = False) -> None:
    """Test how well this machine isolates code.

    Exit code 1 if a required layer is missing: functions then do not run.
    """
    from trace_etl.sandbox.doctor import examine_sandbox

    findings = examine_sandbox()
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        rows = [
            (f.layer, "works" if f.works else "missing", f.detail, f.fix if not f.works else "")
            for f in findings
        ]
        print_rows(["layer", "state", "detail", "fix"], rows)
    if any(finding.is_required and not finding.works for finding in findings):
        raise typer.Exit(EXIT_REJECTED)
