"""Reading the arguments of JSON-RPC calls, as strictly as geth does."""

import re
from typing import Any, cast

from trace_etl.devtools.devchain.rpc.errors import InvalidParams

_QUANTITY = re.compile(r"0x(?:0|[1-9a-fA-F][0-9a-fA-F]*)", re.ASCII)
_HASH = re.compile(r"0x[0-9a-fA-F]{64}", re.ASCII)
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}", re.ASCII)
_TAGS = frozenset({"latest", "earliest", "finalized", "safe", "pending"})


def positional(params: Any, required: int, optional: int = 0) -> list[Any]:
    """The arguments, filled up with None. Raises InvalidParams if too few or too many."""
    if params is None:
        params = []
    if not isinstance(params, list):
        raise InvalidParams("non-array args")
    args = cast("list[Any]", params)
    most = required + optional
    if len(args) > most:
        raise InvalidParams(f"too many arguments, want at most {most}")
    if len(args) < required:
        raise InvalidParams(f"missing value for required argument {len(args)}")
    return args + [None] * (most - len(args))


def flag(value: Any, index: int) -> bool:
    """A JSON boolean."""
    if not isinstance(value, bool):
        raise InvalidParams(f"invalid argument {index}: not a boolean")
    return value


def quantity(value: Any, index: int) -> int:
    """A hex number without leading zeros, below 2^63."""
    if not isinstance(value, str) or not _QUANTITY.fullmatch(value):
        raise InvalidParams(f"invalid argument {index}: not a hex number: {_shown(value)}")
    number = int(value, 16)
    if number >= 1 << 63:
        raise InvalidParams(f"invalid argument {index}: block number larger than int64")
    return number


def block_tag(value: Any, index: int) -> int | str:
    """A block number, or one of the five tags."""
    return value if isinstance(value, str) and value in _TAGS else quantity(value, index)


def is_hash(value: Any) -> bool:
    """Whether it is written like a 32-byte hash."""
    return isinstance(value, str) and _HASH.fullmatch(value) is not None


def block_hash(value: Any, index: int) -> str:
    """A 32-byte hash, in lower case."""
    if not is_hash(value):
        raise InvalidParams(f"invalid argument {index}: not a 32-byte hash: {_shown(value)}")
    return cast("str", value).lower()


def address(value: Any, index: int) -> str:
    """A 20-byte address, in lower case; its checksum is not looked at."""
    if not isinstance(value, str) or not _ADDRESS.fullmatch(value):
        raise InvalidParams(f"invalid argument {index}: not a 20-byte address: {_shown(value)}")
    return value.lower()


def count(params: Any, name: str, most: int) -> int:
    """One whole number from [n], {"name": n} or nothing (1), as JSON number or hex."""
    if isinstance(params, dict):
        params = [cast("dict[str, Any]", params).get(name)]
    value: Any = positional(params, 0, 1)[0]
    if value is None:
        return 1
    number = value if type(value) is int else quantity(value, 0)
    if not 1 <= number <= most:
        raise InvalidParams(f"invalid argument 0: {name} must be between 1 and {most}")
    return number


def _shown(value: Any) -> str:
    return repr(value)[:80]
