"""The success marker: the object that makes a prefix complete."""

from pydantic import ValidationError

from trace_etl.api.task.lifecycle import SuccessFile, SuccessMarker
from trace_etl.model.errors import OutputNotReady
from trace_etl.model.storage import SUCCESS_MARKER, StorageRef
from trace_etl.objects.errors import (
    FalseMarker,
    InvalidKey,
    NotAnObject,
    ObjectMissing,
    ObjectTooLarge,
)
from trace_etl.objects.parquet_footer import ENDING, BadFooter, read_footer_length, read_row_count
from trace_etl.objects.store import ObjectStore, object_key

_MAX_MARKER_BYTES = 16 * 1024 * 1024
_MAX_FOOTER_BYTES = 16 * 1024 * 1024
_TAIL_BYTES = 16 * 1024  # most footers are shorter


def read_marker(store: ObjectStore, ref: StorageRef) -> SuccessMarker:
    """Read the marker of a prefix. Raises OutputNotReady if there is none, or StorageError."""
    try:
        return _parse(ref, store.get(object_key(store, ref, SUCCESS_MARKER)))
    except ObjectMissing as error:
        raise OutputNotReady(f"{ref.url} has no {SUCCESS_MARKER}: it is not complete") from error


def write_marker(store: ObjectStore, ref: StorageRef, marker: SuccessMarker) -> None:
    """Write the marker durably. Objects under the prefix must not change afterwards."""
    content = marker.model_dump_json(by_alias=True).encode()
    store.put(object_key(store, ref, SUCCESS_MARKER), content)


def verify_output(store: ObjectStore, ref: StorageRef) -> SuccessMarker:
    """Read the marker that an attempt wrote, and compare it with the files of its prefix.

    Raises OutputNotReady if there is no marker, FalseMarker if it does not match, or StorageError.
    """
    try:
        content = store.get_untrusted(
            object_key(store, ref, SUCCESS_MARKER), max_bytes=_MAX_MARKER_BYTES
        )
    except ObjectMissing as error:
        raise OutputNotReady(f"{ref.url} has no {SUCCESS_MARKER}: it is not complete") from error
    except (NotAnObject, ObjectTooLarge) as error:
        raise FalseMarker(str(error)) from error
    marker = _parse(ref, content)
    _check_totals(ref, marker)
    for file in marker.files:
        _check_file(store, ref, file)
    return marker


def _parse(ref: StorageRef, content: bytes) -> SuccessMarker:
    try:
        return SuccessMarker.model_validate_json(content)
    except ValidationError as error:
        raise OutputNotReady(f"{ref.url}{SUCCESS_MARKER} is not a success marker") from error


def _check_totals(ref: StorageRef, marker: SuccessMarker) -> None:
    names = [file.name for file in marker.files]
    if len(set(names)) < len(names):
        raise FalseMarker(f"{ref.url}{SUCCESS_MARKER} lists a file twice")
    texts = [text for column in marker.schema_ for item in column.items() for text in item]
    if any("\x00" in text for text in texts):
        raise FalseMarker(f"{ref.url}{SUCCESS_MARKER} has a NUL character in its schema")
    if any(file.rows < 0 for file in marker.files):
        raise FalseMarker(f"{ref.url}{SUCCESS_MARKER} has a negative row count")
    totals = (sum(file.rows for file in marker.files), sum(file.bytes for file in marker.files))
    if totals != (marker.rows, marker.bytes):
        raise FalseMarker(
            f"{ref.url}{SUCCESS_MARKER} counts {marker.rows} rows and {marker.bytes} bytes, but its "
            f"files have {totals[0]} rows and {totals[1]} bytes"
        )


def _check_file(store: ObjectStore, ref: StorageRef, file: SuccessFile) -> None:
    try:
        key = object_key(store, ref, file.name)
        size, tail = store.get_untrusted_tail(key, max_bytes=_TAIL_BYTES)
        if size != file.bytes:
            raise FalseMarker(f"{file.name} has {size} bytes, but its marker says {file.bytes}")
        if file.name.endswith(".parquet"):
            rows = _count_rows(store, key, tail)
            if rows != file.rows:
                raise FalseMarker(f"{file.name} has {rows} rows, but its marker says {file.rows}")
    except ObjectMissing as error:
        raise FalseMarker(f"the marker lists {file.name}, which does not exist") from error
    except (NotAnObject, InvalidKey) as error:
        raise FalseMarker(str(error)) from error
    except BadFooter as error:
        raise FalseMarker(f"{file.name} is not a Parquet file: {error}") from error


def _count_rows(store: ObjectStore, key: str, tail: bytes) -> int:
    length = read_footer_length(tail) + ENDING
    if length > _MAX_FOOTER_BYTES:
        raise BadFooter(f"its footer is larger than {_MAX_FOOTER_BYTES} bytes")
    if length > len(tail):
        _, tail = store.get_untrusted_tail(key, max_bytes=length)
    if length > len(tail):
        raise BadFooter("its footer is cut off")
    return read_row_count(tail[-length:-ENDING])
