"""Batches of logs to batches of decoded events, and of what would not decode."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from eth_hash.backends.pycryptodome import CryptodomeBackend

from trace_etl.dag.abi import ArrayOf, EventAbi, Parameter, TupleOf
from trace_etl.spark.abi import values
from trace_etl.spark.abi.words import TEXTS, Reason, Words

_Array = Any
TOPICS = ("topic0", "topic1", "topic2", "topic3")
IDENTITY = (
    "block_number",
    "transaction_index",
    "log_index",
    "transaction_hash",
    "address",
    "chain_id",
    "timestamp",  # logs have none of their own, but people add their block's
)
ERROR = "decode_error"
_HASH = pa.binary()


def selector(event: EventAbi) -> bytes:
    """Topic 0 of its logs, unless it is anonymous."""
    return CryptodomeBackend().keccak256(event.canonical.encode())


@dataclass(frozen=True)
class Decoder:
    """Decodes the logs of one event; `output` is where its rows go."""

    output: str
    event: EventAbi

    @cached_property
    def topic0(self) -> bytes | None:
        return None if self.event.anonymous else selector(self.event)

    def columns(self) -> list[tuple[str, Any]]:
        """Names and types, in the order of the parameters."""
        found: list[tuple[str, Any]] = []
        for parameter in self.event.parameters:
            name = column_name(parameter)
            if _is_wide(parameter):
                wide = zip(("binary", "string", "f64"), values.numbers.WIDE, strict=True)
                found += [(f"{name}_{part}", field.type) for part, field in wide]
            else:
                found.append((name, _HASH if _is_hashed(parameter) else _type(parameter)))
        return found

    def candidates(self, logs: _Array) -> _Array:
        """Which rows claim to be this event."""
        if self.topic0 is None:
            return _topic_counts(logs) == self.event.topics
        named = pc.equal(logs.column("topic0"), pa.scalar(self.topic0, pa.binary()))
        return np.asarray(pc.fill_null(named, False))

    def decode(self, logs: _Array) -> tuple[list[_Array], _Array]:
        """The columns, and for each row why it is not to be used, or None."""
        reasons = np.full(len(logs), None, object)
        counts = _topic_counts(logs)
        for count in np.unique(counts[counts != self.event.topics]):
            reasons[counts == count] = f"{count} topics, not {self.event.topics}"
        plain = [p for p in self.event.parameters if not p.indexed]
        data = Words.of(_filled(logs.column("data")))
        found = dict(zip(plain, values.arguments([p.type for p in plain], data), strict=True))
        _explain(reasons, data, plain)
        found |= self._indexed(logs, reasons)
        return [c for p in self.event.parameters for c in _flat(p, found[p])], reasons

    def _indexed(self, logs: _Array, reasons: _Array) -> dict[Parameter, _Array]:
        found: dict[Parameter, _Array] = {}
        indexed = [p for p in self.event.parameters if p.indexed]
        for topic, parameter in zip(TOPICS[not self.event.anonymous :], indexed, strict=False):
            words = Words.of(_filled(logs.column(topic)))
            if _is_hashed(parameter):
                rows = np.arange(len(words.starts))
                found[parameter] = values.numbers.fixed_binary(words.at(words.starts, rows))
            else:
                found[parameter] = values.arguments([parameter.type], words)[0]
            _explain(reasons, words, [parameter])
        return found


def column_name(parameter: Parameter) -> str:
    """The parameter's own name, unless a column of the log has it already."""
    taken = (*IDENTITY, ERROR)
    return f"arg_{parameter.name}" if parameter.name.lower() in taken else parameter.name


@dataclass
class _Batch:
    """A batch on its way: which logs are done with, and why the others are not."""

    logs: _Array
    done: _Array
    owner: _Array
    """The first event a log claimed to be without decoding as it."""
    reasons: _Array

    @classmethod
    def of(cls, logs: _Array) -> "_Batch":
        count = len(logs)
        done, owner = np.zeros(count, np.bool_), np.full(count, -1)
        return cls(logs, done, owner, np.full(count, None, object))

    def attempt(self, number: int, decoder: Decoder) -> "_Attempt":
        rows: _Array = np.flatnonzero(decoder.candidates(self.logs) & ~self.done)
        columns, why = decoder.decode(self.rows(rows))
        good: _Array = np.asarray(pa.array(why, pa.string()).is_null())
        self.done[rows[good]] = True
        self.owner[rows[~good & (self.owner[rows] < 0)]] = number
        self.reasons[rows[~good]] = why[~good]
        return _Attempt(number, decoder.output, rows, columns, good)

    def rows(self, wanted: _Array) -> _Array:
        return self.logs if len(wanted) == len(self.logs) else self.logs.take(pa.array(wanted))


