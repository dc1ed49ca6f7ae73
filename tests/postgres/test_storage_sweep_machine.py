"""Random attempts, replacements, deploys and sweeps that die halfway: no used object is ever deleted.

The model is simple: committed prefixes, prefixes that a running task pinned, and prefixes of attempts that can
still commit are intact after every step, and everything else is gone in the end. A generation that a deployed
version or a rollback uses loses no partition, and one that comes back is whole or empty.
"""

from collections.abc import Generator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from support.data.storage_model import Died, StoredObjects, dying_after
from support.lifecycle.lifecycle import Attempt, Bench, Dag, bench, run_concurrently
from support.services.dispatcher import Secrets, live
from support.services.postgres import Templates, copied

ANY = st.integers(0, 7)
DAYS = st.sampled_from([2, 8, 40])
SLOTS = 8  # ranges of blocks, each written and rewritten
DIES = st.sampled_from([None, None, 0, 1, 2, 4])
KINDS = (
    *("start", "start", "start", "complete", "late", "reap", "reap", "fail"),
    *("replace_partition", "replace_partition", "read", "read", "finish_reader"),
    *("sweep", "sweep", "sweep", "sweep_on_both_replicas", "sweep_while_an_attempt_completes"),
    *(
        "delete_history",
        "redeploy",
        "redeploy",
        "roll_back",
        "sweep_generations",
        "sweep_generations",
    ),
)
_GENERATIONS = """
SELECT v.dataset_version::text AS version, v.sweep_started_at IS NOT NULL AS is_swept,
       d.dataset_version IS NOT NULL AS is_current,
       u.dataset_version IS NOT NULL AS is_used, array(
       SELECT p.partition_key FROM partitions p WHERE p.dataset_version = v.dataset_version) AS keys
  FROM dataset_versions v LEFT JOIN used_generations u USING (dataset_version)
  LEFT JOIN datasets d ON v.dataset_version IN (d.dataset_version, d.building_version)
"""
_COMPLETED = """
SELECT 1 FROM dataset_versions v JOIN datasets d USING (dataset_uuid)
  JOIN tasks t USING (job_id) JOIN job_revisions r USING (revision_id)
 WHERE v.dataset_version = %s AND r.generation_hash = v.generation_hash AND t.status = 'Completed'
"""
_UNREACHABLE = """
SELECT 1 FROM partitions p JOIN dataset_versions v USING (dataset_version)
  JOIN datasets d ON d.dataset_uuid = v.dataset_uuid JOIN jobs j USING (job_id)
  JOIN dags g USING (dag_id)
 WHERE g.name = %s
   AND p.dataset_version NOT IN (SELECT u.dataset_version FROM used_generations u)
"""


