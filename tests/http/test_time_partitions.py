"""Jobs with a partition per day: which days a change of their input builds again."""

from typing import Any

import pytest

from support.dags.clock import Clock
from support.data.delivery_consumer import DeliveryConsumer
from support.lifecycle.lifecycle import Attempt, Bench, rows_hash

_DAG = """
name: {name}
jobs:
  - {{name: request, source: {{kind: manual}}, outputs: [ranges]}}
  - name: rows
    operator: sql
    inputs: [{{from: {{job: request}}}}]
    outputs: [rows]
    config: {{sql: "SELECT 1 AS n"}}
  - name: names
    operator: sql
    inputs: [{{from: {{job: rows}}}}]
    outputs: [names]
    config: {{sql: "SELECT 1 AS n"}}
  - name: daily
    operator: sql
    inputs:
      - {{from: {{job: rows}}, time: at}}
      - {{from: {{job: names}}}}
    outputs: [daily]
    partition_by: day
    config: {{sql: "SELECT count(*) AS n FROM rows /* {text} */"}}
publish:
  - {{name: {name}_daily, from: {{job: daily}}}}
"""


class Calendar(Clock):
    """A DAG whose last job has a partition per day."""

    def mapped(self, **days: list[str]) -> dict[str, Any]:
        """Complete the queued mapping task: it finds these days in its partitions."""
        attempt = self.claim_mapping()
        return self.report(attempt, **days)

    def claim_mapping(self) -> Attempt:
        waiting = [t for t in self.tasks("daily", status="Queued") if "-" in t["partition_key"]]
        (task,) = [t for t in waiting if t["partition_key"].count("-") == 1]
        return self.bench.claimed(task["task_id"])

    def report(self, attempt: Attempt, *, status: int = 200, **days: list[str]) -> dict[str, Any]:
        (version,) = {
            i["dataset_version"] for i in attempt.claimed["task"]["inputs"] if i["time_column"]
        }
        found = [
            {"dataset_version": version, "partition_key": key[1:].replace("_", "-"), "time_keys": v}
            for key, v in days.items()
        ]
        reply = self.bench.complete(attempt, mapped_partitions=found)
        assert reply.status_code == status, reply.text
        self.bench.live.drain()
        return reply.json()

    def waiting_days(self) -> list[str]:
        keys = [t["partition_key"] for t in self.tasks("daily", status="Queued")]
        return sorted(key for key in keys if key.count("-") == 2)

    def build_days(self, content: int | None = None) -> dict[str, list[str]]:
        """Build the queued days. Returns the partitions that each of them read.

        `content` is the content hash of their rows.
        """
        read: dict[str, list[str]] = {}
        for task in self.tasks("daily", status="Queued"):
            attempt = self.bench.claimed(task["task_id"])
            rows = attempt.claimed["task"]["inputs"][0]["partitions"]
            read[task["partition_key"]] = sorted(p["partition_key"] for p in rows)
            self.complete(attempt, content)
        return read

    def rollout_state(self) -> str:
        """Swap what is complete. Returns the state of the last rollout."""
        self.bench.live.run(self.bench.live.service.swapper.swap_once)
        return self.bench.user.get(f"/v1/dags/{self.name}/rollout").json()["state"]

    def rewrite(self, key: str, last: int | None = None) -> None:
        """Run the task of a partition of `rows` again; with `last`, up to another block."""
        (task,) = [t for t in self.tasks("rows") if t["partition_key"] == key]
        first, end = key.split("-")
        end = last or int(end)
        self.bench.rows(
            "UPDATE tasks SET status = 'Queued', lease_token = NULL, attempt = attempt + 1,"
            " started_at = NULL, finished_at = NULL, lease_expires_at = NULL, range_end = %s,"
            " partition_key = %s WHERE task_id = %s",
            end,
            f"{first}-{end}",
            task["task_id"],
        )
        self.run("rows")


@pytest.fixture
def calendar(shared: Bench) -> Calendar:
    return Calendar(shared, _DAG)


def test_each_day_is_built_from_the_partitions_that_have_its_rows(calendar: Calendar) -> None:
    calendar.add_rows(0)
    calendar.mapped(k0_9=["2026-03-01", "2026-03-02"])
    calendar.add_rows(10)
    calendar.mapped(k10_19=["2026-03-02"])
    assert calendar.waiting_days() == ["2026-03-01", "2026-03-02"]  # one task for both changes
    assert calendar.build_days() == {"2026-03-01": ["0-9"], "2026-03-02": ["0-9", "10-19"]}
    names = [t for t in calendar.tasks("names") if t["status"] == "Queued"]
    assert len(names) == 2 and calendar.waiting_days() == []  # a lookup starts nothing


def test_a_rewrite_builds_the_old_and_the_new_days_again(calendar: Calendar) -> None:
    calendar.add_rows(0)
    calendar.mapped(k0_9=["2026-03-01", "2026-03-02"])
    calendar.add_rows(10)
    calendar.mapped(k10_19=["2026-03-05"])
    calendar.build_days()
    calendar.rewrite("0-9")
    calendar.mapped(k0_9=["2026-03-02", "2026-03-03"])
    assert calendar.waiting_days() == ["2026-03-01", "2026-03-02", "2026-03-03"]
    assert calendar.build_days() == {
        "2026-03-01": ["0-9"],  # no rows are left: one partition, for the columns
        "2026-03-02": ["0-9"],
        "2026-03-03": ["0-9"],
    }


