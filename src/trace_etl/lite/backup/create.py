"""Make a backup of a home, running or stopped."""

import io
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

from trace_etl import __version__
from trace_etl.lite import configuration, objects, ownership
from trace_etl.lite.backup import archive, contents, manifest, snapshot
from trace_etl.lite.backup.contents import Contents
from trace_etl.lite.backup.manifest import BackupManifest, Entry
from trace_etl.lite.backup.reporting import Meter, Report
from trace_etl.lite.errors import BackupUnusable
from trace_etl.lite.home import Home, explain_os_errors
from trace_etl.lite.processes.services import inherited_environment
from trace_etl.model.storage import (
    BUNDLES,
    SUCCESS_MARKER,
    StorageRef,
    export_prefix,
    key_of_url,
)
from trace_etl.objects.errors import ObjectMissing
from trace_etl.objects.markers import read_marker
from trace_etl.objects.store import ObjectInfo, ObjectStore

_SECRETS = ("keys/user", "keys/certificates", "secrets")


@dataclass(frozen=True)
class Backup:
    """A finished backup."""

    path: Path
    manifest: BackupManifest


def create(home: Home, target: Path, *, with_secrets: bool, report: Report) -> Backup:
    """Write a backup to `target`, which must not exist. Raises StackError.

    Nothing has the name `target` until the backup is complete.
    """
    target = target.expanduser().absolute()
    if target.exists() or target.is_symlink():
        raise BackupUnusable(f"{target} exists", "name a new file or directory, or delete it")
    if not target.parent.is_dir():
        raise BackupUnusable(f"{target.parent} is not a directory", "create it")
    staging = target.with_name(f".{target.name}.partial")
    with explain_os_errors(target.parent):
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(mode=0o700)
        try:
            made = _create(home, staging, target.name, with_secrets, report)
            (staging / target.name).rename(target)
            _sync_directory(target.parent)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return Backup(target, made)


def _create(
    home: Home, staging: Path, name: str, with_secrets: bool, report: Report
) -> BackupManifest:
    major = int((home.postgres / "data" / "PG_VERSION").read_text()) if _has_data(home) else 0
    clone = staging / "postgres"
    with snapshot.running_server(home) as server, snapshot.sweeps_held(server):
        saved = configuration.read(home.config)
        store = objects.choose(home, None, saved.objects_url, inherited_environment()).open()
        snapshot.copy_server(server, clone, major, report)
        with (
            snapshot.started_copy(clone, home.pgpass) as copy,
            snapshot.connected(copy) as (state, data),
        ):
            found = contents.describe(state, data)
        snapshot.remove_transient_files(clone / "data")
        made = BackupManifest(
            release=__version__,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            home_id=ownership.read_home_id(home),
            postgres_major=major,
            migrations=found.migrations,
            objects_url=saved.objects_url,
            has_secrets=with_secrets,
            datasets=found.datasets,
            tables=found.tables,
            directories=_list_directories(clone / "data"),
        )
        with archive.create(staging / name) as writer:
            files = [
                *_add_files(writer, _list_postgres(clone / "data"), "databases saved", report),
                *_add_files(writer, _list_home(home, with_secrets), "settings", report),
                *_add_objects(writer, store, found, report),
            ]
            made = replace(made, files=files)
            _add_bytes(writer, manifest.NAME, made.to_json())
            checksum = archive.hash_bytes(made.to_json())
            _add_bytes(writer, f"{manifest.NAME}.sha256", checksum.encode())
    return made


def _has_data(home: Home) -> bool:
    return (home.postgres / "data" / "PG_VERSION").exists()


# --- files ------------------------------------------------------------------------------------


def _list_postgres(data: Path) -> list[tuple[str, Path]]:
    return [
        (f"postgres/{path.relative_to(data)}", path)
        for path in sorted(data.rglob("*"))
        if path.is_file() and not path.is_symlink()
    ]


def _list_directories(data: Path) -> list[str]:
    return [str(path.relative_to(data)) for path in sorted(data.rglob("*")) if path.is_dir()]


def _list_home(home: Home, with_secrets: bool) -> list[tuple[str, Path]]:
    """List the files that users wrote, and with secrets also the settings and keys."""
    roots = [home.runtimes, home.programs]
    if with_secrets:
        roots += [home.config, *(home.path / name for name in _SECRETS)]
    files = [path for root in roots for path in [root, *sorted(root.rglob("*"))] if path.is_file()]
    return [(f"home/{path.relative_to(home.path)}", path) for path in files]


