"""Backups of a stopped home: what is refused, and that a restored home equals the original."""

import hashlib
import json
import shutil
import stat
import tarfile
from dataclasses import asdict
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
import pyarrow as pa
import pytest

from support.services.postgres import sql
from trace_etl.api.proof.certificates import StoredCertificate
from trace_etl.api.task.lifecycle import SuccessFile, SuccessMarker
from trace_etl.data import migrations as data_migrations
from trace_etl.lite import configuration, ownership
from trace_etl.lite.backup import contents, snapshot
from trace_etl.lite.backup.create import Backup, create
from trace_etl.lite.backup.restore import restore
from trace_etl.lite.credentials import keys
from trace_etl.lite.credentials.keys import LOCAL_ORG
from trace_etl.lite.errors import BackupUnusable, HomeUnusable
from trace_etl.lite.home import Home
from trace_etl.lite.postgres import databases
from trace_etl.lite.postgres.server import EmbeddedPostgres
from trace_etl.model.storage import StorageRef, bundle_key, generation_prefix
from trace_etl.objects.file_store import FileStore
from trace_etl.objects.markers import write_marker
from trace_etl.proof.checks import StoredFiles, check_files
from trace_etl.spark.io.parquet import open_parquet_file
from trace_etl.state.db import migrations

ORG = UUID(LOCAL_ORG)


def ignore(phase: str, done: int, total: int) -> None:
    """Ignore progress."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A stopped home with one committed partition, one hot table and one secret."""
    home = Home(tmp_path_factory.mktemp("original") / "home")
    home.open()
    keys.ensure_user_key(home.user_keys)
    (home.secrets / "webhook").write_text("secret")
    configuration.write(home.config, configuration.Configuration())
    home.runtimes.write_text("runtimes: {}")
    (home.programs / "tables").mkdir()
    (home.programs / "tables" / "names.csv").write_text("a,b")
    (home.programs / "count").write_text("#!/bin/sh")
    (home.programs / "count").chmod(0o755)
    (home.certificate_keys / "key.pem").write_text("signs manifests")
    FileStore(home.objects).put(bundle_key("trace", "0" * 64), b"bundle of a function")
    postgres = EmbeddedPostgres(home.postgres, passfile=home.pgpass)
    server = postgres.start()
    try:
        dsns = databases.provision(server)
        migrations.apply(dsns.state)
        data_migrations.apply(dsns.data)
        sql(dsns.data, "CREATE TABLE hot (id int PRIMARY KEY, text text)")
        sql(dsns.data, "INSERT INTO hot SELECT n, 'row ' || n FROM generate_series(1, 500) n")
        add_partition(dsns.state, FileStore(home.objects))
    finally:
        postgres.stop()
    ownership.mark(home)
    return home


def add_partition(dsn: str, store: FileStore) -> None:
    """Commit one partition as the Dispatcher would, with its objects."""
    dag, job, dataset, version, task = (uuid4() for _ in range(5))
    prefix = f"{generation_prefix(dataset, version)}{task}/1/"
    ref = StorageRef("file", "trace", prefix)
    rows = pa.record_batch({"n": pa.array(range(10), pa.int64())})
    with open_parquet_file(store, f"trace/{prefix}rows.parquet", rows.schema) as output:
        output.write(rows)
        made = output.finish()
    assert made.content is not None
    file = SuccessFile(name=made.name, rows=made.rows, bytes=made.bytes, sha256=made.sha256)
    write_marker(store, ref, SuccessMarker(files=[file], rows=made.rows, bytes=made.bytes))
    store.put(f"trace/{generation_prefix(dataset, version)}{uuid4()}/1/rows.parquet", b"unused")
    with psycopg.connect(dsn) as conn:
        conn.execute("INSERT INTO dags (dag_id, org_id, name) VALUES (%s, %s, 'd')", (dag, ORG))
        conn.execute(
            "INSERT INTO jobs (job_id, org_id, dag_id, name) VALUES (%s, %s, %s, 'ingest')",
            (job, ORG, dag),
        )
        conn.execute(
            "INSERT INTO datasets (dataset_uuid, org_id, job_id, output_name) VALUES (%s, %s, %s, 'blocks')",
            (dataset, ORG, job),
        )
        conn.execute(
            "INSERT INTO dataset_versions (dataset_version, dataset_uuid, generation_hash) VALUES (%s, %s, 'h')",
            (version, dataset),
        )
        conn.execute("UPDATE datasets SET dataset_version = %s", (version,))
        conn.execute(
            """
            INSERT INTO partitions (dataset_version, generation_no, partition_key, range_start, range_end,
                                    storage_ref, row_count, byte_count, columns, task_id, attempt,
                                    content_hash, row_sum, files)
            VALUES (%s, 1, '0-9', 0, 9, %s, 10, %s, '[{"name": "n", "type": "bigint"}]', %s, 1, %s, %s, %s)
            """,
            (
                *(version, json.dumps(asdict(ref)), made.bytes, task),
                *(made.content.content_hash, made.content.row_sum, f"[{file.model_dump_json()}]"),
            ),
        )
        conn.execute("UPDATE delivery_log SET log_id = %s", (ORG,))


