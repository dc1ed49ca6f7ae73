"""Objects in a directory."""

from pathlib import Path

from pydantic import ValidationError

from trace_etl.api.task.lifecycle import SuccessMarker
from trace_etl.model.errors import OutputNotReady
from trace_etl.model.storage import SUCCESS_MARKER, StorageRef


def read_marker(root: Path, ref: StorageRef) -> SuccessMarker:
    """What a finished prefix says of itself. Raises OutputNotReady."""
    path = ref.path(root) / SUCCESS_MARKER
    try:
        return SuccessMarker.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise OutputNotReady(f"{ref.url} has no {SUCCESS_MARKER}: it is not complete") from error
    except ValidationError as error:
        raise OutputNotReady(f"{ref.url}{SUCCESS_MARKER} is not a marker") from error
