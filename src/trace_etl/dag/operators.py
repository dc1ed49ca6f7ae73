"""The operators: their configs, launchers, inputs, outputs and traits. The code is in `spark` and `dispatcher`."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from trace_etl.dag.chain.rules import FinalityTag
from trace_etl.dag.chain.tables import (
    CHAIN_TABLES,
    FINDINGS,
    LOG_COMMENTS,
    TRANSFER_COMMENTS,
    ColumnSet,
    DescribedColumn,
    list_columns,
)
from trace_etl.dag.operator import (
    Operator,
    one_input,
    one_output,
    some_inputs,
    some_outputs,
)
from trace_etl.dag.operator_configs import (
    TUNING,
    ChainConfig,
    ColumnName,
    CompactConfig,
    DecodeConfig,
    EnrichConfig,
    IntegrityConfig,
    OperatorConfig,
    QueryConfig,
    TransfersConfig,
    TrimConfig,
)
from trace_etl.dag.operator_packages import load_packaged
from trace_etl.dag.runtimes import Launcher
from trace_etl.model.scope import MAX_BLOCK

__all__ = ["Operator", "OperatorConfig"]


class NoConfig(OperatorConfig):
    """The empty config of sources that only forward events."""


class SplitConfig(OperatorConfig):
    size: int = Field(1000, ge=1, le=10_000_000, description="Blocks per partition.")


class AggregateConfig(OperatorConfig):
    """Collect input events into aligned ranges, and emit an event for each complete range."""

    size: int = Field(10_000, ge=1, le=10_000_000, description="Blocks per range.")
    start: int = Field(
        0, ge=0, le=MAX_BLOCK, description="First block, for an input whose events are cursors."
    )


class IngestConfig(ChainConfig):
    finality: FinalityTag | Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        "finalized",
        description="Blocks that the task reads: up to the node's `finalized` block, or a number of "
        "confirmations behind the head, for chains without that tag. Later blocks make the task "
        "wait. `provisional` reads up to the head, marks partitions with blocks that are not final, "
        "reads them again when they are, and replaces those that the chain dropped. 0 reads up to "
        "the head; a reorganisation then leaves wrong rows.",
        json_schema_extra=TUNING,
    )
    batch: int = Field(
        50, ge=1, le=1000, description="Blocks per JSON-RPC request.", json_schema_extra=TUNING
    )


class FollowConfig(ChainConfig):
    # A hot table keeps its columns: other ones are a new generation with a table of its own.
    columns: ColumnSet | list[ColumnName] = Field(
        "standard", description=ChainConfig.model_fields["columns"].description
    )
    engine: Literal["loop", "streaming"] = Field(
        "loop",
        description="What reads the chain: a thread of the worker, or a Structured Streaming query.",
        json_schema_extra=TUNING,
    )
    start_block: int | None = Field(
        None,
        ge=0,
        description="First block. Default: the head of the chain when the job first runs.",
    )
    batch: int = Field(
        50, ge=1, le=1000, description="Blocks per JSON-RPC request.", json_schema_extra=TUNING
    )
    blocks_per_commit: int = Field(
        100,
        ge=1,
        le=10_000,
        description="Blocks per transaction while catching up with the chain.",
        json_schema_extra=TUNING,
    )
    poll_seconds: float = Field(
        1.0,
        ge=0.05,
        le=60,
        description="Seconds between polls for a new block.",
        json_schema_extra=TUNING,
    )
    finality_depth_blocks: int = Field(
        2048,
        ge=1,
        le=100_000,
        description="Blocks after which a block is final, for nodes that do not report finality.",
    )
    patience_seconds: float = Field(
        600,
        ge=1,
        le=86_400,
        description="Seconds without an answer from any node after which the attempt fails.",
        json_schema_extra=TUNING,
    )


class SqlConfig(OperatorConfig):
    sql: str = Field(
        min_length=1,
        description="One SELECT statement. The inputs are tables with the names of the inputs.",
    )


class FunctionConfig(OperatorConfig):
    """Any settings: the function gets them as `task.config`."""

    model_config = ConfigDict(extra="allow", frozen=True)


class SourceFunctionConfig(FunctionConfig):
    """Run a user-defined function that emits the events of a source.

    Any settings: the function gets them as `task.config`.
    """


class AlertConfig(FunctionConfig):
    """Run a user-defined function that publishes alerts to the dataset `alert_events`.

    Any settings: the function gets them as `task.config`.
    """


class NativeConfig(OperatorConfig):
    program: str = Field(
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$",
        description="Name of an executable file in the directory of programs.",
    )
    settings: dict[str, Any] = Field({}, description="What the program gets as `config`.")


_SPARK: tuple[Launcher, ...] = ("spark",)
_PROCESS: tuple[Launcher, ...] = ("process",)
_ISOLATED: tuple[Launcher, ...] = ("sandbox", "lambda")


_CHAIN = ("blocks", "transactions", "logs")
_TABLES = (*_CHAIN, "traces", "withdrawals", "uncles")


def _require_two_inputs(inputs: tuple[str, ...]) -> str | None:
    return None if len(inputs) == 2 else "must be two: the cold dataset, then the hot one"


def _check_chain_outputs(outputs: tuple[str, ...]) -> str | None:
    wrong = [name for name in outputs if name not in _TABLES]
    if wrong or not outputs:
        return f"must be one or more of {', '.join(_TABLES)}" + (
            f", not {wrong[0]}" if wrong else ""
        )
    return None


def _check_hot_outputs(outputs: tuple[str, ...]) -> str | None:
    known = [f"hot_{name}" for name in _CHAIN]
    wrong = [name for name in outputs if name not in known]
    if wrong or not outputs:
        return f"must be one or more of {', '.join(known)}" + (f", not {wrong[0]}" if wrong else "")
    return None


def _list_chain_columns(output: str) -> tuple[DescribedColumn, ...]:
    return CHAIN_TABLES.get(output.removeprefix("hot_"), ())


def _list_optional_columns(output: str) -> tuple[DescribedColumn, ...]:
    table = output.removeprefix("hot_")
    return list_columns(table) if table in CHAIN_TABLES else ()


_BOTH = ("replace", "append")
_SHIPPED: dict[str, Operator] = {
    op.name: op
    for op in (
        Operator(
            "source", NoConfig, ("dispatcher",), one_output, forwards_scopes=True, is_implicit=True
        ),
        Operator(
            "range_splitter",
            SplitConfig,
            ("dispatcher", *_SPARK),
            one_output,
            forwards_scopes=True,
            needs_ranges=True,
            repartitions=True,
        ),
        Operator(
            "range_aggregator",
            AggregateConfig,
            ("dispatcher",),
            one_output,
            one_input,
            forwards_scopes=True,
            needs_ranges=True,
            repartitions=True,
        ),
        Operator(
            "cryo_ingest",
            IngestConfig,
            _SPARK,
            _check_chain_outputs,
            needs_ranges=True,
            columns=_list_chain_columns,
            optional_columns=_list_optional_columns,
            takes_secrets=True,
        ),
        Operator(
            "block_follower",
            FollowConfig,
            _SPARK,
            _check_hot_outputs,
            never_ends=True,
            writes_tables=True,
            columns=_list_chain_columns,
            optional_columns=_list_optional_columns,
            takes_secrets=True,
        ),
        Operator(
            "decode_logs", DecodeConfig, _SPARK, some_outputs, one_input, comments=LOG_COMMENTS
        ),
        Operator(
            "erc20_transfers",
            TransfersConfig,
            _SPARK,
            one_output,
            one_input,
            comments=TRANSFER_COMMENTS,
        ),
        Operator("enrich", EnrichConfig, _SPARK, one_output, update_strategies=_BOTH),
        Operator("sql", SqlConfig, _SPARK, one_output, update_strategies=_BOTH, runs_sql=True),
        Operator("query", QueryConfig, _SPARK, one_output, runs_sql=True, has_format=True),
        Operator(
            "integrity_check",
            IntegrityConfig,
            _SPARK,
            one_output,
            one_input,
            can_invalidate_inputs=True,
            columns=lambda output: FINDINGS,
            takes_secrets=True,
        ),
        Operator(
            "parquet_compact",
            CompactConfig,
            _SPARK,
            one_output,
            needs_ranges=True,
            repartitions=True,
            keeps_columns=True,
            takes_secrets=True,
        ),
        Operator(
            "udf",
            FunctionConfig,
            _ISOLATED,
            some_outputs,
            update_strategies=("append",),
            needs_udf=True,
            needs_buffered_outputs=True,
        ),
        Operator(
            "alert_evaluate",
            AlertConfig,
            _ISOLATED,
            one_output,
            some_inputs,
            update_strategies=("append",),
            needs_udf=True,
            needs_buffered_outputs=True,
            published_as="alert_events",
        ),
        Operator(
            "udf_source",
            SourceFunctionConfig,
            ("lambda", "sandbox"),
            one_output,
            needs_udf=True,
            is_source=True,
            forwards_scopes=True,
        ),
        Operator("native", NativeConfig, _PROCESS, some_outputs, takes_secrets=True),
        Operator(
            "hot_trim",
            TrimConfig,
            _SPARK,
            one_output,
            _require_two_inputs,
            needs_ranges=True,
            repartitions=True,
            writes_nothing=True,
        ),
    )
}
PACKAGED = load_packaged(_SHIPPED)
"""The operators of other packages that are installed beside the platform."""
OPERATORS: dict[str, Operator] = {**_SHIPPED, **PACKAGED.operators}
NAMEABLE = sorted(op.name for op in OPERATORS.values() if not op.is_implicit)
"""The operators that a DAG file can name."""
FORWARDERS = frozenset(op.name for op in OPERATORS.values() if op.forwards_scopes)
"""The operators that only forward block ranges."""
NON_PUBLISHERS = frozenset(
    op.name for op in OPERATORS.values() if op.forwards_scopes or op.writes_nothing
)
"""The operators that never publish a partition."""
SQL_OPERATORS = frozenset(op.name for op in OPERATORS.values() if op.runs_sql)
"""The operators whose config has a SQL query."""
COLUMN_KEEPERS = frozenset(op.name for op in OPERATORS.values() if op.keeps_columns)
"""The operators that write the columns of their first input."""


def writes_table(operator: str, update_strategy: str) -> bool:
    """Return whether the outputs of a job are tables of Postgres data, not objects."""
    known = OPERATORS.get(operator)
    return update_strategy == "append" or (known is not None and known.writes_tables)
