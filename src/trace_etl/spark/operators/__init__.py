"""One file per operator, named as it is declared in `dag.operators`; its `run` does the work.

An operator hands back what is to be written, or, having done everything itself, what to report.
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
    """The columns of an operator's outputs, for one that must not run without data or a node."""

    def __call__(
        self, outputs: Sequence[str], inputs: Sequence[Input], /
    ) -> Mapping[str, StructType]: ...


class RunOperator(Protocol):
    """An operator's work. It gets the config in the class it declared."""

    def __call__(self, context: OperatorContext, config: Any, /) -> Result | TaskResult: ...


def find_operator(name: str) -> RunOperator:
    """The code of a declared operator. Raises BadTask for one that workers do not have."""
    return cast("RunOperator", _find_module(name).run)


def find_output_schemas(name: str) -> OutputSchemas | None:
    """The operator's `output_schemas`, if it has one. Raises BadTask like `find_operator`."""
    return getattr(_find_module(name), "output_schemas", None)


def _find_module(name: str) -> Any:
    operator = OPERATORS.get(name)
    if operator is None or not operator.is_for_workers:
        raise BadTask(f"operator {name}: this worker does not run it")
    return importlib.import_module(f"{__name__}.{name}")
