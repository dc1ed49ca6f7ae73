"""Reads Postgres state and the queue into the terms of the model."""

from collections import Counter
from dataclasses import asdict, replace
from typing import Any

import psycopg

from support import queue_tables
from support.lifecycle.lifecycle_model import SILENT, Fence, Key, Model, Task, wake_subject

_STATE = """
SELECT json_build_object(
    'tasks', (SELECT json_agg(json_build_object(
        'id', t.task_id, 'job', j.name,
        'scope', coalesce('p:' || t.partition_key, 'c:' || t.cursor_value),
        'status', t.status, 'attempt', t.attempt, 'lease', t.lease_token,
        'cancel', t.cancel_requested, 'reaped', t.cause IS NOT NULL,
        'completed', t.completion_hash IS NOT NULL,
        'retry', CASE WHEN t.retry_at <= now() THEN 'due'
                      WHEN t.retry_at > now() THEN 'waiting' END,
        'expired', t.status = 'Running' AND t.lease_expires_at < now(),
        'overdue', t.status = 'Running' AND t.deadline_at < now()))
        FROM tasks t JOIN jobs j USING (job_id)),
    'attempts', (SELECT json_agg(json_build_array(task_id, attempt, outcome, cause))
                   FROM task_attempts),
    'events', (SELECT json_agg(json_build_array(event_id, producer_task_id, scope_key, attempt,
                                                routed_at IS NOT NULL)) FROM events),
    'outbox', (SELECT json_agg(json_build_array(kind, subject)) FROM outbox),
    'jobs', (SELECT json_agg(json_build_array(job_id, name)) FROM jobs),
    'partitions', (SELECT json_agg(json_build_array(j.name, p.partition_key, p.task_id, p.attempt,
                                                    p.storage_ref ->> 'prefix'))
                     FROM partitions p JOIN dataset_versions v USING (dataset_version)
                     JOIN datasets d USING (dataset_uuid) JOIN jobs j USING (job_id)))
"""
CLEAN = (
    "DELETE FROM tasks",
    "DELETE FROM task_attempts",
    "DELETE FROM events",
    "DELETE FROM outbox",
    "DELETE FROM partitions",
)

Conn = psycopg.Connection[Any]


class View:
    """A snapshot of both databases."""

    def __init__(self, state: Conn, queue: Conn) -> None:
        (self._rows,) = state.execute(_STATE).fetchone() or ({},)
        self._messages = queue.execute(queue_tables.MESSAGES).fetchall()
        self.keys: dict[str, Key] = {
            t["id"]: (t["job"], t["scope"]) for t in self._section("tasks")
        }
        self.ids: dict[Key, str] = {key: task_id for task_id, key in self.keys.items()}

    def _section(self, name: str) -> list[Any]:
        return self._rows[name] or []

    def model(self) -> Model:
        """Return the snapshot in the form of the model."""
        return Model(
            tasks={(t["job"], t["scope"]): _task(t) for t in self._section("tasks")},
            ended={
                (self.keys[t], n): (outcome, _normalise_cause(cause))
                for t, n, outcome, cause in self._ended()
            },
            events={
                (self.keys[t], s): (n, routed) for _, t, s, n, routed in self._section("events")
            },
            outbox=self._outbox(),
            partitions=self._partitions(),
            messages=self._sent(),
        )

    def _ended(self) -> list[Any]:
        return self._section("attempts")

    def _outbox(self) -> Counter[tuple[str, Any]]:
        return Counter(
            (kind, self._subject(kind, subject)) for kind, subject in self._section("outbox")
        )

    def _subject(self, kind: str, subject: str) -> Any:
        if kind == "route_event":
            events = {i: (self.keys[t], scope) for i, t, scope, _, _ in self._section("events")}
            return events[subject]
        if kind == "wake_next":
            return dict(self._section("jobs"))[subject]
        return wake_subject(self.keys[subject])

    def _partitions(self) -> dict[tuple[str, str], Fence]:
        fences: dict[tuple[str, str], Fence] = {}
        for job, key, task_id, attempt, prefix in self._section("partitions"):
            assert prefix.endswith(f"/{task_id}/{attempt}/"), (
                "the partition points to files of another attempt"
            )
            fences[job, f"p:{key}"] = Fence(self.keys[task_id], attempt, "")
        return fences

    def _sent(self) -> Counter[tuple[str, Any]]:
        return Counter(
            (queue, wake_subject(self.keys[body["task_id"]])) for queue, body in self._messages
        )


def _task(row: dict[str, Any]) -> Task:
    names = ("status", "attempt", "lease", "cancel", "reaped", "retry", "expired", "overdue")
    return Task(**{name: row[name] for name in names}, content="" if row["completed"] else None)


def differences(model: Model, actual_model: Model) -> list[str]:
    """Describe every difference between the model and the databases."""
    expected_parts, actual_parts = asdict(_comparable(model)), asdict(actual_model)
    lines: list[str] = []
    for part, expected in expected_parts.items():
        actual = actual_parts[part]
        for key in expected.keys() | actual.keys():
            if expected.get(key) != actual.get(key):
                lines.append(f"{part} {key}: should be {expected.get(key)}, is {actual.get(key)}")
    return sorted(lines)


def _comparable(model: Model) -> Model:
    """Reduce contents to present or absent: the database stores only their hashes."""
    tasks = {
        key: replace(task, content=None if task.content is None else "")
        for key, task in model.tasks.items()
    }
    return replace(model, tasks=tasks)


def _normalise_cause(cause: str | None) -> str | None:
    return SILENT if cause in ("worker_gone", "lease_expired") else cause
