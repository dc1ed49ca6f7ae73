"""The file store: what every backend promises, and what only files need."""

import os
from pathlib import Path
from uuid import UUID

import pytest

from support.data.store_contract import StoreContract
from trace_etl.objects.errors import (
    InvalidKey,
    NotAnObject,
    StorageFull,
    StorageUnwritable,
    UnsupportedStore,
)
from trace_etl.objects.file_store import FileStore
from trace_etl.objects.opening import open_store
from trace_etl.objects.row_counts import RowCount, StoredFile, count_rows
from trace_etl.objects.store import Deleted, ObjectStore

ORG_ID = UUID("6f1c2d3e-0000-4000-8000-0123456789ab")
KEY = "bucket/some/prefix/part.bin"


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store((tmp_path / "objects").as_uri())


@pytest.fixture
def root() -> str:
    return "bucket/"


class TestFileStore(StoreContract):
    def test_links_and_pipes_are_not_read(self, store: ObjectStore) -> None:
        store.put(KEY, b"12345")
        path = Path(store.jvm_path(KEY) or "")
        path.with_name("link").symlink_to(path)
        os.mkfifo(path.with_name("pipe"))
        for name in ("link", "pipe"):
            with pytest.raises(NotAnObject):
                store.get_untrusted(f"bucket/some/prefix/{name}", max_bytes=5)

    def test_a_discarded_writer_leaves_no_draft(self, store: ObjectStore) -> None:
        with pytest.raises(RuntimeError), store.open_writer(KEY) as writer:
            writer.stream.write(b"abc")
            raise RuntimeError
        assert list(Path(store.jvm_path(KEY) or "").parent.iterdir()) == []


