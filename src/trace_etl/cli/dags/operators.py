"""`trace operators`."""

from typing import Any

from trace_etl.cli.options import JsonOption, WideOption
from trace_etl.cli.output import print_json, print_rows


def operators(wide: WideOption = False, as_json: JsonOption = False) -> None:
    """List the operators that jobs can use.

    Operators of installed packages are included.
    """
    from trace_etl.dag.operator_docs import read_summary
    from trace_etl.dag.operators import NAMEABLE, OPERATORS, PACKAGED

    known = [OPERATORS[name] for name in NAMEABLE]
    if as_json:
        described: list[dict[str, Any]] = [
            {
                "name": operator.name,
                "package": operator.package or None,
                "launchers": list(operator.launchers),
                "update_strategies": list(operator.update_strategies),
                "takes_secrets": operator.takes_secrets,
                "summary": read_summary(operator),
                "config": operator.config.model_json_schema(by_alias=True),
                "fault": None,
            }
            for operator in known
        ]
        faults = [{"name": name, "fault": fault} for name, fault in PACKAGED.faults.items()]
        print_json([*described, *faults])
        return
    rows = [
        (op.name, op.package or "trace", ", ".join(op.launchers), read_summary(op)) for op in known
    ]
    rows += [(name, "", "", f"cannot be used: {fault}") for name, fault in PACKAGED.faults.items()]
    print_rows(["operator", "package", "launchers", "does"], rows)
