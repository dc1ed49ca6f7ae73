"""The bytes of a batch of values, read by position; what goes wrong is noted for its row."""

from enum import IntEnum
from typing import Any

import numpy as np

_Array = Any
# A number past this is no offset and no length, whatever the data.
_LARGEST = np.uint64(1 << 31)


class Reason(IntEnum):
    """Why a log does not decode. `TEXTS` says it in words."""

    SHORT = 1
    PADDING = 2
    OFFSET = 3
    TOO_MANY = 4
    UTF8 = 5
    BOOL = 6


TEXTS = {
    Reason.SHORT: "the data end before the value does",
    Reason.PADDING: "the value does not fit its type: padding that is not empty",
    Reason.OFFSET: "an offset that leads nowhere",
    Reason.TOO_MANY: "more elements than the data can hold",
    Reason.UTF8: "text that is not UTF-8",
    Reason.BOOL: "a bool that is neither 0 nor 1",
}


class Words:
    """Values laid end to end. Reading past a row's end marks the row and gives zeros."""

    def __init__(self, data: _Array, starts: _Array, ends: _Array) -> None:
        self.data = np.concatenate([data, np.zeros(32, np.uint8)])
        self.starts = starts
        self.ends = ends
        self.errors = np.zeros(len(starts), np.uint8)
        self.parts = np.zeros(len(starts), np.int64)
        """At which part each failed row failed."""
        self.part = 0
        self._nowhere = len(data)
        self._at_any_byte = np.ndarray((len(data) + 1,), "V32", self.data, 0, (1,))

    @classmethod
    def of(cls, column: _Array) -> "Words":
        """Those of a binary column without nulls."""
        count = len(column)
        if not count:
            return cls(np.zeros(0, np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64))
        _, offsets_buffer, content = column.buffers()
        offsets = np.frombuffer(offsets_buffer, np.int32, count + 1, column.offset * 4)
        offsets = offsets.astype(np.int64)
        data = np.frombuffer(content or b"", np.uint8)[offsets[0] : offsets[-1]]
        return cls(data, offsets[:-1] - offsets[0], offsets[1:] - offsets[0])

    def fail(self, rows: _Array, reason: Reason) -> None:
        """Note a reason for these rows; the first one stands."""
        fresh = rows[self.errors[rows] == 0]
        self.errors[fresh] = reason
        self.parts[fresh] = self.part

    def at(self, positions: _Array, rows: _Array) -> _Array:
        """The words there, as rows of 32 bytes."""
        short = positions + 32 > self.ends[rows]
        if short.any():
            self.fail(rows[short], Reason.SHORT)
            positions = np.where(short, self._nowhere, positions)
        return self._at_any_byte[positions].view(np.uint8).reshape(-1, 32)

    def sizes(self, positions: _Array, rows: _Array, reason: Reason) -> _Array:
        """The words there as offsets or lengths; absurd ones mark the row and become 0."""
        limbs = self.at(positions, rows).view(">u8").astype(np.uint64)
        absurd = (limbs[:, :3] != 0).any(axis=1) | (limbs[:, 3] >= _LARGEST)
        if absurd.any():
            self.fail(rows[absurd], reason)
        return np.where(absurd, 0, limbs[:, 3]).astype(np.int64)

    def take(self, positions: _Array, lengths: _Array) -> tuple[_Array, _Array]:
        """Stretches of bytes laid end to end, and where each begins. They must be inside."""
        offsets = np.zeros(len(positions) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        index = np.arange(int(offsets[-1])) + np.repeat(positions - offsets[:-1], lengths)
        return self.data[index], offsets
