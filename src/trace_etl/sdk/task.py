"""The task that a function runs for: its settings, its inputs and its outputs."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from trace_etl.sdk.connection import BrokerConnection, CallFailed

__all__ = ["CallFailed", "FunctionContext", "Task"]

_MAX_BATCH_BYTES = 8 * 1024 * 1024
_MAX_BATCH_ROWS = 100_000
_TOO_MANY = "the result is too large; select fewer columns or rows, or process it in steps"


class Task:
    """One attempt of a task. All calls go through one socket, which serves only this attempt."""

    def __init__(
        self, event: Mapping[str, Any], connection: BrokerConnection | None = None
    ) -> None:
        self.event = event
        """The whole payload of the task."""
        self.config: Mapping[str, Any] = event["config"]
        """The `config` of the job."""
        self.scope: Mapping[str, Any] = event.get("scope") or {}
        """The part of the inputs to process: `start` and `end`, `partition_key` or `cursor`."""
        self.parameters: Mapping[str, Any] = event.get("parameters") or {}
        """What started the task: the `scheduled_time` of a tick, the `payload` of a trigger or webhook."""
        self.inputs: list[str] = [entry["name"] for entry in event["inputs"]]
        """The names of the inputs, which are tables in `query`."""
        self._outputs: dict[str, Mapping[str, Any]] = {o["name"]: o for o in event["outputs"]}
        self._connection = connection or BrokerConnection(os.environ["TRACE_SOCKET"])
        # Several tasks of one attempt publish below the same prefix.
        self._batch_prefix = f"batch-{os.urandom(8).hex()}"
        self._batches = 0

    def query(
        self, sql: str, params: Sequence[Any] | Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Run one SELECT over the inputs, as they were when the task started. Raises CallFailed."""
        body = {"sql": sql, "params": params, "format": "json"}
        reply = self._connection.call("/v1/task/query", body)
        if reply["rows"] is None:
            raise CallFailed("result_too_large", _TOO_MANY)
        names = [column["name"] for column in reply["columns"]]
        return [dict(zip(names, row, strict=True)) for row in reply["rows"]]

    def rows(self, name: str | None = None) -> list[dict[str, Any]]:
        """Return all rows of an input; of the only one by default. Raises CallFailed."""
        chosen = name or _get_only(self.inputs, "input")
        quoted = chosen.replace('"', '""')
        return self.query(f'SELECT * FROM "{quoted}"')  # noqa: S608 - quoted

    def publish(self, rows: Iterable[Mapping[str, Any]], output: str | None = None) -> int:
        """Send rows to a buffered output; to the only one by default. Returns their number.

        A row with the unique key of an existing row replaces it. Raises CallFailed.
        """
        target = self._find_output(output)
        total = 0
        for lines in _pack(rows):
            self._publish_batch(target, lines)
            total += len(lines)
        return total

    def _publish_batch(self, target: Mapping[str, Any], lines: list[bytes]) -> None:
        content, storage = b"".join(lines), target["storage_ref"]
        name = f"{self._batch_prefix}-{self._batches:05d}.jsonl"
        key = f"{storage['bucket']}/{storage['prefix']}{name}"
        self._batches += 1
        self._put(f"s3://{key}", content, {"If-None-Match": "*"})
        self._connection.call(
            "/v1/task/buffer-publish",
            {
                "dataset_uuid": target["dataset_uuid"],
                "dataset_version": target["dataset_version"],
                "batch_uri": f"s3://{key}",
                "record_count": len(lines),
                "batch_size_bytes": len(content),
            },
        )

    def emit(self, events: Iterable[Mapping[str, Any]], output: str | None = None) -> None:
        """Emit events of an output; of the only one by default. Raises CallFailed.

        An event has `start` and `end` (blocks, both inclusive), a `cursor` or a `partition_key`.
        """
        completed = [self._complete_event(event, output) for event in events]
        self._connection.call("/v1/task/events", {"events": completed})

    def _complete_event(self, event: Mapping[str, Any], output: str | None) -> dict[str, Any]:
        """Add the dataset and the key of a block range, unless the event has them."""
        completed = dict(event)
        if not completed.keys() & {"dataset", "dataset_uuid"}:
            completed["dataset_uuid"] = self._find_output(output)["dataset_uuid"]
        if "start" in completed and "partition_key" not in completed:
            completed["partition_key"] = f"{completed['start']}-{completed['end']}"
        return completed

    def _find_output(self, name: str | None) -> Mapping[str, Any]:
        chosen = name or _get_only(list(self._outputs), "output")
        if (target := self._outputs.get(chosen)) is None:
            raise CallFailed(
                "unknown_output",
                f"the task has no output {chosen}; its outputs are {', '.join(self._outputs)}",
            )
        return target

    def get_object(self, url: str) -> bytes:
        """Read an object (`s3://bucket/key`) of an input or of the scratch prefix. Raises CallFailed."""
        return self._connection.send("GET", _make_object_path(url)).content

    def put_object(self, url: str, content: bytes) -> None:
        """Write an object below the scratch or export prefix, or an output. Raises CallFailed."""
        self._put(url, content, {})

    def _put(self, url: str, content: bytes, conditions: Mapping[str, str]) -> None:
        headers = {"Content-Type": "application/octet-stream", **conditions}
        self._connection.send("PUT", _make_object_path(url), content, headers)

    @property
    def scratch_url(self) -> str:
        """The prefix for temporary objects. They are deleted after some days."""
        return _make_prefix_url(self.event["scratch_ref"])

    @property
    def export_url(self) -> str:
        """The prefix for results that people fetch."""
        return _make_prefix_url(self.event["export_ref"])

    def heartbeat(self) -> Mapping[str, Any]:
        """Extend the lease, and return the answer of the platform. Raises CallFailed when it is lost."""
        return self._connection.call("/v1/task/heartbeat", {})

    def is_canceled(self) -> bool:
        """Return whether the task is to be canceled. Raises CallFailed when the lease is lost."""
        return bool(self.heartbeat()["cancel_requested"])


@dataclass(frozen=True)
class FunctionContext:
    """The second argument of a handler."""

    task: Task


def _get_only(names: Sequence[str], kind: str) -> str:
    if len(names) != 1:
        raise ValueError(f"the task has {len(names)} {kind}s; name one of {', '.join(names)}")
    return names[0]


def _pack(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[bytes]]:
    """Encode rows as lines of JSON, grouped into batches that the platform accepts."""
    lines: list[bytes] = []
    size = 0
    for row in rows:
        line = (
            json.dumps(row, ensure_ascii=False, allow_nan=False, default=_encode).encode() + b"\n"
        )
        if lines and (size + len(line) > _MAX_BATCH_BYTES or len(lines) >= _MAX_BATCH_ROWS):
            yield lines
            lines, size = [], 0
        lines.append(line)
        size += len(line)
    if lines:
        yield lines


def _encode(value: object) -> str:
    if isinstance(value, bytes | bytearray):
        return "0x" + value.hex()
    return str(value)


def _make_object_path(url: str) -> str:
    return "/v1/task/objects/" + quote(url.removeprefix("s3://"), safe="/")


def _make_prefix_url(storage: Mapping[str, str]) -> str:
    return f"s3://{storage['bucket']}/{storage['prefix']}"
