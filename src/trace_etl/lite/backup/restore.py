"""Restore a backup into a new home, and check it against its manifest."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any
from uuid import UUID

from trace_etl.lite import configuration, objects, ownership
from trace_etl.lite.backup import archive, contents, manifest, snapshot
from trace_etl.lite.backup.archive import OpenBackup
from trace_etl.lite.backup.contents import Contents
from trace_etl.lite.backup.manifest import BackupManifest, Entry
from trace_etl.lite.backup.reporting import Meter, Report
from trace_etl.lite.credentials import private_files
from trace_etl.lite.errors import BackupUnusable, HomeUnusable
from trace_etl.lite.home import Home, explain_os_errors
from trace_etl.lite.postgres import binaries
from trace_etl.lite.processes.services import inherited_environment
from trace_etl.objects.store import ObjectStore
from trace_etl.state.db import migrations


@dataclass(frozen=True)
class Restored:
    """A restored home."""

    home: Path
    manifest: BackupManifest


def read_manifest(backup: OpenBackup, where: Path) -> BackupManifest:
    """Read the manifest and check that this release can restore the backup. Raises BackupUnusable."""
    with backup.open(manifest.NAME) as file:
        content = file.read()
    with backup.open(f"{manifest.NAME}.sha256") as file:
        expected = file.read().decode(errors="replace")
    if archive.hash_bytes(content) != expected:
        raise BackupUnusable(f"{where}: {manifest.NAME} is damaged", "use another backup")
    found = manifest.parse(content, str(where))
    known = {file.name.removesuffix(".sql") for file in files(migrations.__name__).iterdir()}
    newer = [name for name in found.migrations if name.removesuffix(".sql") not in known]
    if newer:
        raise BackupUnusable(
            f"{where} was made by a newer release ({found.release}, migration {newer[0]})",
            "restore it with that release",
        )
    binaries.find(found.postgres_major)
    return found


def restore(source: Path, home: Home, *, objects_url: str | None, report: Report) -> Restored:
    """Create a home from a backup. Raises StackError; the home is unusable then, and can be deleted."""
    source = source.expanduser().absolute()
    with explain_os_errors(home.path), archive.open_backup(source) as backup:
        found = read_manifest(backup, source)
        _check_empty(home)
        staging = Home(home.restoring)
        shutil.rmtree(staging.path, ignore_errors=True)
        private_files.make_directory(home.path)
        staging.open()
        try:
            _restore(backup, found, source, home, staging, objects_url, report)
        except BaseException:
            shutil.rmtree(staging.path, ignore_errors=True)
            raise
        _move_in(staging, home)
    return Restored(home.path, found)


def _check_empty(home: Home) -> None:
    if home.path.is_dir() and any(path != home.restoring for path in home.path.iterdir()):
        raise HomeUnusable(
            f"{home.path} is not empty", "restore into a new directory: --home DIRECTORY"
        )


def _restore(
    backup: OpenBackup,
    found: BackupManifest,
    source: Path,
    home: Home,
    staging: Home,
    objects_url: str | None,
    report: Report,
) -> None:
    stored = objects.choose(staging, objects_url, None, inherited_environment())
    store = stored.open()
    _check_store_empty(store, found)
    _write_postgres(backup, found, source, staging, report)
    _write_home(backup, found, source, staging, report)
    saved = configuration.read(staging.config)
    chosen = configuration.Configuration(saved.ports, saved.rpc_pools, stored.remote_url)
    configuration.write(staging.config, chosen)
    _write_objects(backup, found, source, store, report)
    report("check", 0, 1)
    with (
        snapshot.started_copy(staging.postgres, staging.pgpass) as server,
        snapshot.connected(server) as (state, data),
    ):
        orgs = contents.describe(state, data).orgs
        contents.move_objects(
            state, store.scheme, [(org, store.org_root(UUID(org))) for org in orgs]
        )
        restored = contents.describe(state, data)
    _compare(found, restored)
    _check_objects(found, restored, source)
    report("check", 1, 1)


# --- files ------------------------------------------------------------------------------------


def _write_postgres(
    backup: OpenBackup, found: BackupManifest, source: Path, staging: Home, report: Report
) -> None:
    data = staging.postgres / "data"
    for name in (".", *found.directories):
        private_files.make_directory(data / name)
    entries = [entry for entry in found.files if entry.name.startswith("postgres/")]
    meter = Meter("databases", sum(entry.size for entry in entries), report)
    for entry in entries:
        _write_file(backup, entry, source, data, "postgres/", meter)


def _write_home(
    backup: OpenBackup, found: BackupManifest, source: Path, staging: Home, report: Report
) -> None:
    entries = [entry for entry in found.files if entry.name.startswith("home/")]
    meter = Meter("settings", sum(entry.size for entry in entries), report)
    for entry in entries:
        _write_file(backup, entry, source, staging.path, "home/", meter)


def _write_file(
    backup: OpenBackup, entry: Entry, source: Path, root: Path, prefix: str, meter: Meter
) -> None:
    path = root / entry.name.removeprefix(prefix)
    if not path.resolve().is_relative_to(root.resolve()):
        raise BackupUnusable(f"{source} names {entry.name}, outside of the home", "do not use it")
    private_files.make_directory(path.parent)
    with path.open("wb") as file:
        path.chmod(0o700 if entry.is_executable else 0o600)
        _copy(backup, entry, source, file, meter)


def _write_objects(
    backup: OpenBackup, found: BackupManifest, source: Path, store: ObjectStore, report: Report
) -> None:
    entries = found.objects()
    meter = Meter("objects", sum(entry.size for entry in entries), report)
    for entry in entries:
        _, org_id, relative = entry.name.split("/", 2)
        with store.open_writer(f"{store.org_root(UUID(org_id))}/{relative}") as writer:
            with writer.errors():
                _copy(backup, entry, source, writer.stream, meter)
            writer.commit()


def _copy(backup: OpenBackup, entry: Entry, source: Path, target: Any, meter: Meter) -> None:
    """Copy one file and compare it with the manifest. Raises BackupUnusable."""
    with backup.open(entry.name) as file:
        reader = archive.HashingReader(file, meter)
        while chunk := reader.read(archive.CHUNK):
            target.write(chunk)
    copied = reader.entry(entry.name)
    if (copied.size, copied.sha256) != (entry.size, entry.sha256):
        raise BackupUnusable(
            f"{source} is damaged: {entry.name} differs from its checksum", "use another backup"
        )


# --- checks -----------------------------------------------------------------------------------


def _check_store_empty(store: ObjectStore, found: BackupManifest) -> None:
    for org_id in {UUID(entry.name.split("/", 2)[1]) for entry in found.objects()}:
        root = store.org_root(org_id)
        for area in ("cold/", "buffers/"):
            if next(iter(store.list(f"{root}/{area}")), None) is not None:
                raise BackupUnusable(
                    f"{store.url} already has objects under {area}",
                    "name an empty place with --objects-url",
                )


def _compare(found: BackupManifest, restored: Contents) -> None:
    """Compare every dataset and every table with the manifest. Raises BackupUnusable."""
    pairs: list[tuple[str, Sequence[object], Sequence[object]]] = [
        ("datasets", found.datasets, restored.datasets),
        ("tables", found.tables, restored.tables),
    ]
    for kind, expected, actual in pairs:
        different = [item for item in expected if item not in set(actual)]
        if different or len(expected) != len(actual):
            raise BackupUnusable(
                f"the restored {kind} differ from the backup: {different[:3]}", "use another backup"
            )


def _check_objects(found: BackupManifest, restored: Contents, source: Path) -> None:
    """Check that the backup has the objects of every partition. Raises BackupUnusable."""
    names = {entry.name for entry in found.files}
    for ref in restored.prefixes:
        marker = f"objects/{ref.org_id}/{ref.prefix}_SUCCESS"
        if marker not in names:
            raise archive.missing(source, marker)


def _move_in(staging: Home, home: Home) -> None:
    """Move the restored files into the home. The mark comes last: a home without it is not started."""
    ownership.mark(staging)
    entries = sorted(staging.path.iterdir(), key=lambda path: path == staging.mark)
    for path in entries:
        path.rename(home.path / path.name)
    staging.path.rmdir()
