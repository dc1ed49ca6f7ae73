"""Parse the arguments of JSON-RPC calls, as strictly as geth does."""

import re
from typing import Any, cast

from trace_etl.devtools.devchain.rpc.errors import InvalidParams

_QUANTITY = re.compile(r"0x(?:0|[1-9a-fA-F][0-9a-fA-F]*)", re.ASCII)
_HASH = re.compile(r"0x[0-9a-fA-F]{64}", re.ASCII)
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}", re.ASCII)
_TAGS = frozenset({"latest", "earliest", "finalized", "safe", "pending"})


def positional(params: Any, required: int, optional: int = 0) -> list[Any]:
    """Return the arguments, padded with None. Raises InvalidParams if too few or too many."""
    if params is None:
        params = []
    if not isinstance(params, list):
        raise InvalidParams("non-array args")
    args = cast("list[Any]", params)
    maximum = required + optional
    if len(args) > maximum:
        raise InvalidParams(f"too many arguments, want at most {maximum}")
    if len(args) < required:
        raise InvalidParams(f"missing value for required argument {len(args)}")
    return args + [None] * (maximum - len(args))


def flag(value: Any, index: int) -> bool:
    """Parse a JSON boolean."""
    if not isinstance(value, bool):
        raise InvalidParams(f"invalid argument {index}: not a boolean")
    return value


def quantity(value: Any, index: int) -> int:
    """Parse a hex number without leading zeros, below 2^63."""
    if not isinstance(value, str) or not _QUANTITY.fullmatch(value):
        raise InvalidParams(f"invalid argument {index}: not a hex number: {_shorten(value)}")
    number = int(value, 16)
    if number >= 1 << 63:
        raise InvalidParams(f"invalid argument {index}: block number larger than int64")
    return number


def block_tag(value: Any, index: int) -> int | str:
    """Parse a block number or one of the five tags."""
    return value if isinstance(value, str) and value in _TAGS else quantity(value, index)


def is_hash(value: Any) -> bool:
    """Whether the value has the form of a 32-byte hash."""
    return isinstance(value, str) and _HASH.fullmatch(value) is not None


def block_hash(value: Any, index: int) -> str:
    """Parse a 32-byte hash; return it in lower case."""
    if not is_hash(value):
        raise InvalidParams(f"invalid argument {index}: not a 32-byte hash: {_shorten(value)}")
    return cast("str", value).lower()


def address(value: Any, index: int) -> str:
    """Parse a 20-byte address without checking its checksum; return it in lower case."""
    if not isinstance(value, str) or not _ADDRESS.fullmatch(value):
        raise InvalidParams(f"invalid argument {index}: not a 20-byte address: {_shorten(value)}")
    return value.lower()


def count(params: Any, name: str, maximum: int) -> int:
    """Parse one integer from [n] or {name: n}, as JSON number or hex; without params it is 1."""
    if isinstance(params, dict):
        params = [cast("dict[str, Any]", params).get(name)]
    value: Any = positional(params, 0, 1)[0]
    if value is None:
        return 1
    number = value if type(value) is int else quantity(value, 0)
    if not 1 <= number <= maximum:
        raise InvalidParams(f"invalid argument 0: {name} must be between 1 and {maximum}")
    return number


def _shorten(value: Any) -> str:
    return repr(value)[:80]
