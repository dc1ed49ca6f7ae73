"""The success marker: the object that makes a prefix complete."""

from pydantic import ValidationError

from trace_etl.api.task.lifecycle import SuccessMarker
from trace_etl.model.errors import OutputNotReady
from trace_etl.model.storage import SUCCESS_MARKER, StorageRef
from trace_etl.objects.errors import ObjectMissing
from trace_etl.objects.store import ObjectStore, object_key


def read_marker(store: ObjectStore, ref: StorageRef) -> SuccessMarker:
    """Read the marker of a prefix. Raises OutputNotReady if there is none, or StorageError."""
    try:
        return SuccessMarker.model_validate_json(store.get(object_key(store, ref, SUCCESS_MARKER)))
    except ObjectMissing as error:
        raise OutputNotReady(f"{ref.url} has no {SUCCESS_MARKER}: it is not complete") from error
    except ValidationError as error:
        raise OutputNotReady(f"{ref.url}{SUCCESS_MARKER} is not a success marker") from error


def write_marker(store: ObjectStore, ref: StorageRef, marker: SuccessMarker) -> None:
    """Write the marker durably. Objects under the prefix must not change afterwards."""
    content = marker.model_dump_json(by_alias=True).encode()
    store.put(object_key(store, ref, SUCCESS_MARKER), content)
