"""Convert values of DuckDB to values that JSON can represent."""

import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, cast

_EXACT = 2**53  # readers that parse numbers as doubles would round larger integers


def json_safe(value: Any) -> Any:
    """Return bytes as 0x…, times as ISO 8601, decimals and large integers as strings."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return value if -_EXACT <= value <= _EXACT else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else _name_non_finite(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "0x" + bytes(cast(bytes, value)).hex()
    return _convert_other(value)


def _convert_other(value: object) -> Any:
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return _format_duration(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, dict):
        items = cast(dict[object, object], value).items()
        return {_convert_key(k): json_safe(v) for k, v in items}
    if isinstance(value, (list, tuple, set)):
        return [json_safe(v) for v in cast(list[object], value)]
    return str(value)


def _convert_key(value: object) -> str:
    safe = json_safe(value)
    return safe if isinstance(safe, str) else str(safe)


def _name_non_finite(value: float) -> str:
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _format_duration(value: timedelta) -> str:
    sign = "-" if value < timedelta(0) else ""
    value = abs(value)
    seconds = f"{value.seconds}.{value.microseconds:06d}".rstrip("0").rstrip(".")
    return f"{sign}P{value.days}DT{seconds}S"
