"""Parse event ABIs, from a human-readable signature or a JSON entry. No Spark, no hashing."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

_TOKEN = re.compile(r"\s*([A-Za-z_$][A-Za-z0-9_$]*|\[[0-9]*\]|[(),;])")
_SIZED = re.compile(r"^(u?int|bytes)([0-9]+)$")
_ALIASES = {"uint": "uint256", "int": "int256", "function": "bytes24", "byte": "bytes1"}
_MAX_ELEMENTS = 1 << 20
_MAX_DEPTH = 16
_MAX_INDEXED = {False: 3, True: 4}  # the maximum by `anonymous`


class BadAbi(ValueError):
    """The event ABI is invalid. The message names the invalid part."""


@dataclass(frozen=True)
class Elementary:
    """A type such as `uint256`, `address` or `bytes`: its name without the size, and its fixed size in bits."""

    kind: str
    bits: int = 0

    @property
    def canonical(self) -> str:
        if self.kind in ("uint", "int"):
            return f"{self.kind}{self.bits}"
        return f"bytes{self.bits // 8}" if self.kind == "fixed_bytes" else self.kind

    @property
    def is_dynamic(self) -> bool:
        return self.kind in ("bytes", "string")

    @property
    def head_size(self) -> int:
        return 32


@dataclass(frozen=True)
class ArrayOf:
    """An array type: `T[]`, or `T[n]` if it has a length."""

    item: "AbiType"
    length: int | None = None

    @property
    def canonical(self) -> str:
        return f"{self.item.canonical}[{'' if self.length is None else self.length}]"

    @property
    def is_dynamic(self) -> bool:
        return self.length is None or self.item.is_dynamic

    @property
    def head_size(self) -> int:
        """The number of bytes in the head of the enclosing tuple."""
        return 32 if self.is_dynamic else self.item.head_size * (self.length or 0)


@dataclass(frozen=True)
class TupleOf:
    """A tuple type with named components."""

    names: tuple[str, ...]
    items: tuple["AbiType", ...]

    @property
    def canonical(self) -> str:
        return f"({','.join(item.canonical for item in self.items)})"

    @property
    def is_dynamic(self) -> bool:
        return any(item.is_dynamic for item in self.items)

    @property
    def head_size(self) -> int:
        return 32 if self.is_dynamic else sum(item.head_size for item in self.items)


AbiType = Elementary | ArrayOf | TupleOf


@dataclass(frozen=True)
class Parameter:
    """A parameter of an event."""

    name: str
    type: AbiType
    indexed: bool = False


@dataclass(frozen=True)
class EventAbi:
    """An event. Parameters without a name are named `arg0`, `arg1` …, by their position."""

    name: str
    parameters: tuple[Parameter, ...]
    anonymous: bool = False

    @property
    def canonical(self) -> str:
        """The signature whose hash is topic 0."""
        return f"{self.name}({','.join(p.type.canonical for p in self.parameters)})"

    @property
    def topics(self) -> int:
        """The number of topics in a log of this event."""
        return sum(p.indexed for p in self.parameters) + (not self.anonymous)


def parse_event(source: str | Mapping[str, Any]) -> EventAbi:
    """Parse an event from its signature or its JSON ABI entry. Raises BadAbi."""
    event = (
        _SignatureParser(source).parse_event()
        if isinstance(source, str)
        else _parse_json_event(source)
    )
    _check_event(event)
    return event


def find_event(abi: Sequence[Mapping[str, Any]], name: str) -> EventAbi:
    """Find an event in a JSON ABI by its name or its canonical signature. Raises BadAbi."""
    events = [parse_event(entry) for entry in abi if entry.get("type") == "event"]
    matches = [event for event in events if name in (event.name, event.canonical)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise BadAbi(f"the ABI has {len(matches)} events {name}; use the complete signature of one")
    known = ", ".join(event.canonical for event in events) or "none"
    raise BadAbi(f"the ABI has no event {name}; its events are {known}")


def _check_event(event: EventAbi) -> None:
    indexed = sum(p.indexed for p in event.parameters)
    limit = _MAX_INDEXED[event.anonymous]
    if indexed > limit:
        raise BadAbi(
            f"event {event.name}: {indexed} indexed parameters; at most {limit} are allowed"
        )
    names = [p.name.lower() for p in event.parameters]
    for name in names:
        if names.count(name) > 1:
            raise BadAbi(f"event {event.name}: two parameters are named {name}; rename one")
    for parameter in event.parameters:
        _check_size(event.name, parameter.type, 0)


def _check_size(event: str, kind: AbiType, depth: int) -> int:
    """Return the minimum number of elements of a value. Raises BadAbi above the limit.

    Without a limit, a few bytes of data could decode to a very large value.
    """
    if depth > _MAX_DEPTH:
        raise BadAbi(
            f"event {event}: types are nested more than {_MAX_DEPTH} levels deep; simplify them"
        )
    if isinstance(kind, Elementary):
        return 1
    if isinstance(kind, TupleOf):
        size = sum(_check_size(event, item, depth + 1) for item in kind.items)
    else:
        size = _check_size(event, kind.item, depth + 1) * (kind.length or 1)
    if size > _MAX_ELEMENTS:
        raise BadAbi(
            f"event {event}: {kind.canonical} has more than {_MAX_ELEMENTS} elements; use smaller arrays"
        )
    return size


def parse_elementary(text: str) -> Elementary:
    """Parse a type without brackets. Raises BadAbi."""
    name = _ALIASES.get(text, text)
    if name in ("bytes", "string"):
        return Elementary(name)
    if name == "bool":
        return Elementary("bool", 8)
    if name == "address":
        return Elementary("address", 160)
    sized = _SIZED.match(name)
    if sized is None:
        raise BadAbi(f"unknown type {text!r}")
    size = int(sized[2])
    if sized[1] == "bytes":
        if not 1 <= size <= 32:
            raise BadAbi(f"unknown type {text!r}; use bytes1 to bytes32")
        return Elementary("fixed_bytes", 8 * size)
    if size % 8 or not 8 <= size <= 256:
        raise BadAbi(f"unknown type {text!r}; use 8 to 256 bits, in steps of 8")
    return Elementary(sized[1], size)


def _wrap_in_arrays(kind: AbiType, suffixes: Sequence[str]) -> AbiType:
    for suffix in suffixes:
        length = suffix[1:-1]
        if length and int(length) == 0:
            raise BadAbi(
                f"{kind.canonical}[0] is an array without elements; use a length of at least 1"
            )
        kind = ArrayOf(kind, int(length) if length else None)
    return kind


# --- JSON ---------------------------------------------------------------------------------------


def _parse_json_event(entry: Mapping[str, Any]) -> EventAbi:
    if entry.get("type", "event") != "event" or not isinstance(entry.get("name"), str):
        raise BadAbi("not an event; a JSON ABI entry has `type: event`, a `name` and `inputs`")
    inputs = _read_entries(entry, "inputs")
    return EventAbi(
        entry["name"],
        tuple(
            Parameter(
                str(item.get("name") or f"arg{n}"),
                _parse_json_type(item),
                bool(item.get("indexed")),
            )
            for n, item in enumerate(inputs)
        ),
        bool(entry.get("anonymous", False)),
    )


def _read_entries(entry: Mapping[str, Any], field: str) -> list[Mapping[str, Any]]:
    value = entry.get(field, [])
    if not isinstance(value, list):
        raise BadAbi(f"`{field}` must be a list")
    items = cast("list[Any]", value)
    for item in items:
        if not isinstance(item, dict) or not isinstance(item.get("type"), str):  # pyright: ignore
            raise BadAbi(f"every entry of `{field}` needs a `type`")
    return items


def _parse_json_type(item: Mapping[str, Any]) -> AbiType:
    base, _, _ = item["type"].partition("[")
    suffixes = re.findall(r"\[[0-9]*\]", item["type"][len(base) :])
    if "".join([base, *suffixes]) != item["type"]:
        raise BadAbi(f"unknown type {item['type']!r}; use a type of Solidity")
    if base != "tuple":
        return _wrap_in_arrays(parse_elementary(base), suffixes)
    components = _read_entries(item, "components")
    if not components:
        raise BadAbi("a tuple has no components; add at least one")
    names = tuple(str(part.get("name") or f"f{n}") for n, part in enumerate(components))
    return _wrap_in_arrays(_make_tuple(names, tuple(map(_parse_json_type, components))), suffixes)


def _make_tuple(names: tuple[str, ...], items: tuple[AbiType, ...]) -> TupleOf:
    if len({name.lower() for name in names}) < len(names):
        raise BadAbi(
            f"a tuple has two components with the same name ({', '.join(names)}); rename one"
        )
    return TupleOf(names, items)


# --- human-readable -----------------------------------------------------------------------------


class _SignatureParser:
    """Parses a signature such as `event Transfer(address indexed from, …) anonymous`."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def parse_event(self) -> EventAbi:
        name = self._read_name("the event's name")
        if name == "event":
            name = self._read_name("the event's name")
        self._expect("(")
        parameters = self._parse_parameters()
        anonymous = self._accept_token("anonymous")
        self._accept_token(";")
        if self._peek_token():
            raise self._make_error("the end")
        return EventAbi(name, parameters, anonymous)

    def _parse_parameters(self) -> tuple[Parameter, ...]:
        parameters: list[Parameter] = []
        while not self._accept_token(")"):
            if parameters:
                self._expect(",")
            kind = self._parse_type()
            indexed = self._accept_token("indexed")
            parameters.append(
                Parameter(self._read_optional_name() or f"arg{len(parameters)}", kind, indexed)
            )
        return tuple(parameters)

    def _parse_type(self) -> AbiType:
        name = self._read_name("a type") if self._peek_token() != "(" else "tuple"
        if name == "tuple":
            self._expect("(")
            kind: AbiType = self._parse_components()
        else:
            kind = parse_elementary(name)
            if name == "address":
                self._accept_token("payable")
        suffixes: list[str] = []
        while (token := self._peek_token()) and token.startswith("["):
            suffixes.append(self._take_token())
        return _wrap_in_arrays(kind, suffixes)

    def _parse_components(self) -> TupleOf:
        names: list[str] = []
        items: list[AbiType] = []
        while not self._accept_token(")"):
            if items:
                self._expect(",")
            items.append(self._parse_type())
            names.append(self._read_optional_name() or f"f{len(names)}")
        if not items:
            raise BadAbi("a tuple has no components; add at least one")
        return _make_tuple(tuple(names), tuple(items))

    def _read_optional_name(self) -> str:
        return "" if self._peek_token() in (",", ")") else self._read_name("a name")

    def _read_name(self, expected: str) -> str:
        token = self._peek_token()
        if not token or not (token[0].isalpha() or token[0] in "_$"):
            raise self._make_error(expected)
        return self._take_token()

    def _accept_token(self, token: str) -> bool:
        if self._peek_token() != token:
            return False
        self._take_token()
        return True

    def _expect(self, token: str) -> None:
        if not self._accept_token(token):
            raise self._make_error(repr(token))

    def _peek_token(self) -> str:
        token = _TOKEN.match(self._text, self._at)
        return token[1] if token else self._text[self._at :].strip()[:1]

    def _take_token(self) -> str:
        token = _TOKEN.match(self._text, self._at)
        assert token is not None
        self._at = token.end()
        return token[1]

    def _make_error(self, expected: str) -> BadAbi:
        rest = self._text[self._at :].strip()[:20] or "the end"
        return BadAbi(
            f"invalid event signature at character {self._at + 1}: expected {expected}, not {rest!r}"
        )