def _add_files(
    writer: archive.Archive, files: list[tuple[str, Path]], phase: str, report: Report
) -> list[Entry]:
    meter = Meter(phase, sum(path.stat().st_size for _, path in files), report)
    entries: list[Entry] = []
    for name, path in files:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            entry = _add(writer, name, file, status.st_size, meter)
        entries.append(replace(entry, is_executable=bool(status.st_mode & stat.S_IXUSR)))
    return entries


def _add_bytes(writer: archive.Archive, name: str, content: bytes) -> None:
    writer.add(name, io.BytesIO(content), len(content))


def _add(writer: archive.Archive, name: str, content: BinaryIO, size: int, meter: Meter) -> Entry:
    reader = archive.HashingReader(content, meter)
    writer.add(name, reader, size)  # type: ignore[arg-type]
    return reader.entry(name)


# --- objects ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Object:
    org_id: str
    root: str
    info: ObjectInfo

    @property
    def name(self) -> str:
        return f"objects/{self.org_id}/{self.info.key.removeprefix(f'{self.root}/')}"


def _add_objects(
    writer: archive.Archive, store: ObjectStore, found: Contents, report: Report
) -> list[Entry]:
    listed = {item.name: item for item in _list_objects(store, found)}
    meter = Meter("objects", sum(item.info.size for item in listed.values()), report)
    entries: list[Entry] = []
    for name, item in listed.items():
        with store.open_input(item.info.key) as file:
            entries.append(_add(writer, name, file, item.info.size, meter))
        if entries[-1].size != item.info.size:
            raise BackupUnusable(
                f"{item.info.key} changed while it was copied", "run the backup again"
            )
    return entries


def _list_objects(store: ObjectStore, found: Contents) -> Iterator[_Object]:
    """List the objects that the snapshot refers to. Raises BackupUnusable if one is missing."""
    yield from _list_partitions(store, found)
    yield from _list_batches(store, found)
    for org_id in found.orgs:
        root = store.org_root(UUID(org_id))
        for prefix in (export_prefix(UUID(org_id)), BUNDLES):
            for info in store.list(f"{root}/{prefix}"):
                yield _Object(org_id, root, info)


def _list_partitions(store: ObjectStore, found: Contents) -> Iterator[_Object]:
    """List one generation at a time: one request per partition would take long on S3."""
    generations = groupby(
        found.prefixes, key=lambda ref: (ref.org_id, ref.bucket, _cut_attempt(ref.prefix))
    )
    for (org_id, bucket, generation), refs in generations:
        wanted = {f"{bucket}/{ref.prefix}": ref for ref in refs}
        files: dict[str, dict[str, ObjectInfo]] = {prefix: {} for prefix in wanted}
        for info in store.list(f"{bucket}/{generation}"):
            prefix, _, name = info.key.rpartition("/")
            if f"{prefix}/" in wanted:
                files[f"{prefix}/"][name] = info
        for prefix, ref in wanted.items():
            names = _check_complete(
                store, StorageRef(ref.scheme, bucket, ref.prefix), files[prefix]
            )
            yield from (_Object(org_id, bucket, files[prefix][name]) for name in names)


def _cut_attempt(prefix: str) -> str:
    """Return the prefix without its task and attempt."""
    return "/".join(prefix.split("/")[:-3]) + "/"


def _check_complete(store: ObjectStore, ref: StorageRef, files: dict[str, ObjectInfo]) -> list[str]:
    """Return the files of a committed prefix. Raises BackupUnusable if one is missing."""
    sizes = {} if SUCCESS_MARKER not in files else _read_sizes(store, ref)
    lost = [name for name, size in sizes.items() if name not in files or files[name].size != size]
    lost += [] if sizes or SUCCESS_MARKER in files else [SUCCESS_MARKER]
    if lost:
        raise BackupUnusable(
            f"{ref.url} lacks {', '.join(lost)}, which a committed partition refers to",
            "the data is damaged: rebuild the range with `trace backfill --force`, then try again",
        )
    return [*sizes, SUCCESS_MARKER]


def _read_sizes(store: ObjectStore, ref: StorageRef) -> dict[str, int]:
    return {file.name: file.bytes for file in read_marker(store, ref).files}


def _list_batches(store: ObjectStore, found: Contents) -> Iterable[_Object]:
    """List the artifacts of batches. A written batch may have lost its artifact to a sweep."""
    for batch in found.batches:
        root = store.org_root(UUID(batch.org_id))
        key = key_of_url(batch.batch_uri)
        try:
            with store.open_input(key) as file:
                size = file.size()
        except ObjectMissing:
            continue
        yield _Object(batch.org_id, root, ObjectInfo(key, size, datetime.now(UTC)))


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
