"""Objects in buckets of S3, or of a server that speaks its protocol."""

import io
import re
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from trace_etl.objects.errors import InvalidKey, ObjectTooLarge, StorageError
from trace_etl.objects.s3_errors import s3_errors
from trace_etl.objects.s3_options import S3Options
from trace_etl.objects.s3_writer import PART_BYTES, S3Writer
from trace_etl.objects.store import Deleted, ObjectInfo, check_key

if TYPE_CHECKING:
    from obstore.store import S3Store as Client

ORG = "{org_id}"
"""Placeholder for the id of an organisation in the bucket or the prefix of a URL."""
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_PROBE_ORG = UUID(int=0)


@dataclass(frozen=True)
class S3Store:
    """All objects are under one bucket and prefix, or one for each organisation."""

    bucket: str
    prefix: str = ""
    """Empty, or ends in a slash."""
    options: S3Options = field(default_factory=S3Options)

    @property
    def scheme(self) -> str:
        return "s3"

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    def org_root(self, org_id: UUID) -> str:
        return f"{self.bucket}/{self.prefix}".removesuffix("/").replace(ORG, str(org_id))

    def use_credentials(self, file: Path) -> "S3Store":
        """Return this store with the credentials of a file."""
        options = replace(self.options, credentials_file=file, profile="default")
        return replace(self, options=options)

    def get(self, key: str) -> bytes:
        client, path = self._locate(key)
        with self._translate_errors("read", key):
            return client.get(path).bytes().to_bytes()

    def get_range(self, key: str, *, start: int, length: int) -> bytes:
        client, path = self._locate(key)
        with self._translate_errors("read", key):
            return client.get_range(path, start=start, length=length).to_bytes()

    def get_untrusted(self, key: str, *, max_bytes: int) -> bytes:
        client, path = self._locate(key)
        with self._translate_errors("read", key):
            answer = client.get(path)
            if answer.meta["size"] > max_bytes:  # the content is not downloaded
                raise ObjectTooLarge(f"{key} is larger than {max_bytes} bytes")
            return answer.bytes().to_bytes()

    def get_untrusted_tail(self, key: str, *, max_bytes: int) -> tuple[int, bytes]:
        client, path = self._locate(key)
        try:
            with self._translate_errors("read", key):
                answer = client.get(path, options={"range": {"suffix": max_bytes}})
                return answer.meta["size"], answer.bytes().to_bytes()
        except StorageError:
            if self._read_size(key) == 0:  # S3 has no last bytes of an empty object
                return 0, b""
            raise

    def get_untrusted_range(self, key: str, *, start: int, length: int) -> bytes:
        try:
            return self.get_range(key, start=start, length=length)
        except StorageError:
            if self._read_size(key) <= start:  # S3 refuses a range after the end
                return b""
            raise

    def _read_size(self, key: str) -> int:
        client, path = self._locate(key)
        with self._translate_errors("read", key):
            return client.head(path)["size"]

    def put(self, key: str, content: bytes) -> None:
        client, path = self._locate(key)
        with self._translate_errors("write", key):
            client.put(path, content)

    def create(self, key: str, content: bytes) -> None:
        client, path = self._locate(key)
        with self._translate_errors("write", key):
            client.put(path, content, mode="create", use_multipart=False)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        client, path = self._locate(prefix.removesuffix("/"))
        bucket = prefix.partition("/")[0]
        with self._translate_errors("list", prefix):
            for chunk in cast("Any", client).list(
                path
            ):  # obstore's type of a listing is incomplete
                for entry in chunk:
                    yield ObjectInfo(
                        f"{bucket}/{entry['path']}", entry["size"], entry["last_modified"]
                    )

    def delete(self, key: str) -> None:
        client, path = self._locate(key)
        with self._translate_errors("delete", key):
            client.delete(path)

    def delete_prefix(
        self, prefix: str, *, first: str, keep: Collection[str] = frozenset()
    ) -> Deleted:
        found = [info for info in self.list(prefix) if info.key not in keep]
        found.sort(key=lambda info: info.key != f"{prefix.removesuffix('/')}/{first}")
        if not found:
            return Deleted(0, 0)
        self.delete(found[0].key)
        paths = [self._split(info.key)[1] for info in found[1:]]
        if paths:
            with self._translate_errors("delete", prefix):
                self._locate(found[0].key)[0].delete(paths)
        return Deleted(len(found), sum(info.size for info in found))

    def open_writer(self, key: str, *, attempt: int = 0) -> S3Writer:
        client, path = self._locate(key)

        def upload(content: Any) -> None:
            with self._translate_errors("write", key):
                client.put(path, content, chunk_size=PART_BYTES)

        return S3Writer(
            path.rpartition("/")[2], upload, lambda: self._translate_errors("write", key)
        )

    def read_urls(self, keys: Sequence[str], *, life: timedelta) -> tuple[str, ...]:
        import obstore

        paths: dict[str, list[str]] = {}
        for key in keys:
            paths.setdefault(self._split(key)[0], []).append(self._split(key)[1])
        urls: dict[str, Iterator[str]] = {}
        for bucket, names in paths.items():
            with self._translate_errors("sign a URL of", f"{bucket}/{names[0]}"):
                client = _open_client(self.options, bucket)
                urls[bucket] = iter(obstore.sign(client, "GET", names, life))
        return tuple(next(urls[key.partition("/")[0]]) for key in keys)

    def jvm_path(self, key: str) -> str | None:
        return None

    def open_input(self, key: str) -> Any:
        import pyarrow as pa

        def read(start: int, length: int) -> bytes:
            return self.get_range(key, start=start, length=length)

        return pa.PythonFile(_Reader(self._read_size(key), read), mode="r")

    def probe_key(self) -> str:
        return f"{self.org_root(_PROBE_ORG)}/.probe-{secrets.token_hex(8)}"

    def _locate(self, key: str) -> "tuple[Client, str]":
        bucket, path = self._split(key)
        with self._translate_errors("open", key):
            return _open_client(self.options, bucket), path

    def _split(self, key: str) -> tuple[str, str]:
        """Return the bucket and the path of a key. Raises InvalidKey if it is outside of the store."""
        bucket, _, path = check_key(key).partition("/")
        if not _compile_root(self.bucket, self.prefix).match(f"{bucket}/{path}/"):
            raise InvalidKey(
                f"storage key {key} is outside of {self.url}, the store of this process"
            )
        return bucket, path

    def _translate_errors(self, action: str, key: str) -> AbstractContextManager[None]:
        endpoint = self.options.endpoint or "S3"
        return s3_errors(action, f"s3://{key}", endpoint, is_write=action == "write")


class _Reader:
    """The file object behind an Arrow input file. Each read is one request for exactly its bytes.

    Arrow joins the ranges of neighbouring columns itself. A buffer would fetch the columns between.
    """

    closed = False

    def __init__(self, size: int, read_range: Callable[[int, int], bytes]) -> None:
        self._size, self._read_range = size, read_range
        self._position = 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}
        self._position = base[whence] + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int | None = None) -> bytes:
        left = max(0, self._size - self._position)
        length = left if size is None or size < 0 else min(size, left)
        if length == 0:
            return b""
        content = self._read_range(self._position, length)
        self._position += len(content)
        return content

    def close(self) -> None:
        self.closed = True


@lru_cache(64)
def _open_client(options: S3Options, bucket: str) -> "Client":
    return options.open_client(bucket)


@lru_cache(64)
def _compile_root(bucket: str, prefix: str) -> re.Pattern[str]:
    return re.compile(re.escape(f"{bucket}/{prefix}").replace(re.escape(ORG), _UUID))
