"""Declarations of operators. Packages that provide operators import this module."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trace_etl.dag.chain.tables import DescribedColumn
from trace_etl.dag.operator_configs import TUNING, OperatorConfig
from trace_etl.dag.runtimes import Launcher
from trace_etl.model.storage import PARQUET

__all__ = ["TUNING", "Operator", "OperatorConfig"]


def one_output(outputs: tuple[str, ...]) -> str | None:
    """Require exactly one output."""
    return None if len(outputs) == 1 else "must be exactly one"


def some_outputs(outputs: tuple[str, ...]) -> str | None:
    """Require at least one output."""
    return None if outputs else "must be at least one"


def some_inputs(inputs: tuple[str, ...]) -> str | None:
    """Require at least one input."""
    return None if inputs else "must be at least one"


def one_input(inputs: tuple[str, ...]) -> str | None:
    """Require exactly one input."""
    return None if len(inputs) == 1 else "must be exactly one"


@dataclass(frozen=True)
class Operator:
    """An operator: its config, its launchers, its possible inputs and outputs, and its traits."""

    name: str
    config: type[OperatorConfig]
    launchers: tuple[Launcher, ...]
    """The launchers that can run it. A job uses a runtime with one of them; the first one by default."""
    check_outputs: Callable[[tuple[str, ...]], str | None]
    """Return why the names of the outputs are invalid; None: they are valid."""
    check_inputs: Callable[[tuple[str, ...]], str | None] = lambda inputs: None
    """Return why the names of the inputs are invalid; None: they are valid."""
    update_strategies: tuple[str, ...] = ("replace",)
    needs_udf: bool = False
    """Whether it runs a user-defined function, which the job names in `udf`."""
    takes_secrets: bool = False
    """Whether a job may name secrets for it. A job on an untrusted runtime never can."""
    needs_buffered_outputs: bool = False
    """Whether its outputs must be buffered datasets: untrusted code never writes to Postgres."""
    published_as: str = ""
    """The buffered dataset of the platform that its outputs must be published as; empty: any."""
    is_source: bool = False
    """Whether it runs for source jobs only, once for each tick, delivery or trigger."""
    never_ends: bool = False
    """Whether it runs until it is stopped. Such a task does not use a slot of its worker."""
    can_invalidate_inputs: bool = False
    """Whether it checks its inputs and may report defects, which invalidates them."""
    forwards_scopes: bool = False
    """Whether it only forwards block ranges to its consumers and writes no rows."""
    writes_nothing: bool = False
    """Whether it publishes no partition: its output only shows which scopes it has processed."""
    needs_ranges: bool = False
    """Whether each task needs a block range, which ticks and payloads do not have."""
    repartitions: bool = False
    """Whether it accepts inputs with partitions of different sizes and writes its own `size`."""
    writes_tables: bool = False
    """Whether its outputs are tables of Postgres data, whatever the update strategy."""
    runs_sql: bool = False
    """Whether its config has a `sql` query, which Spark can check before a deploy."""
    has_format: bool = False
    """Whether its config has a `format`, the format of the files that it writes."""
    columns: Callable[[str], tuple[DescribedColumn, ...]] = lambda output: ()
    """Return the columns of an output, if every job of the operator writes the same ones."""
    optional_columns: Callable[[str], tuple[DescribedColumn, ...]] = lambda output: ()
    """Return the columns that a job may add to `columns`."""
    comments: Mapping[str, str] = field(default_factory=dict[str, str])
    """Comments of columns, by name, if jobs of the operator write different columns."""
    keeps_columns: bool = False
    """Whether it writes the rows of its first input with the same columns."""
    is_implicit: bool = False
    """Whether the platform assigns it to jobs. DAG files cannot name it."""
    module: str = ""
    """The module with the `run` function of an operator from another package."""
    package: str = ""
    """Name and version of the package that provides it. The platform sets it; empty: Trace itself."""

    @property
    def is_for_workers(self) -> bool:
        """Whether operator hosts run it, from `module` or the module of `spark.operators` with its name."""
        return "spark" in self.launchers or "process" in self.launchers

    def output_format(self, config: Mapping[str, Any]) -> str:
        """Return the format of the files that a job with this config writes."""
        return str(config.get("format", PARQUET)) if self.has_format else PARQUET
