"""The storage sweeper deletes what nothing uses, after its retention, and shows it before."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from support.cli import connected_cli
from support.dags.rollouts import RolloutDag
from support.data.buffered import SinkSetup
from support.data.storage_model import ORG, StoredObjects
from support.lifecycle.lifecycle import Attempt, Bench, parquet_file
from support.waiting import eventually
from trace_etl.lite.backup import contents
from trace_etl.model.storage import attempt_prefix, buffer_prefix, generation_prefix


@pytest.fixture
def store(sinks: SinkSetup) -> StoredObjects:
    return StoredObjects(sinks.bench)


def unused(bench: Bench, **query: Any) -> list[dict[str, Any]]:
    reply = bench.user.get("/v1/storage/unused", params={"limit": 1000, **query})
    assert reply.status_code == 200, reply.text
    return reply.json()["items"]


def find_unused(bench: Bench, attempt: Attempt) -> list[dict[str, Any]]:
    own = f"/{attempt.task_id}/{attempt.number}/"
    return [item for item in unused(bench) if own in item["key"]]


def usage(bench: Bench, dataset: str) -> dict[str, dict[str, Any]]:
    items = bench.user.get("/v1/storage").json()["items"]
    return {item["kind"]: item for item in items if item["dataset"] == dataset}


def test_nothing_is_deleted_while_a_backup_holds_the_sweep_lock(store: StoredObjects) -> None:
    bench = store.bench
    failed = bench.attempt(dag=bench.dag())
    store.write_data(failed)
    bench.complete(failed, "Failed", retryable=False, error_code="boom")
    store.sweep()
    store.age(8)
    with contents.connect(bench.live.dsns.state) as backup:
        assert contents.hold_sweeps(backup)
        with contents.connect(bench.live.dsns.state) as second:
            assert not contents.hold_sweeps(second), "two backups at once"
        store.sweep()
        assert bench.prefix(failed).exists()

    def is_swept() -> bool:
        store.sweep()
        return not bench.prefix(failed).exists()

    eventually(is_swept, "Postgres releases the lock of a closed connection")


def test_a_failed_attempt_is_shown_with_its_size_and_swept_after_a_week(
    store: StoredObjects,
) -> None:
    bench, dag = store.bench, store.bench.dag()
    failed = bench.attempt(dag=dag)
    store.write_data(failed)
    assert find_unused(bench, failed) == []
    bench.complete(failed, "Failed", retryable=False, error_code="boom")
    store.sweep()
    (item,) = find_unused(bench, failed)
    assert (item["kind"], item["dataset"], item["kept_by"]) == ("uncommitted", dag.published, None)
    sizes = [len(parquet_file(1)), len(parquet_file(2))]
    assert (item["objects"], item["bytes"]) == (2, sum(sizes))
    assert usage(bench, dag.published)["uncommitted"]["due_bytes"] == 0
    store.age(6)
    assert store.sweep() == 0
    store.age(2)
    shown = usage(bench, dag.published)["uncommitted"]
    assert (shown["due_prefixes"], shown["due_bytes"]) == (1, sum(sizes))
    assert [i["key"] for i in unused(bench, due=True)] == [item["key"]]
    store.sweep()
    assert find_unused(bench, failed) == []
    assert not bench.prefix(failed).exists()
    assert "uncommitted" not in usage(bench, dag.published)


def test_a_dry_run_shows_what_the_sweep_then_deletes(store: StoredObjects, tmp_path: Path) -> None:
    bench, trace = store.bench, connected_cli(store.bench, tmp_path)
    due, recent = (bench.attempt(dag=bench.dag()) for _ in range(2))
    for attempt, days in ((due, 30), (recent, 1)):
        store.write_data(attempt)
        bench.complete(attempt, "Failed", retryable=False, error_code="boom")
        store.age(days)
    store.list_store()

    def sweep(*options: str) -> Any:
        text = trace("storage", "sweep", "--json", *options)
        return json.loads(text[text.index("{\n") :])  # after the log of the Dispatcher

    items = sweep("--dry-run")["items"]
    [item] = [item for item in items if due.task_id in item["key"]]
    assert item["kind"] == "uncommitted"
    assert not [item for item in items if recent.task_id in item["key"]]
    assert sweep("--dry-run")["items"] == items
    store.require_intact(bench.prefix(due))
    swept = sweep()
    assert (swept["prefixes"] + swept["batches"], swept["failures"]) == (len(items), 0)
    assert not bench.prefix(due).exists()
    store.require_intact(bench.prefix(recent))
    assert sweep("--dry-run")["items"] == []


def test_a_replaced_partition_stays_while_a_running_task_reads_it(store: StoredObjects) -> None:
    bench, dag = store.bench, store.bench.dag()
    first = bench.attempt(dag=dag)
    assert bench.complete(first, datasets_published=[store.write_output(first)]).status_code == 200
    bench.live.drain()
    reader = bench.claimed(bench.waiting(dag, "after")[0])
    body = {"partition_key": "0-9", "rebuild": True, "reason": "test"}
    path = f"/v1/datasets/{dag.published}/invalidations"
    assert bench.user.post(path, json=body).status_code == 200
    bench.live.drain()
    second = bench.claimed(bench.waiting(dag, "work")[0])
    published = store.write_output(second, files=3)
    assert bench.complete(second, datasets_published=[published]).status_code == 200
    (item,) = find_unused(bench, first)
    assert (item["kind"], item["kept_by"]) == ("superseded", "pin")
    assert item["objects"] == 3  # two files and the marker
    store.age(30)
    store.sweep()
    store.require_intact(bench.prefix(first))
    assert usage(bench, dag.published)["superseded"]["kept_prefixes"] == 1
    assert bench.complete(reader).status_code == 200
    store.age(1)
    store.sweep()
    assert not bench.prefix(first).exists()
    store.require_intact(bench.prefix(second))
    shown = usage(bench, dag.published)
    assert set(shown) == {"current"}
    assert (shown["current"]["prefixes"], shown["current"]["objects"]) == (1, 4)


def test_a_late_completion_is_accepted_until_its_prefix_is_swept(store: StoredObjects) -> None:
    bench = store.bench
    late, later = (bench.reaped("max_attempts: 1") for _ in range(2))
    published = [store.write_output(attempt) for attempt in (late, later)]
    store.age(6)
    store.sweep()
    assert bench.complete(late, datasets_published=[published[0]]).status_code == 200
    store.age(2)
    store.sweep()
    store.require_intact(bench.prefix(late))
    assert not bench.prefix(later).exists()
    refused = bench.complete(later, datasets_published=[published[1]])
    assert refused.status_code in (409, 503), refused.text
    assert bench.rows("SELECT 1 FROM partitions WHERE task_id = %s", later.task_id) == []
    store.write_output(later)  # the fence refuses it, also if the objects come back
    again = bench.complete(later, datasets_published=[published[1]])
    assert (again.status_code, again.json()["reason"]) == (409, "stale_lease")


def test_written_batches_are_swept_and_others_stay_for_their_delivery(
    sinks: SinkSetup, store: StoredObjects
) -> None:
    name = f"alerts_{uuid4().hex[:12]}"
    producer = sinks.producer(name)
    producer.deploy("one")
    attempt = producer.attempt("one")
    written = sinks.publish(attempt, [{"id": "a", "n": 1}], batch_size_bytes=19)
    failed = sinks.publish(attempt, b"not json")
    sinks.drain()
    states = {batch["publish_id"]: batch["state"] for batch in sinks.batches(name)}
    assert states == {written: "written", failed: "failed"}
    uris = {batch["publish_id"]: batch["batch_uri"] for batch in sinks.batches(name)}
    paths = {i: store.bucket.parent / uri.removeprefix("s3://") for i, uri in uris.items()}
    forgotten = store.bench.prefix(attempt) / "never_published.jsonl"
    store.write(forgotten, b"{}")
    store.age(2)
    store.sweep()
    assert not paths[written].exists() and paths[failed].exists() and forgotten.exists()
    assert usage(sinks.bench, name)["batches"]["kept_prefixes"] == 1
    # The attempt ends: what it did not publish is uncommitted. The failed batch can still be retried.
    assert sinks.bench.complete(attempt).status_code == 200
    store.age(100)
    store.list_store()
    store.age(100)
    store.sweep()
    assert not forgotten.exists() and paths[failed].exists()
    retried = sinks.bench.user.post(f"/v1/batches/{failed}/retry")
    assert retried.status_code == 200


def test_the_listing_finds_scratch_exports_and_objects_without_a_task(
    store: StoredObjects,
) -> None:
    bench, dag = store.bench, store.bench.dag()
    attempt = bench.attempt(dag=dag)
    places = [store.write_scratch(attempt, area) for area in ("scratch", "exports")]
    dataset = dag.datasets["work"]
    ids = [UUID(dataset[name]) for name in ("dataset_uuid", "dataset_version")]
    orphan = store.bucket / attempt_prefix(generation_prefix(*ids), uuid4(), 3) / "a.parquet"
    store.write(orphan, b"orphan")
    store.write_foreign(dag)
    store.age(1)
    store.list_store()
    assert find_unused(bench, attempt) == []  # the attempt runs
    assert bench.user.get("/v1/storage").json()["foreign"]["objects"] == 5
    assert bench.complete(attempt).status_code == 200
    store.age(8)
    store.list_store()
    assert {item["kind"] for item in find_unused(bench, attempt)} == {"scratch", "exports"}
    store.sweep()
    assert not orphan.exists()
    store.age(8)
    store.sweep()
    assert [path.exists() for path in places] == [False, True]
    store.age(30)
    store.sweep()
    assert [path.exists() for path in places] == [False, False]
    assert all(path.exists() for path in store.foreign)


def test_a_prefix_of_another_layout_is_kept(store: StoredObjects) -> None:
    bench = store.bench
    foreign = store.bucket / "warehouse" / "part.parquet"
    store.write(foreign, b"rows")
    bench.rows(
        """INSERT INTO unused_prefixes (prefix, kind, org_id, task_id, attempt)
           VALUES ('warehouse/', 'superseded', %s, %s, 1)""",
        ORG,
        uuid4(),
    )
    store.age(100)
    store.sweep()
    assert foreign.exists()
    (item,) = [i for i in unused(bench) if i["key"] == "warehouse/"]
    assert item["kept_by"] == "layout"


def test_postgres_and_python_agree_on_the_prefixes_of_outputs(store: StoredObjects) -> None:
    store.bench.dag()
    rows = store.bench.rows("SELECT v.*, output_prefix(v) AS prefix FROM dataset_versions v")
    assert rows
    for row in rows:
        cold = generation_prefix(row["dataset_uuid"], row["dataset_version"])
        expected = cold if row["columns"] is None else buffer_prefix(row["dataset_uuid"])
        assert row["prefix"] == expected


def test_an_admin_sweeps_one_organisation_and_an_unreachable_prefix_is_tried_again(
    store: StoredObjects, tmp_path: Path
) -> None:
    bench = store.bench
    attempts = [bench.attempt() for _ in range(2)]
    for attempt in attempts:
        store.write_data(attempt)
        bench.complete(attempt, "Failed", retryable=False, error_code="boom")
    blocked, swept = (bench.prefix(attempt) for attempt in attempts)
    blocked.rename(tmp_path / "moved")
    blocked.symlink_to(tmp_path / "moved")  # the store does not follow links
    store.age(8)
    answer = bench.user.post("/v1/storage/sweep").json()
    assert (answer["failures"], answer["is_complete"]) == (1, True)
    assert answer["prefixes"] >= 1 and not swept.exists()
    assert len(list((tmp_path / "moved").iterdir())) == 3
    blocked.unlink()
    (tmp_path / "moved").rename(blocked)
    store.age(1)
    assert bench.user.post("/v1/storage/sweep").json()["failures"] == 0
    assert not blocked.exists()


# --- retired generations ----------------------------------------------------------------------


THREE = ["0-9", "10-19", "20-29"]


@pytest.fixture
def dag(sinks: SinkSetup) -> RolloutDag:
    return RolloutDag(sinks.bench)


def deploy_three_versions(dag: RolloutDag) -> list[Attempt]:
    """Build three versions, each with another source. Returns the attempts of the first one's `work`."""
    dag.deploy()
    dag.trigger(0, 29)
    first = [dag.finish(task_id) for task_id in dag.queued("work")]
    dag.finish_all("work", "after")
    for n in (2, 3):
        dag.deploy(column=n, ranges=f"ranges{n}")
        dag.finish_all("work", "after")
        assert dag.swap()
    return first