class StorageMachine(RuleBasedStateMachine):
    """Attempts write, end and are swept, on two replicas over one database and one store."""

    replicas: ClassVar[list[Bench]]

    def __init__(self) -> None:
        super().__init__()
        self.bench = self.replicas[0]
        self.store = StoredObjects(self.bench)
        self.dag: Dag
        self.attempts: list[Attempt] = []
        """Attempts of the producer that have not reported an end. Some of them are reaped."""
        self.outputs: dict[str, dict[str, Any]] = {}
        """The publication of an attempt that wrote its marker, by lease token."""
        self.readers: list[Attempt] = []
        self.swept: set[str] = set()
        """The generations whose sweep had started after the last step."""
        self.partitions: dict[str, set[str]] = {}
        """The partitions that each generation had when it was last used."""

    @initialize(max_attempts=st.integers(1, 2), committed=st.integers(1, 3))
    def deploy(self, max_attempts: int, committed: int) -> None:
        self.dag = self.bench.dag(f"max_attempts: {max_attempts}")
        self.store.write_foreign(self.dag)
        for task_id in self.bench.tasks(SLOTS, dag=self.dag)[:committed]:
            attempt = self.bench.claimed(task_id)
            published = [self.store.write_output(attempt)]
            assert self.bench.complete(attempt, datasets_published=published).status_code == 200

    # One rule for all kinds of steps: Hypothesis leaves out some rules in each run, and nothing is worth
    # sweeping if one kind is missing.
    @rule(kind=st.sampled_from(KINDS), n=ANY, flag=st.booleans(), days=DAYS, dies=DIES)
    def step(self, kind: str, n: int, flag: bool, days: int, dies: int | None) -> None:
        match kind:
            case "start":
                area = (None, "scratch", "exports")[n % 3]
                self.start(n, marker=flag, area=area)
            case "replace_partition":
                self.replace_partition(n % SLOTS)
            case "read":
                self.read(n)
            case "finish_reader":
                self.finish_reader(n)
            case "delete_history":
                self.delete_history()
            case "redeploy":
                self.redeploy(n)
            case "roll_back":
                path = f"/v1/dags/{self.dag.name}/rollback"
                assert self.bench.user.post(path).status_code in (200, 409)
            case "sweep_generations":
                self.sweep_generations(days, passes=n, dies_after=dies)
            case "sweep":
                self.sweep(days, lists=flag, dies_after=dies)
            case "sweep_on_both_replicas":
                self.sweep_on_both_replicas(days)
            case "sweep_while_an_attempt_completes":
                self.sweep_while_an_attempt_completes(n, is_reaped=flag)
            case how:
                self.end(n, how)

    # --- attempts ---------------------------------------------------------------------------

    def start(self, n: int, *, marker: bool, area: str | None) -> None:
        """Claim a task of the producer and write its output, or a part of it."""
        waiting = self.waiting("work")
        if not waiting:
            return
        attempt = self.bench.claimed(waiting[n % len(waiting)])
        self.attempts.append(attempt)
        if area is not None:
            self.store.write_scratch(attempt, area)
        if marker:
            self.outputs[attempt.fence["lease_token"]] = self.store.write_output(attempt)
        else:
            self.store.write_data(attempt)

    def replace_partition(self, slot: int) -> None:
        """Rebuild a scope. The completion replaces its partition, unless another task runs."""
        body = {"partition_key": f"{slot * 10}-{slot * 10 + 9}", "rebuild": True, "reason": "test"}
        path = f"/v1/datasets/{self.dag.published}/invalidations"
        assert self.bench.user.post(path, json=body).status_code in (200, 404, 409, 422)
        self.start(0, marker=True, area=None)
        self.end(-1, "complete")

    def end(self, n: int, how: str) -> None:
        """End an attempt. A reaped one may still complete later."""
        attempt = self.choose(self.attempts, n)
        if attempt is None:
            return
        if how in ("late", "reap"):
            self.reap(attempt)
        if how == "fail":
            self.bench.complete(attempt, "Failed", retryable=True, error_code="boom")
        elif how != "reap":
            self.complete(attempt)
        if how != "reap":
            self.attempts.remove(attempt)

    def read(self, n: int) -> None:
        """Start a task that pins partitions of the producer."""
        waiting = self.waiting("after")
        if waiting:
            self.readers.append(self.bench.claimed(waiting[n % len(waiting)]))

    def finish_reader(self, n: int) -> None:
        reader = self.choose(self.readers, n)
        if reader is not None:
            # A reader whose definition was retired has been asked to stop.
            assert self.bench.complete(reader).status_code in (200, 409)
            self.readers.remove(reader)

    def delete_history(self) -> None:
        """Delete finished tasks that no partition refers to, as history retention does."""
        self.bench.rows("""
            WITH old AS (
                DELETE FROM tasks t WHERE status IN ('Failed', 'Canceled') AND retry_at IS NULL
                   AND NOT EXISTS (SELECT FROM partitions p WHERE p.task_id = t.task_id)
                RETURNING task_id)
            DELETE FROM task_attempts a USING old WHERE a.task_id = old.task_id""")

    def redeploy(self, n: int) -> None:
        """Deploy one of three definitions of the producer, and promote it without waiting."""
        self.bench.dag(self.dag.options, name=self.dag.name, column=str(n % 3 + 1))
        path = f"/v1/dags/{self.dag.name}/promote"
        assert self.bench.user.post(path).status_code in (200, 409)

    # --- sweeps -----------------------------------------------------------------------------

    def sweep_generations(self, days: int, *, passes: int, dies_after: int | None) -> None:
        """Delete some rows of retired generations, and perhaps die in the middle."""
        retention = replace(self.bench.live.service.retention, batch_size=2)
        with dying_after(1000 if dies_after is None else dies_after), suppress(Died):
            self.bench.live.run(retention.delete_once)
            self.store.age(days)
            for _ in range(passes):
                self.bench.live.run(retention.delete_once)

    def sweep(self, days: int, *, lists: bool, dies_after: int | None) -> None:
        if lists:
            self.store.age(1)
            self.store.list_store()
        self.store.age(days)
        if dies_after is None:
            self.store.sweep()
            return
        with dying_after(dies_after), suppress(Died):
            self.store.sweep()

    def sweep_on_both_replicas(self, days: int) -> None:
        self.store.age(days)
        run_concurrently([lambda one=one: self.sweep_once(one) for one in self.replicas])

    def sweep_while_an_attempt_completes(self, n: int, *, is_reaped: bool) -> None:
        """Both orders are right: the completion commits, or the prefix is swept and it is refused."""
        attempt = self.choose(self.attempts, n)
        if attempt is None:
            return
        if is_reaped:
            self.reap(attempt)
        self.store.age(8)
        run_concurrently(
            [lambda: self.complete(attempt, races=True), lambda: self.sweep_once(self.replicas[1])]
        )
        self.attempts.remove(attempt)

    # --- what must hold ---------------------------------------------------------------------

    @invariant()
    def used_objects_are_intact(self) -> None:
        if not hasattr(self, "dag"):
            return
        used = self.store.committed_prefixes()
        used |= {self.bench.prefix(a) for a in self.attempts if self.may_commit(a)}
        for reader in self.readers:
            pinned = [p for i in reader.claimed["task"]["inputs"] for p in i["partitions"]]
            used |= {self.store.bucket / pin["storage_ref"]["prefix"] for pin in pinned}
        for prefix in used:
            self.store.require_intact(prefix)
        self.store.require_whole_markers()
        assert all(path.read_bytes() == b"foreign" for path in self.store.foreign)

    @invariant()
    def used_generations_are_whole(self) -> None:
        """A sweep may have started before a rollback can reach a generation: then it returns empty."""
        rows = {row["version"]: row for row in self.bench.rows(_GENERATIONS)}
        for version, row in rows.items():
            assert not (row["is_current"] and row["is_swept"]), "a part of a generation came back"
            lost = self.partitions.get(version, set()) - set(row["keys"])
            if lost and not row["is_swept"]:
                assert version in self.swept, "a used generation lost a partition"
                assert not row["keys"], "a part of a generation came back"
                assert not self.bench.rows(_COMPLETED, version), "it is not built again"
            if row["is_used"] and not row["is_swept"]:
                self.partitions[version] = set(row["keys"])
        self.swept = {version for version, row in rows.items() if row["is_swept"]}

    def teardown(self) -> None:
        """End everything. Then all that remains is committed or foreign."""
        if not hasattr(self, "dag"):
            return
        for attempt in [*self.attempts, *self.readers]:
            self.bench.complete(attempt, "Failed", retryable=False, error_code="end")
        self.bench.rows(
            "UPDATE tasks SET retry_at = NULL, finished_at = now() WHERE retry_at IS NOT NULL"
        )
        self.store.age(100)
        self.store.list_store()
        while self.bench.live.run(self.bench.live.service.retention.delete_once):
            pass
        self.store.age(100)
        while self.bench.live.run(self.bench.live.service.retention.delete_once):
            pass
        self.store.sweep()
        assert not self.bench.rows(_UNREACHABLE, self.dag.name)
        committed = self.store.committed_prefixes()
        expected = {f for f in self.store.files if any(map(f.is_relative_to, committed))}
        own = {path for path in self.store.remaining() if self.is_own(path)}
        drafts = {path for path in own if "#" in path.name}
        assert own - drafts == expected
        assert all(path.parent in committed for path in drafts)
        for path in self.store.foreign:
            path.unlink()

    # --- helpers ----------------------------------------------------------------------------

    def waiting(self, job: str) -> list[str]:
        """Start the retries that wait, and return the queued tasks of a job."""
        self.bench.rows("UPDATE tasks SET retry_at = now() WHERE retry_at IS NOT NULL")
        self.bench.start_retries()
        self.bench.live.drain()
        return self.bench.waiting(self.dag, job)

    def reap(self, attempt: Attempt) -> None:
        query = "SELECT 1 FROM tasks WHERE task_id = %s AND status = 'Running'"
        if self.bench.rows(query, attempt.task_id):
            self.bench.let_lease_expire(attempt)
            self.bench.reap()

    def complete(self, attempt: Attempt, *, races: bool = False) -> None:
        """Complete an attempt. It is accepted exactly if it may commit, unless a sweep races with it."""
        output = self.outputs.get(attempt.fence["lease_token"])
        accepted = self.may_commit(attempt)
        published = [] if output is None else [output]
        reply = self.bench.complete(attempt, datasets_published=published)
        # 503: the marker is gone. The fence is checked after the marker.
        allowed = {200} if accepted else {404, 409, 503}
        # An attempt of a retired definition was asked to stop. It may commit if it was reaped.
        uncertain = races or self.is_asked_to_stop(attempt)
        assert reply.status_code in (allowed | {409, 503} if uncertain else allowed), reply.text
        if reply.status_code == 200 and output is not None:
            self.store.require_intact(self.bench.prefix(attempt))

    def sweep_once(self, replica: Bench) -> None:
        replica.live.run(self.store.sweeper(replica).sweep_once)

    def choose(self, attempts: list[Attempt], n: int) -> Attempt | None:
        return attempts[n % len(attempts)] if attempts else None

    def may_commit(self, attempt: Attempt) -> bool:
        """Whether a completion of the attempt is accepted: it runs, or it was reaped."""
        rows = self.bench.rows(
            """SELECT 1 FROM tasks WHERE task_id = %s AND attempt = %s AND lease_token = %s
                  AND (status = 'Running' OR cause IS NOT NULL)""",
            *attempt.fence.values(),
        )
        return bool(rows)

    def is_asked_to_stop(self, attempt: Attempt) -> bool:
        query = "SELECT 1 FROM tasks WHERE task_id = %s AND cancel_requested"
        return bool(self.bench.rows(query, attempt.task_id))

    def is_own(self, path: Path) -> bool:
        """Whether this run of the machine wrote the file, and not an earlier one."""
        return path.with_name(path.name.partition("#")[0]) in self.store.files or any(
            path.parent == written.parent for written in self.store.files
        )


@pytest.fixture
def pair(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[list[Bench]]:
    with ExitStack() as stack:
        dsns = stack.enter_context(copied(templates))
        objects = tmp_path_factory.mktemp("objects")
        running = [stack.enter_context(live(secrets, dsns, objects)) for _ in range(2)]
        yield [stack.enter_context(bench(one)) for one in running]


def test_no_used_object_is_deleted_and_no_unused_object_stays(pair: list[Bench]) -> None:
    StorageMachine.replicas = pair
    run_state_machine_as_test(
        StorageMachine,
        # No shrinking: after a failure, the database is not as it was before.
        settings=settings(max_examples=3, stateful_step_count=40, phases=[Phase.generate]),
    )