@pytest.fixture(scope="module")
def backup(original: Home, tmp_path_factory: pytest.TempPathFactory) -> Backup:
    target = tmp_path_factory.mktemp("backup") / "backup.tar"
    return create(original, target, with_secrets=True, report=ignore)


def test_a_restored_home_has_the_same_tables_datasets_objects_and_secrets(
    original: Home, backup: Backup, tmp_path: Path
) -> None:
    assert stat.S_IMODE(backup.path.stat().st_mode) == 0o600
    assert [p.name for p in backup.path.parent.iterdir()] == ["backup.tar"]
    home = Home(tmp_path / "restored")
    restore(backup.path, home, objects_url=None, report=ignore)
    assert list_files(home.objects) == [
        name for name in list_files(original.objects) if b"unused" not in name[1]
    ]
    assert (home.secrets / "webhook").read_text() == "secret"
    assert list_files(home.programs) == list_files(original.programs) != []
    modes = {
        p.name: stat.S_IMODE(p.stat().st_mode) for p in home.programs.rglob("*") if p.is_file()
    }
    assert modes == {"count": 0o700, "names.csv": 0o600}
    assert list_files(home.user_keys) == list_files(original.user_keys)
    assert list_files(home.certificate_keys) == list_files(original.certificate_keys) != []
    assert not list_files(home.task_keys)
    assert ownership.read_home_id(home) != ownership.read_home_id(original)
    ownership.check(home)
    postgres = EmbeddedPostgres(home.postgres, passfile=home.pgpass)
    try:
        server = postgres.start()
        with snapshot.connected(server) as (state, data):
            found = contents.describe(state, data)
            assert (found.datasets, found.tables) == (
                backup.manifest.datasets,
                backup.manifest.tables,
            )
            assert [(d.dataset, d.rows) for d in found.datasets] == [("ingest.blocks", 10)]
            assert next(t.rows for t in found.tables if t.table == "hot") == 500
            (log,) = state.execute("SELECT log_id FROM delivery_log")
            assert log["log_id"] != ORG  # cursors from before the restore are refused
            (row,) = state.execute("SELECT * FROM partition_certificates")
    finally:
        postgres.stop()
    certificate = StoredCertificate.model_validate(row)
    assert certificate.row_count == 10
    stored = StoredFiles(FileStore(home.objects))
    assert check_files(certificate, stored) == []
    damaged = next(home.objects.rglob("rows.parquet"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    assert "SHA-256" in check_files(certificate, stored)[0].problem


def list_files(root: Path) -> list[tuple[str, bytes]]:
    return [
        (str(p.relative_to(root)), p.read_bytes()) for p in sorted(root.rglob("*")) if p.is_file()
    ]


def test_a_backup_and_a_restore_ignore_settings_for_other_servers(
    original: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "backup.tar"
    monkeypatch.setenv("PGPASSWORD", "of another server")
    backup = create(original, target, with_secrets=True, report=ignore)
    monkeypatch.setenv("PGPASSWORD", "of another server")
    restored = restore(backup.path, Home(tmp_path / "restored"), objects_url=None, report=ignore)
    assert restored.manifest.tables == backup.manifest.tables


def test_a_backup_without_secrets_has_only_the_runtimes_and_programs_of_the_home(
    original: Home, tmp_path: Path
) -> None:
    made = create(original, tmp_path / "plain", with_secrets=False, report=ignore)
    assert [e.name for e in made.manifest.files if e.name.startswith("home/")] == [
        "home/runtimes.yaml",
        "home/programs/count",
        "home/programs/tables/names.csv",
    ]
    assert stat.S_IMODE((tmp_path / "plain").stat().st_mode) == 0o700


def test_a_restore_refuses_a_home_that_is_not_empty(backup: Backup, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(HomeUnusable, match="is not empty"):
        restore(backup.path, Home(tmp_path), objects_url=None, report=ignore)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_backup_refuses_a_target_that_exists(original: Home, tmp_path: Path) -> None:
    (tmp_path / "there.tar").write_text("mine")
    with pytest.raises(BackupUnusable, match=r"there\.tar exists"):
        create(original, tmp_path / "there.tar", with_secrets=True, report=ignore)


def test_a_damaged_file_is_named_and_leaves_an_empty_home(backup: Backup, tmp_path: Path) -> None:
    unpacked = unpack(backup, tmp_path)
    broken = next(unpacked.rglob("rows.parquet"))
    broken.write_bytes(broken.read_bytes()[:-1] + b"?")
    with pytest.raises(BackupUnusable, match=r"rows\.parquet differs from its checksum"):
        restore(unpacked, Home(tmp_path / "home"), objects_url=None, report=ignore)
    broken.unlink()
    with pytest.raises(BackupUnusable, match=r"rows\.parquet is missing"):
        restore(unpacked, Home(tmp_path / "home"), objects_url=None, report=ignore)
    assert not list((tmp_path / "home").iterdir())


def unpack(backup: Backup, directory: Path) -> Path:
    with tarfile.open(backup.path) as tar:
        tar.extractall(directory / "unpacked", filter="data")
    return directory / "unpacked"


def test_a_backup_of_a_newer_release_or_format_is_refused(backup: Backup, tmp_path: Path) -> None:
    unpacked = unpack(backup, tmp_path)
    text = json.loads((unpacked / "manifest.json").read_text())
    for change, reason in (
        ({"migrations": [*text["migrations"], "9999_future.sql"]}, "newer release"),
        ({"format": 2}, "has format 2"),
    ):
        rewrite_manifest(unpacked, {**text, **change})
        with pytest.raises(BackupUnusable, match=reason):
            restore(unpacked, Home(tmp_path / "home"), objects_url=None, report=ignore)
    (unpacked / "manifest.json").write_text(json.dumps(text) + " ")
    with pytest.raises(BackupUnusable, match=r"manifest\.json is damaged"):
        restore(unpacked, Home(tmp_path / "home"), objects_url=None, report=ignore)


def rewrite_manifest(directory: Path, content: dict[str, object]) -> None:
    text = json.dumps(content).encode()
    (directory / "manifest.json").write_bytes(text)
    (directory / "manifest.json.sha256").write_text(hashlib.sha256(text).hexdigest())


def test_a_restore_finds_a_row_that_the_manifest_does_not_have(
    backup: Backup, tmp_path: Path
) -> None:
    unpacked = unpack(backup, tmp_path)
    text = json.loads((unpacked / "manifest.json").read_text())
    text["tables"][-1]["rows"] += 1
    rewrite_manifest(unpacked, text)
    with pytest.raises(BackupUnusable, match="restored tables differ"):
        restore(unpacked, Home(tmp_path / "home"), objects_url=None, report=ignore)


def test_a_backup_fails_if_an_object_of_a_partition_is_missing(
    original: Home, tmp_path: Path
) -> None:
    damaged = Home(tmp_path / "damaged")
    shutil.copytree(original.path, damaged.path, symlinks=True)
    marker = next(damaged.objects.rglob("_SUCCESS"))
    (marker.parent / "rows.parquet").unlink()
    with pytest.raises(BackupUnusable, match=r"lacks rows\.parquet"):
        create(damaged, tmp_path / "backup", with_secrets=True, report=ignore)
    assert [p.name for p in tmp_path.iterdir()] == ["damaged"]


def test_a_home_with_an_unfinished_restore_does_not_start(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.restoring.mkdir(parents=True)
    with pytest.raises(HomeUnusable, match="restore that has not ended"):
        ownership.check(home)
