"""Outputs for tasks that a bench hands to a runner itself."""

from typing import Any
from uuid import UUID, uuid4

from trace_etl.api.task.payload import Storage
from trace_etl.model.storage import attempt_prefix, generation_place
from trace_etl.objects.store import ObjectStore
from trace_etl.spark.io.writers import OutputFile


def new_file(store: ObjectStore, name: str) -> OutputFile:
    """A file under a new prefix of the bucket `bench`."""
    return OutputFile(store, Storage(scheme="file", bucket="bench", prefix=f"{uuid4()}/"), name)


def output(index: int, name: str, task_id: UUID) -> dict[str, Any]:
    """An output as the Dispatcher would hand it out, of a dataset that nobody else has."""
    dataset, version = uuid4(), uuid4()
    return {
        "output_index": index,
        "name": name,
        "dataset_uuid": dataset,
        "dataset_version": version,
        "storage_ref": {
            "scheme": "file",
            "bucket": "trace",
            "prefix": attempt_prefix(generation_place(dataset, version), task_id, 1),
        },
    }
