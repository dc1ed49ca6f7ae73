"""Read the block range or cursor of a webhook delivery from its body."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from trace_etl.model.errors import Fault, Invalid
from trace_etl.model.scope import MAX_BLOCK, Range

DEFAULT_SCOPE: Mapping[str, str] = {"start": "start", "end": "end"}


@dataclass(frozen=True)
class WebhookScope:
    """The scope of a delivery: a block range, a cursor, or neither if the delivery is its own scope."""

    span: Range | None
    cursor: int | None

    def partition_key(self, delivery_id: str) -> str | None:
        """Return the partition key of the event: the block range, or the delivery itself."""
        if self.span is not None:
            return self.span.key
        return f"delivery-{delivery_id}" if self.cursor is None else None


def find_scope(body: object, fields: Mapping[str, str] | None) -> WebhookScope:
    """Read the scope of a delivery. Raises Invalid with the field of the body.

    Without `fields`, the body may have `start` and `end`; otherwise the delivery is its own scope.
    """
    if fields is None:
        if _list_names(body).isdisjoint(DEFAULT_SCOPE):
            return WebhookScope(None, None)
        fields = DEFAULT_SCOPE
    faults: list[Fault] = []
    numbers = {name: _read_number(body, path, faults) for name, path in fields.items()}
    if faults:
        raise Invalid(faults)
    if "cursor" in numbers:
        return WebhookScope(None, numbers["cursor"])
    if numbers["end"] < numbers["start"]:
        rule = (
            f"must not be less than {fields['start']} ({numbers['start']}), but is {numbers['end']}"
        )
        raise Invalid([Fault(fields["end"], rule)])
    return WebhookScope(Range(numbers["start"], numbers["end"]), None)


def _list_names(body: object) -> set[str]:
    return set(cast("Mapping[str, Any]", body)) if isinstance(body, Mapping) else set()


def _read_number(body: object, path: str, faults: list[Fault]) -> int:
    value: object = body
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            faults.append(Fault(path, "is required and missing; send it"))
            return 0
        value = cast(Mapping[str, Any], value)[part]
    number = _parse_integer(value)
    if number is None or not 0 <= number <= MAX_BLOCK:
        faults.append(Fault(path, f"must be a whole number from 0 to {MAX_BLOCK}"))
        return 0
    return number


def _parse_integer(value: object) -> int | None:
    """Parse an integer from a number, or from a text in decimal or 0x form."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str) or len(value) > 20 or not value.isascii():
        return None
    digits, base = (value[2:], 16) if value[:2].lower() == "0x" else (value, 10)
    if not digits.isalnum():
        return None
    try:
        return int(digits, base)
    except ValueError:
        return None