def retention_pass(dag: RolloutDag, batch_size: int = 500) -> int:
    return dag.bench.live.run(
        replace(dag.bench.live.service.retention, batch_size=batch_size).delete_once
    )


def count_rows(dag: RolloutDag, table: str, version: str) -> int:
    query = f"SELECT count(*) AS n FROM {table} WHERE dataset_version = %s"
    return dag.bench.rows(query, version)[0]["n"]


def test_a_generation_that_no_rollback_reaches_is_shown_and_swept_after_its_retention(
    dag: RolloutDag,
) -> None:
    first = deploy_three_versions(dag)
    store, name = StoredObjects(dag.bench), f"{dag.name}_out"
    retention_pass(dag)
    kinds = usage(dag.bench, name)
    assert kinds["current"]["prefixes"] == kinds["previous"]["prefixes"] == 3
    assert (kinds["retired"]["prefixes"], kinds["retired"]["due_prefixes"]) == (3, 0)
    store.age(29)
    assert retention_pass(dag) == 0
    store.age(2)
    # The partitions of `after` were made from those of `work`, so they are deleted first.
    due = {item["dataset"] for item in unused(dag.bench, due=True) if item["kind"] == "retired"}
    assert due == {f"{dag.name}_done"}
    kept = [item["kept_by"] for item in unused(dag.bench) if item["dataset"] == name]
    assert kept == ["lineage"] * 3
    reply = dag.bench.user.post("/v1/storage/sweep").json()
    assert reply["is_complete"] and reply["objects"] >= 12
    assert "retired" not in usage(dag.bench, name)
    assert not any(dag.bench.prefix(attempt).exists() for attempt in first)
    kinds = usage(dag.bench, name)
    assert kinds["current"]["prefixes"] == kinds["previous"]["prefixes"] == 3
    swept = first[0].output["dataset_version"]
    assert [count_rows(dag, table, swept) for table in ("partitions", "events", "tasks")] == [0] * 3
    # The events of later sources are copies of those of the first one. They stay.
    assert dag.seen("out")[1] == THREE
    dag.deploy(column=4, ranges="ranges3")
    assert len(dag.queued("work")) == 3


