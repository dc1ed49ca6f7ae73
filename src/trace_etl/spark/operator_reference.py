"""The page about every operator, from its code: `python -m` this, and read standard output."""

import ast
import inspect
import sys
from pathlib import Path
from typing import Any

from trace_etl.dag.operators import OPERATORS, Operator

_HEAD = (
    "# Operators\n\n"
    "Written by `make reference` from what the operators declare. A job names one as `operator`; "
    "its settings are the job's `config`, and anything else in it is refused at deploy.\n"
)
_PLACE = Path(__file__).parent / "operators"


def page() -> str:
    """The whole page, in Markdown."""
    named = sorted(OPERATORS.keys() - {"source"})
    return "\n".join([_HEAD, *(_section(OPERATORS[name]) for name in named)])


def _section(operator: Operator) -> str:
    lines = [f"## `{operator.name}`", "", _summary(operator), ""]
    lines.append(
        f"Runs in {_listed(operator.runtimes)}; can {_listed(operator.update_strategies)}."
    )
    schema = operator.config.model_json_schema(by_alias=True)
    fields: dict[str, Any] = schema.get("properties", {})
    if fields:
        lines += ["", "| config | type | default | meaning |", "| --- | --- | --- | --- |"]
        required = schema.get("required", [])
        lines += [_row(name, field, schema, name in required) for name, field in fields.items()]
    return "\n".join([*lines, ""])


def _summary(operator: Operator) -> str:
    """The first line of the module that runs it, or of its config."""
    module = _PLACE / f"{operator.name}.py"
    if module.is_file():
        text = ast.get_docstring(ast.parse(module.read_text())) or ""
    else:
        text = inspect.getdoc(operator.config) or ""
    return text.partition("\n\n")[0].replace("\n", " ")


def _row(name: str, field: dict[str, Any], schema: dict[str, Any], required: bool) -> str:
    default = "required" if required else f"`{_shown(field.get('default'))}`"
    meaning = str(field.get("description", "")).replace("|", "\\|")
    return f"| `{name}` | {_type(field, schema)} | {default} | {meaning} |"


def _type(field: dict[str, Any], schema: dict[str, Any]) -> str:
    if "$ref" in field:
        return _type(schema["$defs"][field["$ref"].rpartition("/")[2]], schema)
    if "anyOf" in field:
        kinds = [_type(one, schema) for one in field["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in field:
        return " or ".join(f"`{one}`" for one in field["enum"])
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}), schema)}"
    if field.get("type") == "object":
        return "map"
    return f"{field.get('type', 'any')}{_bounds(field)}"


def _bounds(field: dict[str, Any]) -> str:
    least, most = field.get("minimum"), field.get("maximum")
    if least is None and most is None:
        return ""
    if most is None:
        return f", {least} or more"
    return f", {least} to {most}" if least is not None else f", up to {most}"


def _shown(value: object) -> str:
    return (
        {None: "none", "": "''"}.get(value, str(value))
        if isinstance(value, str | None)
        else str(value)
    )


def _listed(words: tuple[str, ...]) -> str:
    return " or ".join(f"`{word}`" for word in words)


if __name__ == "__main__":
    sys.stdout.write(page())