@dataclass(frozen=True)
class _Attempt:
    """What one event made of the logs that claim to be it."""

    number: int
    output: str
    rows: _Array
    columns: list[_Array]
    good: _Array


@dataclass(frozen=True)
class LogDecoder:
    """Decodes batches by several events; a log goes to the first event that decodes it."""

    decoders: Sequence[Decoder]
    identity: Sequence[tuple[str, Any]]
    """The log's own columns that every output keeps."""
    rest: Sequence[tuple[str, Any]] = ()
    """All columns of the input, kept for logs that do not decode."""
    undecoded: str | None = None
    """The output for those; without one they stay in their event's, with the reason."""

    def tables(self) -> dict[str, Any]:
        """The Arrow schema of every output."""
        error = [] if self.undecoded else [(ERROR, pa.string())]
        found = {
            one.output: pa.schema([*self.identity, *one.columns(), *error]) for one in self.decoders
        }
        if self.undecoded:
            told = [("event", pa.string()), (ERROR, pa.string())]
            found[self.undecoded] = pa.schema([*self.rest, *told])
        return found

    def __call__(self, logs: _Array) -> Iterator[tuple[str, _Array]]:
        """The rows of each output that a batch gives."""
        batch, schemas = _Batch.of(logs), self.tables()
        for attempt in [batch.attempt(*one) for one in enumerate(self.decoders)]:
            columns = self._decoded(batch, attempt)
            yield (
                attempt.output,
                pa.RecordBatch.from_arrays(columns, schema=schemas[attempt.output]),
            )
        if self.undecoded:
            columns = self._undecoded(batch)
            yield (
                self.undecoded,
                pa.RecordBatch.from_arrays(columns, schema=schemas[self.undecoded]),
            )

    def _decoded(self, batch: _Batch, attempt: _Attempt) -> list[_Array]:
        rows, good = attempt.rows, attempt.good
        if self.undecoded:
            kept, columns = good, attempt.columns
            if not good.all():
                columns = [column.filter(pa.array(good)) for column in columns]
            return [*self._identity(batch, rows[kept]), *columns]
        kept = good | ((batch.owner[rows] == attempt.number) & ~batch.done[rows])
        places = pa.array(np.flatnonzero(kept), mask=~good[kept])
        errors = np.where(good[kept], None, batch.reasons[rows[kept]])
        columns = [column.take(places) for column in attempt.columns]
        return [*self._identity(batch, rows[kept]), *columns, pa.array(errors, pa.string())]

    def _identity(self, batch: _Batch, rows: _Array) -> list[_Array]:
        kept = batch.rows(rows)
        return [kept.column(name) for name, _ in self.identity]

    def _undecoded(self, batch: _Batch) -> list[_Array]:
        failed: _Array = np.flatnonzero((batch.owner >= 0) & ~batch.done)
        names: list[str] = [self.decoders[int(n)].event.name for n in batch.owner[failed]]
        kept = batch.logs.take(pa.array(failed))
        return [
            *(kept.column(name) for name, _ in self.rest),
            pa.array(names, pa.string()),
            pa.array(batch.reasons[failed], pa.string()),
        ]


def _explain(reasons: _Array, words: Words, parameters: Sequence[Parameter]) -> None:
    failed: _Array = np.flatnonzero(words.errors)
    for row in failed:
        if reasons[row] is None:
            name = parameters[int(words.parts[row])].name
            reasons[row] = f"{name}: {TEXTS[Reason(words.errors[row])]}"


def _topic_counts(logs: _Array) -> _Array:
    present = [np.asarray(logs.column(topic).is_valid()) for topic in TOPICS]
    return np.sum(present, axis=0)


def _filled(column: _Array) -> _Array:
    return pc.fill_null(column, b"") if column.null_count else column


def _is_hashed(parameter: Parameter) -> bool:
    """What does not fit a topic is in the log as its hash only."""
    return parameter.indexed and (
        parameter.type.is_dynamic or isinstance(parameter.type, ArrayOf | TupleOf)
    )


def _is_wide(parameter: Parameter) -> bool:
    return values.is_wide(parameter.type)


def _type(parameter: Parameter) -> Any:
    return values.arrow_type(parameter.type)


def _flat(parameter: Parameter, column: _Array) -> list[_Array]:
    return column.flatten() if _is_wide(parameter) else [column]