@pytest.mark.parametrize("batch_size", [1, 500])
def test_a_swept_generation_is_built_again_when_it_comes_back(
    dag: RolloutDag, batch_size: int
) -> None:
    """Also if the sweep has only started: a generation is whole or empty, never a part."""
    first = deploy_three_versions(dag)
    dag.trigger(30, 39)
    dag.finish_all("work", "after")
    retention_pass(dag)
    StoredObjects(dag.bench).age(31)
    (done,) = dag.bench.rows(
        """SELECT v.dataset_version FROM dataset_versions v JOIN publications p USING (dataset_uuid)
            WHERE p.name = %s ORDER BY v.generation_no LIMIT 1""",
        f"{dag.name}_done",
    )
    while (left := count_rows(dag, "partitions", done["dataset_version"])) == 3:
        assert retention_pass(dag, batch_size) > 0
    assert left == (2 if batch_size == 1 else 0)
    assert dag.roll_back().status_code == 200
    dag.finish_all("work", "after")
    assert dag.seen("out")[1] == [*THREE, "30-39"]
    assert dag.roll_back().status_code == 200
    version, _ = dag.seen("out")
    assert version == first[0].output["dataset_version"]
    assert dag.seen("done")[1] == []
    dag.finish_all("work", "after")
    assert dag.seen("out") == (version, [*THREE, "30-39"])
    assert dag.seen("done")[1] == [*THREE, "30-39"]
    # The blocks were triggered before, so they are not split in another way.
    dag.trigger(5, 24)
    assert dag.queued("work") == []
    # The sweep of what came back starts from the beginning.
    retention_pass(dag)
    assert dag.seen("out") == (version, [*THREE, "30-39"])


