"""What operators over tables may be told: decode, enrich, query, check, compact."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from trace_etl.dag.abi import EventAbi, find_event, parse_event

Address = Annotated[str, StringConstraints(pattern=r"^0x[0-9a-fA-F]{40}$")]
Column = Annotated[str, StringConstraints(min_length=1, max_length=128)]
OutputName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,127}$")]
UNDECODED = "undecoded"
TUNING: dict[str, Any] = {"x-tuning": True}
"""For `json_schema_extra`: the field says how the work is done, and shapes no rows."""


class OperatorConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def tuning(cls) -> frozenset[str]:
        """The fields that may change without a new generation."""
        fields = cls.model_fields.items()
        return frozenset(name for name, f in fields if f.json_schema_extra == TUNING)

    def check_job(self, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> str | None:
        """What is wrong between this config and the job's inputs and outputs, if anything."""
        return None


class DecodeConfig(OperatorConfig):
    events: dict[OutputName, str | dict[str, Any]] = Field(
        min_length=1,
        description="Output to event: a signature such as `Transfer(address indexed from, …)`, a "
        "JSON ABI entry, or the name of an event in `abi`.",
    )
    abi: list[dict[str, Any]] = Field([], description="A contract's JSON ABI, to name events of.")
    addresses: list[Address] = Field(
        [],
        description="Only logs of these contracts: proxies and whatever else shares the ABI. "
        "Anonymous events need them.",
    )

    @field_validator("events", mode="after")
    @classmethod
    def _parse(cls, events: dict[str, Any]) -> dict[str, Any]:
        for given in events.values():
            if not isinstance(given, str) or "(" in given:
                parse_event(given)
        return events

    @field_validator("abi", mode="after")
    @classmethod
    def _parse_abi(cls, abi: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for entry in abi:
            if entry.get("type") == "event":
                parse_event(entry)
        return abi

    def parsed(self) -> dict[str, EventAbi]:
        """Every output's event. Raises BadAbi."""
        return {output: self._event(given) for output, given in self.events.items()}

    def check_job(self, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> str | None:
        try:
            events = self.parsed()
        except ValueError as error:
            return str(error)
        if any(event.anonymous for event in events.values()) and not self.addresses:
            return "anonymous events have no name in their logs: list the contracts' `addresses`"
        wanted = set(self.events)
        if set(outputs) - {UNDECODED} != wanted:
            names = ", ".join(sorted(wanted))
            return f"outputs must be those of `events` ({names}) and, if you like, {UNDECODED}"
        return None

    def _event(self, given: str | Mapping[str, Any]) -> EventAbi:
        if isinstance(given, str) and "(" not in given:
            return find_event(self.abi, given)
        if isinstance(given, str) and self.abi and given in _signatures(self.abi):
            return find_event(self.abi, given)
        return parse_event(given)


def _signatures(abi: list[dict[str, Any]]) -> list[str]:
    return [parse_event(entry).canonical for entry in abi if entry.get("type") == "event"]


class TransfersConfig(OperatorConfig):
    tokens: list[Address] = Field([], description="Only transfers of these tokens; all if empty.")


class EnrichConfig(OperatorConfig):
    on: dict[Column, Column] = Field(
        min_length=1, description="What must match: column of the first input to one of the second."
    )
    columns: list[Column] = Field(
        [], description="Columns to take from the second input; all but those matched if empty."
    )
    prefix: str = Field("", max_length=64, description="Put before the names of what is taken.")
    how: Literal["left", "inner"] = Field(
        "left", description="`inner` drops rows of the first input without a match."
    )
    matches: Literal["one", "all"] = Field(
        "one", description="With several matches: the least of them, or a row for each."
    )
    labels: dict[str, str] = Field(
        {}, description="Instead of a second input: value (0x… for bytes) to label."
    )

    def check_job(self, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> str | None:
        wanted = 1 if self.labels else 2
        if len(inputs) != wanted:
            rest = "with `labels`" if self.labels else "the second is what rows are looked up in"
            return f"needs {wanted} input{'s' * (wanted > 1)}, not {len(inputs)}: {rest}"
        if self.labels and list(self.on.values()) != ["value"]:
            return "`labels` are looked up by one column: `on: {your_column: value}`"
        return None


class QueryConfig(OperatorConfig):
    sql: str = Field(min_length=1, description="One SELECT over the inputs, by their names.")
    format: Literal["parquet", "csv", "json"] = Field(
        "parquet",
        description="Of the result. Bytes become 0x… in `csv` and `json`; only `parquet` can be "
        "another job's input.",
    )


class IntegrityConfig(OperatorConfig):
    table: Literal["blocks", "transactions", "logs"] = Field(
        description="What the input holds: the columns are compared with the chain's own."
    )
    rpc: str = Field("default", min_length=1, description="Name of the RPC pool to compare with.")
    sample_blocks: int | None = Field(
        None,
        ge=1,
        le=100,
        description="Compare so many blocks, evenly spread; all of them by default. Gaps and "
        "duplicates are always looked for everywhere.",
    )
    most_findings: int = Field(
        1000, ge=1, le=100_000, description="How many findings to report, lowest blocks first."
    )


class CompactConfig(OperatorConfig):
    size: int | None = Field(
        None,
        ge=1,
        le=10_000_000,
        description="Compact ranges of exactly so many blocks; a task for another range, such as a "
        "small partition's own, does nothing.",
    )
    finality_depth_blocks: int | None = Field(
        None,
        ge=0,
        le=1_000_000,
        description="Wait until the range is so many blocks behind the chain's head.",
    )
    rpc: str = Field("default", min_length=1, description="RPC pool to ask for the head.")

    def check_job(self, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> str | None:
        if len(inputs) not in (1, 2):
            return "needs one input, or two: what tells of ranges, and then the rows"
        if len(inputs) == 2 and self.size is None:
            return "with two inputs, `size` must say which ranges to compact"
        return None


class TrimConfig(OperatorConfig):
    blocks_per_delete: int = Field(
        1000, ge=1, le=1_000_000, description="Blocks to delete in one transaction."
    )
