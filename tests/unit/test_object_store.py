"""The object store: what every backend promises, on the file backend."""

import os
import pickle
from pathlib import Path

import pytest

from trace_etl.api.task.lifecycle import SuccessMarker
from trace_etl.model.errors import OutputNotReady
from trace_etl.model.storage import StorageRef
from trace_etl.objects.errors import (
    InvalidKey,
    NotAnObject,
    ObjectExists,
    ObjectMissing,
    ObjectTooLarge,
    StorageFull,
    StorageUnwritable,
    UnsupportedStore,
)
from trace_etl.objects.markers import read_marker, write_marker
from trace_etl.objects.opening import open_store
from trace_etl.objects.store import ObjectStore, object_key

KEY = "bucket/some/prefix/part.bin"


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store((tmp_path / "objects").as_uri())


def test_an_object_is_read_back_whole_and_in_part(store: ObjectStore) -> None:
    store.put(KEY, b"0123456789")
    assert store.get(KEY) == b"0123456789"
    assert store.get_range(KEY, start=3, length=4) == b"3456"
    assert store.get_range(KEY, start=8, length=4) == b"89"
    store.put(KEY, b"replaced")
    assert store.get(KEY) == b"replaced"


def test_a_missing_object_is_reported_as_missing(store: ObjectStore) -> None:
    with pytest.raises(ObjectMissing, match=KEY):
        store.get(KEY)
    with pytest.raises(ObjectMissing, match=KEY):
        store.get_range(KEY, start=0, length=1)
    with pytest.raises(ObjectMissing):
        store.get_untrusted(KEY, max_bytes=1)
    store.delete(KEY)


def test_create_refuses_a_taken_key(store: ObjectStore) -> None:
    store.create(KEY, b"first")
    with pytest.raises(ObjectExists):
        store.create(KEY, b"second")
    assert store.get(KEY) == b"first"
    assert [item.key for item in store.list("bucket/")] == [KEY]


def test_a_listing_has_the_objects_of_the_prefix_and_no_drafts(store: ObjectStore) -> None:
    for key in (KEY, "bucket/some/other", "bucket/some/prefix/deeper/x", "bucket/somewhere"):
        store.put(key, b"12")
    with store.open_writer("bucket/some/draft") as writer:
        writer.stream.write(b"unfinished")
        sizes = {item.key: item.size for item in store.list("bucket/some/")}
    assert sizes == {KEY: 2, "bucket/some/other": 2, "bucket/some/prefix/deeper/x": 2}
    assert list(store.list("bucket/nothing/")) == []


def test_a_deleted_object_is_gone(store: ObjectStore) -> None:
    store.put(KEY, b"")
    store.delete(KEY)
    with pytest.raises(ObjectMissing):
        store.get(KEY)


def test_a_writer_shows_its_object_only_when_it_is_committed(store: ObjectStore) -> None:
    with store.open_writer(KEY) as writer:
        writer.stream.write(b"abc")
        with pytest.raises(ObjectMissing):
            store.get(KEY)
        assert writer.commit() == 3
    assert store.get(KEY) == b"abc" and Path(store.uri(KEY)).read_bytes() == b"abc"


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


def test_a_discarded_writer_leaves_nothing(store: ObjectStore) -> None:
    with pytest.raises(RuntimeError), store.open_writer(KEY) as writer:
        writer.stream.write(b"abc")
        raise RuntimeError
    assert list(Path(store.uri(KEY)).parent.iterdir()) == []


def test_writers_of_one_key_do_not_disturb_each_other(store: ObjectStore) -> None:
    with store.open_writer(KEY, attempt=0) as first, store.open_writer(KEY, attempt=1) as second:
        first.stream.write(b"first")
        second.stream.write(b"second")
        first.commit()
        second.commit()
    assert store.get(KEY) == b"second"


def test_a_full_disk_and_an_unwritable_path_are_reported(store: ObjectStore) -> None:
    path = Path(store.uri(KEY))
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


@pytest.mark.parametrize("key", ["", "/etc/passwd", "bucket/../../x", "bucket//x", "bucket/./x"])
def test_a_key_cannot_leave_the_store(store: ObjectStore, key: str) -> None:
    for access in (store.get, store.uri, store.delete, lambda key: store.put(key, b"")):
        with pytest.raises(InvalidKey):
            access(key)


def test_untrusted_objects_are_read_without_links_and_up_to_a_size(store: ObjectStore) -> None:
    store.put(KEY, b"12345")
    assert store.get_untrusted(KEY, max_bytes=5) == b"12345"
    with pytest.raises(ObjectTooLarge):
        store.get_untrusted(KEY, max_bytes=4)
    path = Path(store.uri(KEY))
    path.with_name("link").symlink_to(path)
    os.mkfifo(path.with_name("pipe"))
    for name in ("link", "pipe"):
        with pytest.raises(NotAnObject):
            store.get_untrusted(f"bucket/some/prefix/{name}", max_bytes=5)


def test_a_reference_of_another_store_is_refused(store: ObjectStore) -> None:
    with pytest.raises(InvalidKey, match="storage scheme s3"):
        object_key(store, StorageRef("s3", "bucket", "some/"), "x")
    with pytest.raises(InvalidKey, match="outside"):
        object_key(store, StorageRef("file", "bucket", "some/"), "../x")


def test_a_marker_completes_a_prefix(store: ObjectStore) -> None:
    ref = StorageRef("file", "bucket", "some/prefix/")
    with pytest.raises(OutputNotReady, match="not complete"):
        read_marker(store, ref)
    marker = SuccessMarker(files=[], rows=0, bytes=0, schema=[{"name": "n", "type": "bigint"}])
    write_marker(store, ref, marker)
    assert read_marker(store, ref) == marker
    store.put(object_key(store, ref, "_SUCCESS"), b"{}")
    with pytest.raises(OutputNotReady, match="not a success marker"):
        read_marker(store, ref)


def test_a_store_can_be_sent_to_an_executor(store: ObjectStore) -> None:
    store.put(KEY, b"abc")
    assert pickle.loads(pickle.dumps(store)).get(KEY) == b"abc"


@pytest.mark.parametrize("url", ["s3://bucket", "/plain/path", "file://host/x", "file:relative"])
def test_an_unsupported_url_is_refused_with_what_is_supported(url: str) -> None:
    with pytest.raises(UnsupportedStore, match="use file:///directory"):
        open_store(url)


def test_a_path_with_spaces_is_one_directory(tmp_path: Path) -> None:
    store = open_store((tmp_path / "with space").as_uri())
    store.put(KEY, b"abc")
    assert (tmp_path / "with space" / KEY).read_bytes() == b"abc"
