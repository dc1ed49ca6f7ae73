"""Decode batches of logs into batches of events, and collect the logs that do not decode."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trace_etl.dag.abi import ArrayOf, EventAbi, Parameter, TupleOf
from trace_etl.spark.abi import values
from trace_etl.spark.abi.words import TEXTS, Reason, Words
from trace_etl.spark.verify.keccak import keccak

_Array = Any
TOPICS = ("topic0", "topic1", "topic2", "topic3")
IDENTITY = (
    "block_number",
    "transaction_index",
    "log_index",
    "transaction_hash",
    "address",
    "chain_id",
    "timestamp",  # not a column of `logs`, but users join the block's timestamp
)
ERROR = "decode_error"
_HASH = pa.binary()


def hash_signature(event: EventAbi) -> bytes:
    """Return the hash that is topic 0 in the event's logs, unless the event is anonymous."""
    return keccak(event.canonical.encode())


@dataclass(frozen=True)
class Decoder:
    """Decodes the logs of one event; its rows go to `output`."""

    output: str
    event: EventAbi

    @cached_property
    def topic0(self) -> bytes | None:
        return None if self.event.anonymous else hash_signature(self.event)

    def columns(self) -> list[tuple[str, Any]]:
        """Return names and types of the columns, in the order of the parameters."""
        columns: list[tuple[str, Any]] = []
        for parameter in self.event.parameters:
            name = column_name(parameter)
            if _is_wide(parameter):
                wide = zip(("binary", "string", "f64"), values.numbers.WIDE, strict=True)
                columns += [(f"{name}_{part}", field.type) for part, field in wide]
            else:
                is_hashed = _is_hashed(parameter)
                columns.append((name, _HASH if is_hashed else values.arrow_type(parameter.type)))
        return columns

    def candidates(self, logs: _Array) -> _Array:
        """Return a mask of the rows with this event's topic 0 (anonymous: number of topics)."""
        if self.topic0 is None:
            return _count_topics(logs) == self.event.topics
        is_same = pc.equal(logs.column("topic0"), pa.scalar(self.topic0, pa.binary()))
        return np.asarray(pc.fill_null(is_same, False))

    def decode(self, logs: _Array) -> tuple[list[_Array], _Array]:
        """Return the columns, and per row the reason why it does not decode, or None."""
        reasons = np.full(len(logs), None, object)
        counts = _count_topics(logs)
        for count in np.unique(counts[counts != self.event.topics]):
            reasons[counts == count] = f"{count} topics, not {self.event.topics}"
        plain = [p for p in self.event.parameters if not p.indexed]
        data = Words.from_column(_fill_nulls(logs.column("data")))
        arguments = values.decode_arguments([p.type for p in plain], data)
        by_parameter = dict(zip(plain, arguments, strict=True))
        _add_reasons(reasons, data, plain)
        by_parameter |= self._decode_indexed(logs, reasons)
        columns = [
            column
            for p in self.event.parameters
            for column in (by_parameter[p].flatten() if _is_wide(p) else [by_parameter[p]])
        ]
        return columns, reasons

    def _decode_indexed(self, logs: _Array, reasons: _Array) -> dict[Parameter, _Array]:
        columns: dict[Parameter, _Array] = {}
        indexed = [p for p in self.event.parameters if p.indexed]
        for topic, parameter in zip(TOPICS[not self.event.anonymous :], indexed, strict=False):
            words = Words.from_column(_fill_nulls(logs.column(topic)))
            if _is_hashed(parameter):
                rows = np.arange(len(words.starts))
                columns[parameter] = values.numbers.to_binary(words.read_words(words.starts, rows))
            else:
                columns[parameter] = values.decode_arguments([parameter.type], words)[0]
            _add_reasons(reasons, words, [parameter])
        return columns


def column_name(parameter: Parameter) -> str:
    """Return the parameter's name, prefixed with `arg_` if a log column has the same name."""
    reserved = (*IDENTITY, ERROR)
    return f"arg_{parameter.name}" if parameter.name.lower() in reserved else parameter.name


@dataclass
class _Batch:
    """Progress of one batch: which logs are decoded, and why the others are not."""

    logs: _Array
    done: _Array
    owner: _Array
    """Number of the first decoder that failed on the log, or -1."""
    reasons: _Array

    @classmethod
    def start(cls, logs: _Array) -> "_Batch":
        count = len(logs)
        done, owner = np.zeros(count, np.bool_), np.full(count, -1)
        return cls(logs, done, owner, np.full(count, None, object))

    def run_decoder(self, number: int, decoder: Decoder) -> "_DecoderResult":
        rows: _Array = np.flatnonzero(decoder.candidates(self.logs) & ~self.done)
        columns, reasons = decoder.decode(self.take_rows(rows))
        good: _Array = np.asarray(pa.array(reasons, pa.string()).is_null())
        self.done[rows[good]] = True
        self.owner[rows[~good & (self.owner[rows] < 0)]] = number
        self.reasons[rows[~good]] = reasons[~good]
        return _DecoderResult(number, decoder.output, rows, columns, good)

    def take_rows(self, rows: _Array) -> _Array:
        return self.logs if len(rows) == len(self.logs) else self.logs.take(pa.array(rows))


