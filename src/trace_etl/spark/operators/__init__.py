"""The operators that workers run: one module each, with the name declared in `dag.operators`.

`run` returns the rows to write, or a `TaskResult` if the operator has written everything itself.
"""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from pyspark.sql.types import StructType

from trace_etl.api.task.lifecycle import TaskResult
from trace_etl.dag.operators import OPERATORS
from trace_etl.spark.context import OperatorContext
from trace_etl.spark.errors import BadTask
from trace_etl.spark.io.inputs import Input
from trace_etl.spark.io.writers import Result


class OutputSchemas(Protocol):
    """Returns the columns of an operator's outputs, for operators that cannot run on empty inputs."""

    def __call__(
        self, outputs: Sequence[str], inputs: Sequence[Input], config: Any, /
    ) -> Mapping[str, StructType]: ...


class RunOperator(Protocol):
    """Runs one task. `config` is an instance of the operator's config class."""

    def __call__(self, context: OperatorContext, config: Any, /) -> Result | TaskResult: ...


def find_operator(name: str) -> RunOperator:
    """Return an operator's `run` function. Raises BadTask if workers cannot run the operator."""
    return cast("RunOperator", _find_module(name).run)


def find_output_schemas(name: str) -> OutputSchemas | None:
    """Return the operator's `output_schemas` function, if any. Raises BadTask."""
    return getattr(_find_module(name), "output_schemas", None)


def _find_module(name: str) -> Any:
    operator = OPERATORS.get(name)
    if operator is None or not operator.is_for_workers:
        raise BadTask(f"operator {name}: this worker cannot run it; update the worker")
    return importlib.import_module(operator.module or f"{__name__}.{name}")
