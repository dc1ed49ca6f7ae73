"""What operators over tables may be told: decode, enrich, query, check, compact."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from trace_etl.plan.abi import EventAbi, find_event, parse_event

Address = Annotated[str, StringConstraints(pattern=r"^0x[0-9a-fA-F]{40}$")]
Column = Annotated[str, StringConstraints(min_length=1, max_length=128)]
OutputName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,127}$")]
UNDECODED = "undecoded"


class OperatorConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

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
