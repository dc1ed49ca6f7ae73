"""What every object store promises. A test class of each backend inherits these tests."""

import pickle
from datetime import timedelta
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trace_etl.api.task.lifecycle import SuccessFile, SuccessMarker
from trace_etl.model.errors import OutputNotReady
from trace_etl.model.storage import StorageRef
from trace_etl.objects.errors import (
    FalseMarker,
    InvalidKey,
    ObjectExists,
    ObjectMissing,
    ObjectTooLarge,
    StorageError,
)
from trace_etl.objects.markers import read_marker, verify_output, write_marker
from trace_etl.objects.store import Deleted, ObjectStore, object_key
from trace_etl.spark.io.parquet import open_parquet_file
from trace_etl.spark.io.scan import Limit, Scan


class StoreContract:
    """Needs a fixture `store` and a fixture `root`: a bucket and prefix of the store."""

    def test_an_object_is_read_back_whole_and_in_part(self, store: ObjectStore, root: str) -> None:
        key = f"{root}a/part.bin"
        store.put(key, b"0123456789")
        assert store.get(key) == b"0123456789"
        assert store.get_range(key, start=3, length=4) == b"3456"
        assert store.get_range(key, start=8, length=4) == b"89"
        store.put(key, b"replaced")
        assert store.get(key) == b"replaced"

    def test_a_missing_object_is_reported_as_missing(self, store: ObjectStore, root: str) -> None:
        key = f"{root}a/part.bin"
        with pytest.raises(ObjectMissing, match=key):
            store.get(key)
        with pytest.raises(ObjectMissing, match=key):
            store.get_range(key, start=0, length=1)
        with pytest.raises(ObjectMissing):
            store.get_untrusted(key, max_bytes=1)
        with pytest.raises(ObjectMissing):
            store.get_untrusted_tail(key, max_bytes=1)
        with pytest.raises(ObjectMissing):
            store.open_input(key)
        store.delete(key)

    def test_create_refuses_a_taken_key(self, store: ObjectStore, root: str) -> None:
        key = f"{root}a/part.bin"
        store.create(key, b"first")
        with pytest.raises(ObjectExists):
            store.create(key, b"second")
        assert store.get(key) == b"first"
        assert [item.key for item in store.list(root)] == [key]

    def test_a_listing_has_the_objects_of_the_prefix_and_no_drafts(
        self, store: ObjectStore, root: str
    ) -> None:
        for key in ("some/a/x", "some/b", "some/a/deeper/x", "somewhere"):
            store.put(root + key, b"12")
        with store.open_writer(f"{root}some/draft") as writer:
            writer.stream.write(b"unfinished")
            sizes = {item.key: item.size for item in store.list(f"{root}some/")}
        expected = ("some/a/x", "some/b", "some/a/deeper/x")
        assert sizes == {root + key: 2 for key in expected}
        assert list(store.list(f"{root}nothing/")) == []

    def test_a_deleted_object_is_gone(self, store: ObjectStore, root: str) -> None:
        store.put(f"{root}a", b"")
        store.delete(f"{root}a")
        with pytest.raises(ObjectMissing):
            store.get(f"{root}a")

    def test_delete_prefix_deletes_nothing_beside_the_prefix(
        self, store: ObjectStore, root: str
    ) -> None:
        names = ("1/_SUCCESS", "1/a.parquet", "1/sub/b.parquet", "1/kept", "10/_SUCCESS")
        for name in names:
            store.put(f"{root}task/{name}", b"12345")
        prefix, kept = f"{root}task/1/", f"{root}task/1/kept"
        assert store.delete_prefix(prefix, first="_SUCCESS", keep={kept}) == Deleted(3, 15)
        assert {info.key for info in store.list(root)} == {kept, f"{root}task/10/_SUCCESS"}
        assert store.delete_prefix(prefix, first="_SUCCESS") == Deleted(1, 5)
        assert store.delete_prefix(prefix, first="_SUCCESS") == Deleted(0, 0)

    @pytest.mark.parametrize("size", [3, 20_000_000])
    def test_a_writer_shows_its_object_only_when_it_is_committed(
        self, store: ObjectStore, root: str, size: int
    ) -> None:
        key = f"{root}a/part.bin"
        with store.open_writer(key) as writer:
            for start in range(0, size, 1_000_000):
                writer.stream.write(b"x" * min(1_000_000, size - start))
            with pytest.raises(ObjectMissing):
                store.get(key)
            assert writer.name == "part.bin"
            assert writer.commit() == size
        assert store.get(key) == b"x" * size

    @pytest.mark.parametrize("size", [3, 20_000_000])
    def test_a_discarded_writer_leaves_nothing(
        self, store: ObjectStore, root: str, size: int
    ) -> None:
        with pytest.raises(RuntimeError), store.open_writer(f"{root}a/part.bin") as writer:
            writer.stream.write(b"x" * size)
            writer.stream.close()
            raise RuntimeError
        assert list(store.list(root)) == []

    def test_writers_of_one_key_do_not_disturb_each_other(
        self, store: ObjectStore, root: str
    ) -> None:
        key = f"{root}a/part.bin"
        with (
            store.open_writer(key, attempt=0) as first,
            store.open_writer(key, attempt=1) as second,
        ):
            first.stream.write(b"first")
            second.stream.write(b"second")
            first.commit()
            second.commit()
        assert store.get(key) == b"second"

    @pytest.mark.parametrize("end", ["", "/etc/passwd", "../../x", "a//x", "a/./x", "a\x00b"])
    def test_a_key_cannot_leave_the_store(self, store: ObjectStore, root: str, end: str) -> None:
        key = root + end
        for access in (
            store.get,
            store.delete,
            store.open_writer,
            lambda key: store.put(key, b""),
            lambda key: store.read_urls([key], life=timedelta(minutes=1)),
        ):
            with pytest.raises(InvalidKey):
                access(key)

    def test_untrusted_objects_are_read_up_to_a_size(self, store: ObjectStore, root: str) -> None:
        key = f"{root}a"
        store.put(key, b"12345")
        assert store.get_untrusted(key, max_bytes=5) == b"12345"
        with pytest.raises(ObjectTooLarge):
            store.get_untrusted(key, max_bytes=4)
        assert store.get_untrusted_tail(key, max_bytes=2) == (5, b"45")
        assert store.get_untrusted_tail(key, max_bytes=9) == (5, b"12345")
        assert store.get_untrusted_range(key, start=3, length=5) == b"45"
        assert store.get_untrusted_range(key, start=5, length=5) == b""
        store.put(key, b"")
        assert store.get_untrusted(key, max_bytes=5) == b""
        assert store.get_untrusted_tail(key, max_bytes=9) == (0, b"")

    def test_a_reference_of_another_store_is_refused(self, store: ObjectStore, root: str) -> None:
        bucket, _, prefix = root.partition("/")
        with pytest.raises(InvalidKey, match="storage scheme other"):
            object_key(store, StorageRef("other", bucket, prefix), "x")
        with pytest.raises(InvalidKey, match="outside"):
            object_key(store, StorageRef(store.scheme, bucket, prefix), "../x")

    def test_a_marker_completes_a_prefix(self, store: ObjectStore, root: str) -> None:
        bucket, _, prefix = root.partition("/")
        ref = StorageRef(store.scheme, bucket, prefix)
        with pytest.raises(OutputNotReady, match="not complete"):
            read_marker(store, ref)
        marker = SuccessMarker(files=[], rows=0, bytes=0, schema=[{"name": "n", "type": "bigint"}])
        write_marker(store, ref, marker)
        assert read_marker(store, ref) == marker
        store.put(object_key(store, ref, "_SUCCESS"), b"{}")
        with pytest.raises(OutputNotReady, match="not a success marker"):
            read_marker(store, ref)

    def test_a_marker_is_compared_with_its_files(self, store: ObjectStore, root: str) -> None:
        bucket, _, prefix = root.partition("/")
        ref = StorageRef(store.scheme, bucket, prefix)
        size = _write_rows(store, f"{root}x.parquet", 1000)
        for rows, count, problem in ((1000, size, None), (999, size, "rows"), (1000, 7, "bytes")):
            files = [SuccessFile(name="x.parquet", rows=rows, bytes=count)]
            write_marker(store, ref, SuccessMarker(files=files, rows=rows, bytes=count, schema=[]))
            if problem is None:
                assert verify_output(store, ref).rows == rows
                continue
            with pytest.raises(FalseMarker, match=problem):
                verify_output(store, ref)

    def test_parquet_files_are_scanned_in_row_groups(self, store: ObjectStore, root: str) -> None:
        keys = [f"{root}{n}.parquet" for n in range(2)]
        for key in keys:
            _write_rows(store, key, 250_000)
        scan = Scan(store, tuple(keys), pa.schema([("n", pa.int64())]))
        assert sum(batch.num_rows for batch in scan.batches()) == 500_000
        few = scan.only(keys[1]).limit(Limit("n", ">=", 249_990)).limit(Limit("n", "<", 249_995))
        rows = [row for batch in few.batches() for row in batch.column(0).to_pylist()]
        assert rows == list(range(249_990, 249_995))
        table = pq.read_table(store.open_input(keys[0]))
        assert table.num_rows == 250_000

    def test_a_store_can_be_sent_to_an_executor(self, store: ObjectStore, root: str) -> None:
        store.put(f"{root}a", b"abc")
        assert pickle.loads(pickle.dumps(store)).get(f"{root}a") == b"abc"

    def test_the_objects_of_an_organisation_are_in_the_store(self, store: ObjectStore) -> None:
        ref = StorageRef(store.scheme, store.org_root(uuid4()), "cold/")
        key = object_key(store, ref, "x")
        try:
            store.put(key, b"1")
        except StorageError as error:  # with a bucket for each organisation
            assert error.code == "storage_refused"
        else:
            assert store.get(key) == b"1"


def _write_rows(store: ObjectStore, key: str, count: int) -> int:
    batch = pa.RecordBatch.from_pydict({"n": pa.array(range(count), pa.int64())})
    with open_parquet_file(store, key, batch.schema) as file:
        file.write(batch)
        return file.finish().bytes