def test_a_generation_that_a_task_reads_is_kept(dag: RolloutDag) -> None:
    dag.deploy()
    dag.trigger(0, 9)
    dag.finish_all("work")
    reader = dag.bench.claimed(dag.queued("after")[0])
    (pin,) = reader.claimed["task"]["inputs"][0]["partitions"]
    for n in (2, 3):
        dag.deploy(column=n)
        dag.finish_all("work", "after")
        assert dag.swap()
    store = StoredObjects(dag.bench)
    retention_pass(dag)
    store.age(400)
    while retention_pass(dag):
        pass
    store.sweep()
    prefix = store.bucket / pin["storage_ref"]["prefix"]
    assert (prefix / "_SUCCESS").exists()
    dag.bench.complete(reader, "Canceled")
    while retention_pass(dag):
        pass
    store.sweep()
    assert not prefix.exists()


def test_a_generation_is_not_swept_while_its_dag_is_being_deployed(dag: RolloutDag) -> None:
    version = deploy_three_versions(dag)[0].output["dataset_version"]
    retention_pass(dag)
    StoredObjects(dag.bench).age(31)
    with psycopg.connect(dag.bench.live.dsns.state) as deploy:
        deploy.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"deploy:{ORG}:{dag.name}",)
        )
        while retention_pass(dag):
            pass  # other DAGs
        assert count_rows(dag, "partitions", version) == 3
    while retention_pass(dag):
        pass
    assert count_rows(dag, "partitions", version) == 0
