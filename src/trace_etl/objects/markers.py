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
from trace_etl.objects.parquet_footer import BadFooter
from trace_etl.objects.row_counts import TAIL_BYTES, StoredFile, count_rows
from trace_etl.objects.store import ObjectStore, object_key

_MAX_MARKER_BYTES = 16 * 1024 * 1024
# Of the text files of a marker, in all: an attempt must not keep the Dispatcher busy with counting.
_MAX_TEXT_BYTES = 64 * 1024 * 1024
_MAX_TYPE_NESTING = 32


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

    The pattern of the reference decides the format in which rows are counted, never the name that the
    attempt chose for a file.

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
    _check_columns(ref, marker)
    max_bytes = _MAX_TEXT_BYTES
    for file in marker.files:
        max_bytes = max(0, max_bytes - _check_file(store, ref, file, max_bytes))
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


def _check_columns(ref: StorageRef, marker: SuccessMarker) -> None:
    for column in marker.schema_:
        if not column.keys() >= {"name", "type"}:
            raise FalseMarker(f"{ref.url}{SUCCESS_MARKER} has a column without a name or a type")
        if column["type"].count("<") > _MAX_TYPE_NESTING:
            raise FalseMarker(f"{ref.url}{SUCCESS_MARKER} has a type that is nested too deeply")


def _check_file(store: ObjectStore, ref: StorageRef, file: SuccessFile, max_bytes: int) -> int:
    """Compare a file with its entry. Returns its size."""
    suffix = ref.glob.rpartition(".")[2]
    if not file.name.endswith(f".{suffix}"):
        raise FalseMarker(f"the marker lists {file.name}, but files of this dataset are {ref.glob}")
    try:
        key = object_key(store, ref, file.name)
        stored = StoredFile(store, key, *store.get_untrusted_tail(key, max_bytes=TAIL_BYTES))
        if stored.size != file.bytes:
            raise FalseMarker(
                f"{file.name} has {stored.size} bytes, but its marker says {file.bytes}"
            )
        counted = count_rows(stored, suffix, max_bytes=max_bytes)
    except ObjectMissing as error:
        raise FalseMarker(f"the marker lists {file.name}, which does not exist") from error
    except (NotAnObject, InvalidKey) as error:
        raise FalseMarker(str(error)) from error
    except BadFooter as error:
        raise FalseMarker(f"{file.name} is not a Parquet file: {error}") from error
    if not counted.allows(file.rows):
        raise FalseMarker(f"{file.name} has {counted} rows, but its marker says {file.rows}")
    return stored.size