@pytest.mark.parametrize("how", ["put", "create", "writer", "writer beside another file"])
def test_a_written_object_survives_a_power_failure(
    store: ObjectStore, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replay which files and directory entries were on disk: only what fsync has seen."""
    durable: dict[Path, set[str] | bytes] = {}
    sync = os.fsync

    def record(descriptor: int) -> None:
        sync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        durable[path] = {p.name for p in path.iterdir()} if path.is_dir() else path.read_bytes()

    if how == "writer beside another file":
        (tmp_path / "objects" / KEY).parent.mkdir(parents=True)  # by a process that has not synced
    monkeypatch.setattr(os, "fsync", record)
    if how.startswith("writer"):
        with store.open_writer(KEY) as writer:
            writer.stream.write(b"content")
            writer.commit()
    else:
        getattr(store, how)(KEY, b"content")
    assert b"content" in durable.values()
    directory = tmp_path / "objects"
    for name in KEY.split("/"):
        assert name in durable[directory], f"the entry {name} in {directory} would be lost"
        directory /= name


def test_a_full_disk_and_an_unwritable_path_are_reported(store: ObjectStore) -> None:
    path = Path(store.jvm_path(KEY) or "")
    path.parent.mkdir(parents=True)
    draft = path.with_name(f"{path.name}#0")
    draft.symlink_to("/dev/full")
    with (
        pytest.raises(StorageFull, match="No space left"),
        store.open_writer(KEY) as writer,
        writer.errors(),
    ):
        writer.stream.write(b"x" * 100_000)
    assert not draft.is_symlink()
    store.put("bucket/file", b"")
    with pytest.raises(StorageUnwritable, match="cannot write"):
        store.put("bucket/file/below", b"")


def test_the_rows_of_a_long_text_file_are_counted_up_to_a_size(store: ObjectStore) -> None:
    store.put(KEY, b"1\n" * 50)
    file = StoredFile(store, KEY, *store.get_untrusted_tail(KEY, max_bytes=10))
    assert count_rows(file, "json", max_bytes=100) == RowCount(50)
    part = count_rows(file, "json", max_bytes=60)
    assert part == RowCount(30, unread=40)
    assert [rows for rows in (0, 29, 30, 50, 70, 71) if part.allows(rows)] == [30, 50, 70]


@pytest.mark.parametrize(
    "url",
    [
        "/plain/path",
        "file://host/x",
        "file:relative",
        "file:///x/{org_id}",
        "gs://bucket/x",
        "s3://bucket/x?y=1",
    ],
)
def test_an_unsupported_url_is_refused_with_what_is_supported(url: str) -> None:
    with pytest.raises(UnsupportedStore, match="use file:///directory"):
        open_store(url)


def test_a_path_with_spaces_is_one_directory(tmp_path: Path) -> None:
    store = open_store((tmp_path / "with space").as_uri())
    store.put(KEY, b"abc")
    assert (tmp_path / "with space" / KEY).read_bytes() == b"abc"


def test_delete_prefix_deletes_the_marker_first_and_nothing_beside_the_prefix(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("1/_SUCCESS", "1/a.parquet", "1/sub/b.parquet", "1/kept", "10/_SUCCESS"):
        store.put(f"trace/cold/task/{name}", b"12345")
    assert isinstance(store, FileStore)
    (store.root / "trace/cold/task/1/c.parquet#7").write_bytes(b"draft of a killed writer")
    order: list[str] = []
    unlink = os.unlink
    monkeypatch.setattr(
        os, "unlink", lambda name, **where: (order.append(name), unlink(name, **where))
    )
    prefix, kept = "trace/cold/task/1/", "trace/cold/task/1/kept"
    assert store.delete_prefix(prefix, first="_SUCCESS", keep={kept}) == Deleted(3, 15)
    assert order[0] == "_SUCCESS"
    assert {o.key for o in store.list("trace/cold/")} == {kept, "trace/cold/task/10/_SUCCESS"}
    assert [file.name for file in (store.root / "trace/cold/task/1").iterdir()] == ["kept"]
    assert store.delete_prefix(prefix, first="_SUCCESS") == Deleted(1, 5)
    assert not (store.root / "trace/cold/task/1").exists()
    assert store.delete_prefix(prefix, first="_SUCCESS") == Deleted(0, 0)


def test_deletions_do_not_follow_links_to_other_objects(store: ObjectStore) -> None:
    assert isinstance(store, FileStore)
    store.put("trace/cold/victim/1/rows", b"committed")
    victim = store.root / "trace/cold/victim/1"
    store.put("trace/cold/task/1/_SUCCESS", b"{}")
    (store.root / "trace/cold/task/1/directory").symlink_to(victim)
    (store.root / "trace/cold/task/1/file").symlink_to(victim / "rows")
    (store.root / "trace/cold/task/2").symlink_to(victim)
    for delete in (
        lambda: store.delete("trace/cold/task/1/directory/rows"),
        lambda: store.delete_prefix("trace/cold/task/2/", first="_SUCCESS"),
    ):
        with pytest.raises(NotAnObject):
            delete()
    store.delete_prefix("trace/cold/task/1/", first="_SUCCESS")
    assert store.get("trace/cold/victim/1/rows") == b"committed"
    assert not (store.root / "trace/cold/task/1").exists()


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("s3://bucket", "bucket"),
        ("s3://bucket/", "bucket"),
        ("s3://bucket/a/b/", "bucket/a/b"),
        ("s3://bucket/a/{org_id}", f"bucket/a/{ORG_ID}"),
        ("s3://trace-{org_id}/a", f"trace-{ORG_ID}/a"),
    ],
)
def test_an_organisation_has_its_place_in_s3(url: str, root: str) -> None:
    assert open_store(url).org_root(ORG_ID) == root


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3://Bucket",
        "s3://b/x",
        "s3://bucket/a//b",
        "s3://bucket/../b",
        "s3://bucket/a b",
        "s3://bucket/{org}",
        "s3://bucket/*",
        "s3://bucket/%2e%2e",
        "s3://key:secret@bucket/x",
    ],
)
def test_a_bad_s3_url_is_refused_without_repeating_a_password(url: str) -> None:
    with pytest.raises(UnsupportedStore, match="TRACE_OBJECTS_URL") as refused:
        open_store(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "key",
    [
        "other/a/x",
        "bucket/x",
        "bucket/ab/x",
        "bucket/a",
        f"bucket/a/{ORG_ID}x/y",
        f"bucket/a/x{ORG_ID}/y",
        "bucket/a/../x",
    ],
)
def test_a_key_of_another_prefix_is_refused(key: str) -> None:
    with pytest.raises(InvalidKey):
        open_store("s3://bucket/a/{org_id}").get(key)
