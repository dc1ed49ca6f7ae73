"""Task payloads like the Dispatcher's, and the files that such tasks write."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pyarrow.parquet as pq

from trace_etl.api.task.payload import TaskOutput, TaskPayload
from trace_etl.model.storage import attempt_prefix, generation_prefix


def range_scope(start: int, end: int) -> dict[str, Any]:
    return {"partition_key": f"{start}-{end}", "start": start, "end": end}


def task(
    operator: str,
    config: Mapping[str, Any],
    outputs: Sequence[str],
    *,
    scope: Mapping[str, Any] | None = None,
    inputs: Sequence[Mapping[str, Any]] = (),
    attempt: int = 1,
) -> TaskPayload:
    task_id = uuid4()
    return TaskPayload.model_validate(
        {
            "task_id": task_id,
            "attempt": attempt,
            "job": {"dag_name": "test", "name": operator},
            "operator": operator,
            "config": config,
            "scope": scope,
            "inputs": inputs,
            "outputs": [_output(i, name, task_id, attempt) for i, name in enumerate(outputs)],
        }
    )


def ingest(
    start: int,
    end: int,
    *,
    pool: str = "default",
    outputs: Sequence[str] = ("blocks", "transactions", "logs"),
) -> TaskPayload:
    return task("cryo_ingest", {"rpc": pool}, outputs, scope=range_scope(start, end))


def select(
    sql: str, *inputs: Mapping[str, Any], scope: Mapping[str, Any] | None = None
) -> TaskPayload:
    return task("sql", {"sql": sql}, ["answer"], scope=scope, inputs=inputs)


def as_input(
    *producers: TaskPayload, name: str, where: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return an output of finished tasks as an input of another task."""
    partitions: list[dict[str, Any]] = []
    for producer in producers:
        assert producer.scope is not None
        partitions.append(
            {
                "partition_key": producer.scope.partition_key,
                "start": producer.scope.start,
                "end": producer.scope.end,
                "storage_ref": output_of(producer, name).storage_ref.model_dump(),
            }
        )
    return {
        "input_index": 0,
        "name": name,
        "dataset_uuid": uuid4(),
        "dataset_version": uuid4(),
        "where": where,
        "partitions": partitions,
    }


def output_of(payload: TaskPayload, name: str) -> TaskOutput:
    return next(output for output in payload.outputs if output.name == name)


def directory(root: Path, payload: TaskPayload, name: str) -> Path:
    ref = output_of(payload, name).storage_ref
    return root / ref.bucket / ref.prefix


def marker(root: Path, payload: TaskPayload, name: str) -> dict[str, Any]:
    return json.loads((directory(root, payload, name) / "_SUCCESS").read_text())


def rows(root: Path, payload: TaskPayload, name: str) -> list[dict[str, Any]]:
    """Return the rows of all files that the marker lists."""
    base = directory(root, payload, name)
    files = [base / file["name"] for file in marker(root, payload, name)["files"]]
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


def _output(index: int, name: str, task_id: UUID, attempt: int) -> dict[str, Any]:
    dataset_uuid, version = uuid4(), uuid4()
    return {
        "output_index": index,
        "name": name,
        "dataset_uuid": dataset_uuid,
        "dataset_version": version,
        "storage_ref": {
            "scheme": "file",
            "bucket": "trace",
            "prefix": attempt_prefix(generation_prefix(dataset_uuid, version), task_id, attempt),
        },
    }
