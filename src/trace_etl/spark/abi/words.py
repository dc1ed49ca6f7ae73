"""Read 32-byte ABI words of a whole batch by position, and record the rows that fail."""

from enum import IntEnum
from typing import Any

import numpy as np

_Array = Any
# No offset or length in a log can be larger than this.
_LARGEST = np.uint64(1 << 31)


class Reason(IntEnum):
    """Why a log does not decode. `TEXTS` has the message of each reason."""

    SHORT = 1
    PADDING = 2
    OFFSET = 3
    TOO_MANY = 4
    UTF8 = 5
    BOOL = 6


TEXTS = {
    Reason.SHORT: "the data end before the value",
    Reason.PADDING: "the value does not fit its type: the padding is not zero",
    Reason.OFFSET: "the offset points outside the data",
    Reason.TOO_MANY: "more elements than the data can hold",
    Reason.UTF8: "the text is not UTF-8",
    Reason.BOOL: "the bool is neither 0 nor 1",
}


class Words:
    """The concatenated bytes of a column. Reading past a row's end marks the row as failed and
    returns zeros."""

    def __init__(self, data: _Array, starts: _Array, ends: _Array) -> None:
        self.data = np.concatenate([data, np.zeros(32, np.uint8)])
        self.starts = starts
        self.ends = ends
        self.errors = np.zeros(len(starts), np.uint8)
        self.failed_parameters = np.zeros(len(starts), np.int64)
        """Index of the parameter at which each failed row failed."""
        self.parameter = 0
        """Index of the parameter that is being decoded."""
        self._zeros = len(data)
        self._word_at_byte = np.ndarray((len(data) + 1,), "V32", self.data, 0, (1,))

    @classmethod
    def from_column(cls, column: _Array) -> "Words":
        """Read a binary column without nulls."""
        count = len(column)
        if not count:
            return cls(np.zeros(0, np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64))
        _, offsets_buffer, content = column.buffers()
        offsets = np.frombuffer(offsets_buffer, np.int32, count + 1, column.offset * 4)
        offsets = offsets.astype(np.int64)
        data = np.frombuffer(content or b"", np.uint8)[offsets[0] : offsets[-1]]
        return cls(data, offsets[:-1] - offsets[0], offsets[1:] - offsets[0])

    def mark_failed(self, rows: _Array, reason: Reason) -> None:
        """Record the reason for these rows, unless they already have one."""
        new = rows[self.errors[rows] == 0]
        self.errors[new] = reason
        self.failed_parameters[new] = self.parameter

    def read_words(self, positions: _Array, rows: _Array) -> _Array:
        """Return the words at these positions, as a matrix with 32 bytes per row."""
        short = positions + 32 > self.ends[rows]
        if short.any():
            self.mark_failed(rows[short], Reason.SHORT)
            positions = np.where(short, self._zeros, positions)
        return self._word_at_byte[positions].view(np.uint8).reshape(-1, 32)

    def read_sizes(self, positions: _Array, rows: _Array, reason: Reason) -> _Array:
        """Return offsets or lengths; values that are too large mark the row and become 0."""
        limbs = self.read_words(positions, rows).view(">u8").astype(np.uint64)
        too_large = (limbs[:, :3] != 0).any(axis=1) | (limbs[:, 3] >= _LARGEST)
        if too_large.any():
            self.mark_failed(rows[too_large], reason)
        return np.where(too_large, 0, limbs[:, 3]).astype(np.int64)

    def read_bytes(self, positions: _Array, lengths: _Array) -> tuple[_Array, _Array]:
        """Return the concatenated byte ranges and the start of each. They must be in bounds."""
        offsets = np.zeros(len(positions) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        index = np.arange(int(offsets[-1])) + np.repeat(positions - offsets[:-1], lengths)
        return self.data[index], offsets
