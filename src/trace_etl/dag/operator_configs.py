"""Config models of the operators that read tables: decode, enrich, query, check, compact, trim."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from trace_etl.dag.abi import EventAbi, find_event, parse_event
from trace_etl.dag.chain.rules import PRESETS, Level, check_exceptions
from trace_etl.dag.chain.tables import (
    CHAIN_TABLES,
    ColumnChoice,
    ColumnSet,
    find_unknown_columns,
)

Address = Annotated[str, StringConstraints(pattern=r"^0x[0-9a-fA-F]{40}$")]
ColumnName = Annotated[str, StringConstraints(min_length=1, max_length=128)]
OutputName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,127}$")]
UNDECODED = "undecoded"
TUNING: dict[str, Any] = {"x-tuning": True}
"""For `json_schema_extra`: the field affects how a task runs, but does not change the rows."""


class OperatorConfig(BaseModel):
    """The config of an operator. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def tuning(cls) -> frozenset[str]:
        """Return the fields that can change without a new generation."""
        fields = cls.model_fields.items()
        return frozenset(name for name, f in fields if f.json_schema_extra == TUNING)

    def check_job(self, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> str | None:
        """Return why this config does not fit the job's inputs and outputs; None: it fits."""
        return None


class ChainConfig(OperatorConfig):
    """The config of operators that read a chain."""

    rpc: str = Field("default", min_length=1, description="Name of the RPC pool to read from.")
    verify: Level | None = Field(
        None,
        description="What is proven before rows are written: `links` (header hashes, parents, gas "
        "sums, log indices), `bloom` (and the log bloom) or `roots` (and the roots of transactions, "
        "receipts and withdrawals). Default: the setting of the RPC pool, else `roots`.",
        json_schema_extra=TUNING,
    )
    verify_senders: bool = Field(
        False,
        description="Recover senders from signatures. Needs the extra `senders` on workers.",
        json_schema_extra=TUNING,
    )
    columns: ColumnSet | list[ColumnName] = Field(
        "standard",
        description="Columns of blocks, transactions and logs: `minimal`, `standard` (cryo's), `full` "
        "(everything a node reports), or names of columns, which are added to the minimal ones.",
        json_schema_extra=TUNING,
    )
    exceptions: list[str] = Field(
        [],
        description="What the chain does differently from Ethereum: presets "
        f"({', '.join(f'`{name}`' for name in PRESETS)}), or names of checks to skip.",
        json_schema_extra=TUNING,
    )

    @field_validator("exceptions", mode="after")
    @classmethod
    def _check_exceptions(cls, exceptions: list[str]) -> list[str]:
        return check_exceptions(exceptions)

    @property
    def column_choice(self) -> ColumnChoice:
        return self.columns if isinstance(self.columns, str) else tuple(self.columns)

    def check_job(self, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> str | None:
        if isinstance(self.columns, str):
            return None
        tables = [name.removeprefix("hot_") for name in outputs]
        unknown = find_unknown_columns([t for t in tables if t in CHAIN_TABLES], self.columns)
        return f"columns: no output has a column `{unknown[0]}`" if unknown else None


class DecodeConfig(OperatorConfig):
    events: dict[OutputName, str | dict[str, Any]] = Field(
        min_length=1,
        description="Maps each output to an event: a signature such as `Transfer(address indexed "
        "from, …)`, a JSON ABI entry, or the name of an event in `abi`.",
    )
    abi: list[dict[str, Any]] = Field(
        [], description="JSON ABI of a contract, from which `events` can name events."
    )
    addresses: list[Address] = Field(
        [],
        description="Decode only logs of these contracts, such as proxies that share the ABI. "
        "Required for anonymous events.",
    )

    @field_validator("events", mode="after")
    @classmethod
    def _check_events(cls, events: dict[str, Any]) -> dict[str, Any]:
        for event in events.values():
            if not isinstance(event, str) or "(" in event:
                parse_event(event)
        return events

    @field_validator("abi", mode="after")
    @classmethod
    def _check_abi(cls, abi: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for entry in abi:
            if entry.get("type") == "event":
                parse_event(entry)
        return abi

    def parse_events(self) -> dict[str, EventAbi]:
        """Return the event of each output. Raises BadAbi."""
        return {output: self._find_event(event) for output, event in self.events.items()}

    def check_job(self, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> str | None:
        try:
            events = self.parse_events()
        except ValueError as error:
            return str(error)
        if any(event.anonymous for event in events.values()) and not self.addresses:
            return "anonymous events cannot be recognised by their logs; list the contracts in `addresses`"
        expected = set(self.events)
        if set(outputs) - {UNDECODED} != expected:
            names = ", ".join(sorted(expected))
            return f"outputs must be those of `events` ({names}) and optionally {UNDECODED}"
        return None

    def _find_event(self, event: str | Mapping[str, Any]) -> EventAbi:
        if isinstance(event, str) and "(" not in event:
            return find_event(self.abi, event)
        if isinstance(event, str) and self.abi and event in _list_signatures(self.abi):
            return find_event(self.abi, event)
        return parse_event(event)


def _list_signatures(abi: list[dict[str, Any]]) -> list[str]:
    return [parse_event(entry).canonical for entry in abi if entry.get("type") == "event"]


class TransfersConfig(OperatorConfig):
    tokens: list[Address] = Field(
        [], description="Keep only transfers of these tokens. Default: all tokens."
    )


class EnrichConfig(OperatorConfig):
    on: dict[ColumnName, ColumnName] = Field(
        min_length=1,
        description="Columns to join on: column of the first input to column of the second input.",
    )
    columns: list[ColumnName] = Field(
        [], description="Columns to add from the second input. Default: all except those in `on`."
    )
    prefix: str = Field("", max_length=64, description="Prefix for the names of the added columns.")
    how: Literal["left", "inner"] = Field(
        "left", description="`inner` drops rows of the first input that have no match."
    )
    matches: Literal["one", "all"] = Field(
        "one",
        description="With several matches: `one` uses the smallest match, `all` writes a row per match.",
    )
    labels: dict[str, str] = Field(
        {}, description="Labels by value (0x… for bytes), instead of a second input."
    )

    def check_job(self, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> str | None:
        expected = 1 if self.labels else 2
        if len(inputs) != expected:
            reason = (
                "`labels` replace the second" if self.labels else "the second is the lookup table"
            )
            return f"needs {expected} input{'s' * (expected > 1)}, not {len(inputs)}: {reason}"
        if self.labels and list(self.on.values()) != ["value"]:
            return "`labels` need exactly one column in `on`, as `on: {your_column: value}`"
        return None


class QueryConfig(OperatorConfig):
    sql: str = Field(
        min_length=1,
        description="One SELECT statement. The inputs are tables with the names of the inputs.",
    )
    format: Literal["parquet", "csv", "json"] = Field(
        "parquet",
        description="File format of the result. `csv` and `json` write bytes as 0x… texts and cannot be "
        "the input of another job. Queries read `csv` with the types of its columns, and `json` as one "
        "column `line`.",
    )


class IntegrityConfig(OperatorConfig):
    table: Literal["blocks", "transactions", "logs"] = Field(
        description="Kind of rows in the input, which are compared with the chain."
    )
    rpc: str = Field("default", min_length=1, description="Name of the RPC pool to compare with.")
    sample_blocks: int | None = Field(
        None,
        ge=1,
        le=100,
        description="Number of blocks to compare, evenly spread. Default: all blocks. Gaps and "
        "duplicates are always searched in all blocks.",
    )
    most_findings: int = Field(
        1000,
        ge=1,
        le=100_000,
        description="Maximum number of findings to report, lowest blocks first.",
    )


class CompactConfig(OperatorConfig):
    size: int | None = Field(
        None,
        ge=1,
        le=10_000_000,
        description="Compact only ranges of exactly this many blocks. A task for another range, "
        "such as a small partition, does nothing.",
    )
    finality_depth_blocks: int | None = Field(
        None,
        ge=0,
        le=1_000_000,
        description="Wait until the range is this many blocks behind the head of the chain.",
    )
    rpc: str = Field(
        "default",
        min_length=1,
        description="Name of the RPC pool that reports the head of the chain.",
    )

    def check_job(self, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> str | None:
        if len(inputs) not in (1, 2):
            return (
                "needs one input, or two: first the one whose events name the ranges, then the rows"
            )
        if len(inputs) == 2 and self.size is None:
            return "needs `size` with two inputs, to select the ranges to compact"
        return None


class TrimConfig(OperatorConfig):
    blocks_per_delete: int = Field(
        1000, ge=1, le=1_000_000, description="Blocks to delete in one transaction."
    )
