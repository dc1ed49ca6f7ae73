"""Keys of inputs and outputs in the object store."""

from trace_etl.api.task.payload import Storage
from trace_etl.objects.errors import InvalidKey
from trace_etl.objects.store import ObjectStore, object_key
from trace_etl.spark.errors import BadTask


def file_key(store: ObjectStore, storage: Storage, name: str) -> str:
    """The key of a file of an input or output. Raises BadTask if the store cannot have it."""
    try:
        return object_key(store, storage.ref(), name)
    except InvalidKey as error:
        raise BadTask(str(error)) from error
