"""Hand-written histories for the history checker: calls at given seconds."""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid5

_SPACE = UUID(int=7)
NOON = 1_700_000_000.0


def uid(name: str) -> str:
    """Return a UUID derived from a readable name."""
    return str(uuid5(_SPACE, name))


def iso(second: float) -> str:
    return datetime.fromtimestamp(NOON + second, UTC).isoformat()


@dataclass
class HistoryBuilder:
    """Builds the lines of a history. By default calls take half a second and leases last a minute."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)

    @property
    def text(self) -> list[str]:
        return [json.dumps(line) for line in self.lines]

    def call(
        self,
        second: float,
        call: str,
        request: dict[str, Any],
        body: dict[str, Any] | None = None,
        *,
        status: int = 200,
        error: str | None = None,
        sent: bool = True,
        took: float = 0.5,
    ) -> "HistoryBuilder":
        line = {
            "at": "dispatcher-1",
            "actor": "w1",
            "call": call,
            "request": request,
            "began": NOON + second,
            "ended": NOON + second + took,
        }
        if error is not None:
            line |= {"error": error, "sent": sent}
        else:
            line |= {"answer": {"status": status, "body": body}}
        self.lines.append(line)
        return self

    def claim(
        self,
        second: float,
        task: str,
        attempt: int = 1,
        *,
        lease: str | None = None,
        lease_seconds: float = 60,
        timeout: int = 3600,
        **options: Any,
    ) -> "HistoryBuilder":
        body = {
            "status": "Claimed",
            "attempt": attempt,
            "lease_token": uid(lease or f"{task}/{attempt}"),
            "lease_expires_at": iso(second + lease_seconds),
            "capability_token": "…",
            "task": {
                "task_id": uid(task),
                "attempt": attempt,
                "job": {"dag_name": "d", "name": "j"},
                "operator": "sql",
                "config": {},
                "timeout_seconds": timeout,
            },
        }
        return self.call(
            second, "claim", {"task_id": uid(task), "worker_id": "w1"}, body, **options
        )

    def fenced(
        self,
        second: float,
        call: str,
        task: str,
        attempt: int,
        fields: dict[str, Any],
        body: dict[str, Any],
        lease: str | None = None,
        **options: Any,
    ) -> "HistoryBuilder":
        request = {
            "task_id": uid(task),
            "attempt": attempt,
            "lease_token": uid(lease or f"{task}/{attempt}"),
            **fields,
        }
        return self.call(second, call, request, body, **options)

    def beat(
        self,
        second: float,
        task: str,
        attempt: int = 1,
        *,
        lease_seconds: float = 60,
        **options: Any,
    ) -> "HistoryBuilder":
        body = {"status": "Accepted", "lease_expires_at": iso(second + lease_seconds)}
        return self.fenced(second, "heartbeat", task, attempt, {}, body, **options)

    def complete(
        self, second: float, task: str, attempt: int = 1, status: str = "Completed", **fields: Any
    ) -> "HistoryBuilder":
        options = {k: fields.pop(k) for k in ("lease", "error", "sent", "took") if k in fields}
        fields = {"status": status, **fields}
        body = {"status": "Accepted", "task_status": status}
        return self.fenced(second, "complete", task, attempt, fields, body, **options)

    def events(
        self,
        second: float,
        task: str,
        scopes: list[int],
        accepted: int,
        attempt: int = 1,
        **options: Any,
    ) -> "HistoryBuilder":
        fields = {"events": [event(scope) for scope in scopes]}
        body = {"status": "Accepted", "accepted": accepted}
        return self.fenced(second, "events", task, attempt, fields, body, **options)

    def buffer(
        self, second: float, task: str, batch: str, publish: str, attempt: int = 1, **options: Any
    ) -> "HistoryBuilder":
        fields = {"batch_uri": f"s3://b/{batch}", "dataset_uuid": uid("alerts")}
        body = {"status": "Accepted", "publish_id": uid(publish)}
        return self.fenced(second, "buffer_publish", task, attempt, fields, body, **options)

    def loop(self, second: float, call: str, task: str, attempt: int) -> "HistoryBuilder":
        """Add a pass of the reaper or the retry scheduler that changed one task."""
        key = {"reap": "reaped", "retry": "started"}[call]
        return self.call(second, call, {}, {key: [{"task_id": uid(task), "attempt": attempt}]})

    def expire(self, second: float, task: str) -> "HistoryBuilder":
        return self.call(second, "expire", {"task_id": uid(task)}, {})

    # --- the dump -------------------------------------------------------------------------

    def dump(self, *tables: str) -> "HistoryBuilder":
        self.lines.append({"dump": list(tables)})
        return self

    def row(self, table: str, **fields: Any) -> "HistoryBuilder":
        self.lines.append({"table": table, "row": fields})
        return self

    def task_row(self, task: str, status: str, attempt: int = 1, **fields: Any) -> "HistoryBuilder":
        row = {"task_id": uid(task), "status": status, "attempt": attempt, "max_attempts": 3}
        return self.row("tasks", **{**row, **fields})

    def event_row(self, task: str, scope: int, attempt: int = 1, **fields: Any) -> "HistoryBuilder":
        row = {
            "event_id": uid(f"event {task} {scope}"),
            "producer_task_id": uid(task),
            "attempt": attempt,
            "dataset_uuid": uid("blocks"),
            "dataset_version": uid("blocks/1"),
            "scope_key": f"c:{scope}",
        }
        return self.row("events", **{**row, **fields})

    def buffer_row(self, publish: str, task: str, batch: str) -> "HistoryBuilder":
        return self.row(
            "buffer_publishes",
            publish_id=uid(publish),
            task_id=uid(task),
            attempt=1,
            dataset_uuid=uid("alerts"),
            batch_uri=f"s3://b/{batch}",
        )

    def partition_row(self, task: str, attempt: int, start: int, end: int) -> "HistoryBuilder":
        published = publication(task, attempt, start, end)
        return self.row(
            "partitions",
            dataset_version=published["dataset_version"],
            partition_key=f"{start}-{end}",
            range_start=start,
            range_end=end,
            storage_ref=published["storage_ref"],
            task_id=uid(task),
            attempt=attempt,
        )


def event(scope: int) -> dict[str, Any]:
    return {
        "dataset_uuid": uid("blocks"),
        "dataset_version": uid("blocks/1"),
        "cursor": scope,
    }


def publication(task: str, attempt: int, start: int, end: int) -> dict[str, Any]:
    return {
        "dataset_uuid": uid("blocks"),
        "dataset_version": uid("blocks/1"),
        "storage_ref": {"scheme": "file", "bucket": "trace", "prefix": f"cold/{task}/{attempt}/"},
        "range_start": start,
        "range_end": end,
    }