def test_the_days_of_a_partition_with_other_bounds_are_built_again(calendar: Calendar) -> None:
    calendar.add_rows(0)
    calendar.mapped(k0_9=["2026-03-01", "2026-03-02"])
    calendar.build_days()
    calendar.rewrite("0-9", last=15)  # as a follower's next update after a reorganisation
    skipped = calendar.claim_mapping()
    calendar.rewrite("0-15", last=20)
    calendar.report(skipped)  # its partition is gone
    calendar.mapped(k0_20=["2026-03-03"])
    assert calendar.build_days() == {
        "2026-03-01": ["0-20"],
        "2026-03-02": ["0-20"],
        "2026-03-03": ["0-20"],
    }


def test_a_late_mapping_of_older_rows_changes_nothing(calendar: Calendar) -> None:
    calendar.add_rows(0)
    late = calendar.claim_mapping()
    calendar.rewrite("0-9")
    calendar.mapped(k0_9=["2026-03-02"])
    calendar.build_days()
    calendar.report(late, k0_9=["2026-03-01"])
    assert calendar.waiting_days() == []
    calendar.add_rows(10)
    calendar.mapped(k10_19=["2026-03-02"])
    assert calendar.build_days() == {"2026-03-02": ["0-9", "10-19"]}


def test_the_delivery_log_names_the_days_whose_rows_changed(calendar: Calendar) -> None:
    consumer = DeliveryConsumer(calendar.bench, f"{calendar.name}_daily")

    def build(content: int, **days: list[str]) -> list[tuple[str, str, str, str | None]]:
        calendar.mapped(**days)
        calendar.build_days(content)
        changes = consumer.catch_up()
        assert consumer.copy == consumer.read()
        assert {(c["start"], c["end"]) for c in changes} <= {(None, None)}
        return sorted(
            (c["partition_key"], c["kind"], c["reason"], c["old_hash"])
            for c in changes
            if c["kind"] != "version"
        )

    calendar.add_rows(0)
    assert build(1, k0_9=["2026-03-01", "2026-03-02"]) == [
        ("2026-03-01", "published", "refresh", None),
        ("2026-03-02", "published", "refresh", None),
    ]
    calendar.add_rows(10)
    assert build(2, k10_19=["2026-03-02", "2026-03-03"]) == [
        ("2026-03-02", "replaced", "refresh", rows_hash(1)),
        ("2026-03-03", "published", "refresh", None),
    ]
    # The same rows are not a change.
    calendar.rewrite("10-19")
    assert build(2, k10_19=["2026-03-02", "2026-03-03"]) == []
    assert consumer.copy == {
        "2026-03-01": rows_hash(1),
        "2026-03-02": rows_hash(2),
        "2026-03-03": rows_hash(2),
    }
    calendar.rewrite("0-9")
    assert build(3, k0_9=["2026-03-02"]) == [
        ("2026-03-01", "replaced", "refresh", rows_hash(1)),
        ("2026-03-02", "replaced", "refresh", rows_hash(2)),
    ]
    # A day that a user rebuilds: only other rows are a change.
    path = f"/v1/datasets/{calendar.name}_daily/invalidations"
    body = {"partition_key": "2026-03-02", "rebuild": True}
    for content, expected in ((3, []), (4, [("2026-03-02", "replaced", "repair")])):
        assert calendar.bench.user.post(path, json=body).json()["rebuilding"] == 1
        assert calendar.build_days(content) == {"2026-03-02": ["0-9", "10-19"]}
        changes = consumer.catch_up()
        assert [(c["partition_key"], c["kind"], c["reason"]) for c in changes] == expected


def test_a_task_reports_only_the_days_of_its_own_inputs(calendar: Calendar) -> None:
    calendar.add_rows(0)
    attempt = calendar.claim_mapping()
    other = {**attempt.claimed["task"]["outputs"][0], "partition_key": "0-9", "time_keys": []}
    found = [{k: other[k] for k in ("dataset_version", "partition_key", "time_keys")}]
    assert calendar.bench.complete(attempt, mapped_partitions=found).status_code == 403
    calendar.report(attempt, k0_9=["2026-03-01"])
    (task,) = calendar.tasks("daily", status="Queued")
    day = calendar.bench.claimed(task["task_id"])
    calendar.report(day, status=403, k0_9=["2026-03-01"])


def test_a_changed_job_is_current_when_all_its_days_are_built(calendar: Calendar) -> None:
    calendar.add_rows(0)
    calendar.mapped(k0_9=["2026-03-01"])
    calendar.add_rows(10)
    calendar.mapped(k10_19=["2026-03-01"])
    calendar.build_days()
    calendar.deploy("changed")
    for days in ({"k0_9": ["2026-03-01"]}, {"k10_19": ["2026-03-01"]}):
        mapping = min(
            (t for t in calendar.tasks("daily", status="Queued")),
            key=lambda t: (t["partition_key"].count("-"), len(t["partition_key"])),
        )
        calendar.report(calendar.bench.claimed(mapping["task_id"]), **days)
        assert calendar.rollout_state() == "building"
    calendar.build_days()
    assert calendar.rollout_state() == "complete"