@dataclass(frozen=True)
class _DecoderResult:
    """Columns that one decoder produced, and which of its rows decoded."""

    number: int
    output: str
    rows: _Array
    columns: list[_Array]
    good: _Array


@dataclass(frozen=True)
class LogDecoder:
    """Decodes batches with several decoders; a log goes to the first one that decodes it."""

    decoders: Sequence[Decoder]
    identity: Sequence[tuple[str, Any]]
    """Columns of the log that every output repeats."""
    input_columns: Sequence[tuple[str, Any]] = ()
    """All columns of the input, repeated for logs that do not decode."""
    undecoded: str | None = None
    """Output for logs that do not decode. None: they stay in the event's output, with the reason."""

    def tables(self) -> dict[str, Any]:
        """Return the Arrow schema of every output."""
        error = [] if self.undecoded else [(ERROR, pa.string())]
        schemas = {
            decoder.output: pa.schema([*self.identity, *decoder.columns(), *error])
            for decoder in self.decoders
        }
        if self.undecoded:
            added = [("event", pa.string()), (ERROR, pa.string())]
            schemas[self.undecoded] = pa.schema([*self.input_columns, *added])
        return schemas

    def __call__(self, logs: _Array) -> Iterator[tuple[str, _Array]]:
        """Decode a batch and yield the rows of each output."""
        batch, schemas = _Batch.start(logs), self.tables()
        # Every decoder runs before the first yield: a later one may decode what an earlier one
        # could not, and only then is it known which rows failed.
        for result in [batch.run_decoder(n, decoder) for n, decoder in enumerate(self.decoders)]:
            columns = self._collect_decoded(batch, result)
            yield (
                result.output,
                pa.RecordBatch.from_arrays(columns, schema=schemas[result.output]),
            )
        if self.undecoded:
            columns = self._collect_undecoded(batch)
            yield (
                self.undecoded,
                pa.RecordBatch.from_arrays(columns, schema=schemas[self.undecoded]),
            )

    def _collect_decoded(self, batch: _Batch, result: _DecoderResult) -> list[_Array]:
        rows, good = result.rows, result.good
        if self.undecoded:
            columns = result.columns
            if not good.all():
                columns = [column.filter(pa.array(good)) for column in columns]
            return [*self._collect_identity(batch, rows[good]), *columns]
        selected = good | ((batch.owner[rows] == result.number) & ~batch.done[rows])
        positions = pa.array(np.flatnonzero(selected), mask=~good[selected])
        errors = np.where(good[selected], None, batch.reasons[rows[selected]])
        columns = [column.take(positions) for column in result.columns]
        identity = self._collect_identity(batch, rows[selected])
        return [*identity, *columns, pa.array(errors, pa.string())]

    def _collect_identity(self, batch: _Batch, rows: _Array) -> list[_Array]:
        logs = batch.take_rows(rows)
        return [logs.column(name) for name, _ in self.identity]

    def _collect_undecoded(self, batch: _Batch) -> list[_Array]:
        failed: _Array = np.flatnonzero((batch.owner >= 0) & ~batch.done)
        names: list[str] = [self.decoders[int(n)].event.name for n in batch.owner[failed]]
        logs = batch.logs.take(pa.array(failed))
        return [
            *(logs.column(name) for name, _ in self.input_columns),
            pa.array(names, pa.string()),
            pa.array(batch.reasons[failed], pa.string()),
        ]


def _add_reasons(reasons: _Array, words: Words, parameters: Sequence[Parameter]) -> None:
    failed: _Array = np.flatnonzero(words.errors)
    for row in failed:
        if reasons[row] is None:
            name = parameters[int(words.failed_parameters[row])].name
            reasons[row] = f"{name}: {TEXTS[Reason(words.errors[row])]}"


def _count_topics(logs: _Array) -> _Array:
    present = [np.asarray(logs.column(topic).is_valid()) for topic in TOPICS]
    return np.sum(present, axis=0)


def _fill_nulls(column: _Array) -> _Array:
    return pc.fill_null(column, b"") if column.null_count else column


def _is_hashed(parameter: Parameter) -> bool:
    """Whether the topic contains only a hash, because the value does not fit into 32 bytes."""
    return parameter.indexed and (
        parameter.type.is_dynamic or isinstance(parameter.type, ArrayOf | TupleOf)
    )


def _is_wide(parameter: Parameter) -> bool:
    return values.is_wide(parameter.type)
