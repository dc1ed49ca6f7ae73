"""Read the row count from the footer of a Parquet file that untrusted code may have written.

The parser is Python, not pyarrow: a hostile footer cannot corrupt the memory of the Dispatcher, which
also starts without pyarrow. It skips the schema and stops at the row count, before the row groups.
"""

from typing import ClassVar

_MAGIC = b"PAR1"
_NUM_ROWS = 3  # the number of the field in FileMetaData
_MAX_DEPTH = 16
_MAX_PARSED_BYTES = 512 * 1024  # bounds the time for a hostile schema

ENDING = len(_MAGIC) + 4  # the length of the footer, and the magic bytes


class BadFooter(ValueError):
    """The bytes are not the end of a Parquet file."""


def read_footer_length(ending: bytes) -> int:
    """Return the length of the footer from the last bytes of a file. Raises BadFooter."""
    if len(ending) < ENDING or not ending.endswith(_MAGIC):
        raise BadFooter("the end of the file is not that of a Parquet file")
    return int.from_bytes(ending[-ENDING : -len(_MAGIC)], "little")


def read_row_count(footer: bytes) -> int:
    """Return the row count of a file. Raises BadFooter."""
    try:
        return _Thrift(footer[:_MAX_PARSED_BYTES]).find_integer(_NUM_ROWS)
    except IndexError as error:
        raise BadFooter("its footer is cut off or has too many columns") from error


class _Thrift:
    """A reader of Thrift's compact protocol. Raises IndexError at the end of the data."""

    _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 12
    _INTEGERS: ClassVar = {4, 5, 6}

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def find_integer(self, wanted: int) -> int:
        """Return an integer field of the struct that the data begins with."""
        field = 0
        while header := self._read_byte():
            field = field + (header >> 4) if header >> 4 else self._read_integer()
            if field == wanted and header & 15 in self._INTEGERS:
                return self._read_integer()
            self._skip(header & 15, 0)
        raise BadFooter("its footer has no row count")

    def _read_byte(self) -> int:
        value = self._data[self._at]
        self._at += 1
        return value

    def _read_varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._read_byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise BadFooter("its footer has an integer that is too long")

    def _read_integer(self) -> int:
        value = self._read_varint()
        return (value >> 1) ^ -(value & 1)

    def _skip(self, kind: int, depth: int) -> None:
        if kind in self._INTEGERS:
            self._read_varint()
        elif kind == self._BINARY:
            length = self._read_varint()  # advances `_at` itself
            self._at += length
        elif kind == self._STRUCT:
            self._skip_struct(depth + 1)
        elif kind in (self._LIST, self._SET):
            self._skip_list(depth + 1)
        elif kind == self._DOUBLE:
            self._at += 8
        elif kind == self._BYTE:
            self._at += 1
        elif kind not in (self._TRUE, self._FALSE):  # a boolean field has its value in its kind
            raise BadFooter("its footer has a field of an unknown type")

    def _skip_struct(self, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise BadFooter("its footer is nested too deeply")
        while header := self._read_byte():
            if not header >> 4:
                self._read_varint()
            self._skip(header & 15, depth)

    def _skip_list(self, depth: int) -> None:
        header = self._read_byte()
        count = header >> 4 if header >> 4 < 15 else self._read_varint()
        kind = header & 15
        for _ in range(count):
            if kind in (self._TRUE, self._FALSE):
                self._read_byte()
            else:
                self._skip(kind, depth)
            if self._at > len(self._data):
                raise IndexError
