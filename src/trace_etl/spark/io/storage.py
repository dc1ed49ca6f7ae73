"""From storage references to directories."""

from pathlib import Path, PurePosixPath

from trace_etl.api.task.payload import Storage
from trace_etl.spark.errors import BadTask


def directory(storage: Storage, root: Path) -> Path:
    """The directory behind a `file` reference. Raises BadTask for any other, or one outside."""
    if storage.scheme != "file":
        raise BadTask(f"storage scheme {storage.scheme}: this worker has files only")
    parts = (storage.bucket, *PurePosixPath(storage.prefix).parts)
    if ".." in parts or PurePosixPath(storage.prefix).is_absolute():
        raise BadTask(f"storage prefix {storage.prefix} leads out of its bucket")
    return storage.ref().path(root)
