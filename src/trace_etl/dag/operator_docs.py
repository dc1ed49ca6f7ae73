"""Read what an operator does from its docstrings, without importing Spark."""

import ast
import importlib.util
import inspect
from pathlib import Path

import trace_etl
from trace_etl.dag.operator import Operator

_MODULES = Path(trace_etl.__file__).parent / "spark" / "operators"


def read_summary(operator: Operator) -> str:
    """Return the first paragraph of the docstring of the operator's module, or of its config."""
    file = _find_file(operator)
    text = ast.get_docstring(ast.parse(file.read_text())) if file else None
    return (text or inspect.getdoc(operator.config) or "").partition("\n\n")[0].replace("\n", " ")


def _find_file(operator: Operator) -> Path | None:
    if not operator.module:
        file = _MODULES / f"{operator.name}.py"
        return file if file.is_file() else None
    spec = importlib.util.find_spec(operator.module)
    return Path(spec.origin) if spec is not None and spec.origin else None
