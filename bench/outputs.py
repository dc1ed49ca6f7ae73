"""Outputs of tasks that a benchmark runs without a Dispatcher."""

from typing import Any
from uuid import UUID, uuid4

from trace_etl.api.task.payload import Storage
from trace_etl.model.storage import attempt_prefix, generation_place
from trace_etl.objects.store import ObjectStore
from trace_etl.spark.io.writers import OutputFile


def new_file(store: ObjectStore, name: str) -> OutputFile:
    """Return a file under a new prefix of the bucket `bench`."""
    return OutputFile(store, Storage(scheme="file", bucket="bench", prefix=f"{uuid4()}/"), name)


def output(index: int, name: str, task_id: UUID) -> dict[str, Any]:
    """Return an output of a new dataset, as the Dispatcher would send it."""
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
