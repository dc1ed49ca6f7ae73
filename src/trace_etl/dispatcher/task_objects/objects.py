"""The object endpoints: read, write and list the objects that a capability token grants."""

import asyncio
import errno
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote_to_bytes
from uuid import UUID

from trace_etl.api.task.credentials import LEASE_HEADER, OBJECTS_PATH, ListedObject, ObjectList
from trace_etl.dispatcher.task_api.authorization.tokens import Capability, TaskTokens
from trace_etl.dispatcher.task_objects.attempt_scopes import (
    AttemptScopes,
    lock_lease,
    require_read,
    require_write,
)
from trace_etl.dispatcher.task_objects.put_conditions import PutCondition, parse_condition
from trace_etl.dispatcher.task_objects.written_bytes import MIN_OBJECT_BYTES, WrittenBytes
from trace_etl.http.body_stream import BodyLost, BodyStream
from trace_etl.http.server.small_server import RpcAnswer
from trace_etl.model.errors import (
    Conflict,
    Fault,
    Invalid,
    MethodNotAllowed,
    NotFound,
    PreconditionFailed,
    RangeNotSatisfiable,
    TooLarge,
    TraceError,
    Unauthenticated,
    Unavailable,
    UseCredentials,
)
from trace_etl.model.storage import SUCCESS_MARKER
from trace_etl.model.task import Fence
from trace_etl.objects.errors import NotAnObject, ObjectMissing, StorageError
from trace_etl.objects.file_store import FileStore
from trace_etl.objects.file_transfer import FileReader, FileUpload
from trace_etl.objects.store import ObjectStore
from trace_etl.policy.object_scope import (
    BadAddress,
    ObjectAddress,
    ObjectScope,
    parse_object,
    parse_prefix,
)
from trace_etl.state.db.pool import transaction

Headers = dict[bytes, bytes]
METHODS = ("GET", "HEAD", "PUT")
_CHUNK = 256 * 1024
_BINARY = b"application/octet-stream"
_RANGE = re.compile(rb"bytes=(\d*)-(\d*)")
_MAX_PAGE = 1000
_CAPABILITY = b"x-trace-task-capability"
_UNUSABLE_NAME = {
    *(errno.EEXIST, errno.ENOTDIR, errno.EISDIR),
    *(errno.ENAMETOOLONG, errno.ENOTEMPTY),
}


@dataclass(frozen=True)
class ObjectCaller:
    """A verified request of a running attempt."""

    capability: Capability
    fence: Fence
    scope: ObjectScope


@dataclass(frozen=True)
class TaskObjects:
    """Objects of a FileStore. A store with its own access control gives credentials instead."""

    store: ObjectStore
    tokens: TaskTokens
    scopes: AttemptScopes
    max_bytes: int
    """The maximum size of one object."""
    written: WrittenBytes

    async def answer(
        self, method: str, path: str, query: bytes, headers: Headers, body: BodyStream | None
    ) -> RpcAnswer:
        """Handle one request. Raises TraceError."""
        caller = await self._authorize(headers)
        store = self._require_files()
        if path == OBJECTS_PATH:
            if method != "GET":
                raise MethodNotAllowed(f"{OBJECTS_PATH} allows only GET")
            return await self._answer_list(store, caller, query)
        address = _parse_path(path)
        if method == "PUT":
            assert body is not None
            return await self._put(store, caller, address, headers, body)
        if method not in METHODS:
            raise MethodNotAllowed(f"objects allow only {', '.join(METHODS)}")
        require_read(caller.scope, address)
        return await self._answer_get(store, address, headers, with_content=method == "GET")

    async def _authorize(self, headers: Headers) -> ObjectCaller:
        capability = self.tokens.verify(headers.get(_CAPABILITY, b"").decode("latin-1"))
        try:
            lease_token = UUID(headers[LEASE_HEADER.lower().encode()].decode("latin-1"))
        except (KeyError, ValueError) as error:
            raise Unauthenticated(
                f"{LEASE_HEADER} is missing or not a UUID; send the lease token of the attempt"
            ) from error
        fence = Fence(capability.task_id, capability.attempt, lease_token)
        await self.scopes.require_lease(capability, fence)
        return ObjectCaller(capability, fence, await self.scopes.get(capability))

    def _require_files(self) -> FileStore:
        if not isinstance(self.store, FileStore):
            raise UseCredentials("this store has its own access control; use /v1/task/credentials")
        return self.store

    # --- reading ------------------------------------------------------------------------------

    async def _answer_get(
        self, store: FileStore, address: ObjectAddress, headers: Headers, *, with_content: bool
    ) -> RpcAnswer:
        reader = await asyncio.to_thread(_open_reader, store, address)
        try:
            start, length = _parse_range(headers.get(b"range"), reader.size)
        except RangeNotSatisfiable:
            reader.close()
            raise
        answer = RpcAnswer(
            b"",
            200 if length == reader.size else 206,
            _describe(reader, start, length),
            _BINARY,
            length,
        )
        if not with_content:
            reader.close()
            return answer
        return answer._replace(stream=_stream_content(reader, start, length))

    # --- writing ------------------------------------------------------------------------------

    async def _put(
        self,
        store: FileStore,
        caller: ObjectCaller,
        address: ObjectAddress,
        headers: Headers,
        body: BodyStream,
    ) -> RpcAnswer:
        require_write(caller.scope, address)
        condition = parse_condition(headers)
        self._check_size(int(headers.get(b"content-length", b"0")))
        key = f"{address.bucket}/{address.key}"
        try:
            upload = await asyncio.to_thread(FileUpload, store, key)
        except StorageError as error:
            raise _explain_unwritable(address, error) from error
        try:
            await self._receive(caller.fence, upload, body)
            await self._publish(store, caller, address, upload, condition)
        except BodyLost as error:
            raise Invalid([Fault("body", "is incomplete")]) from error
        except StorageError as error:
            raise _explain_unwritable(address, error) from error
        finally:
            await asyncio.to_thread(upload.discard)
        return RpcAnswer(b"{}", headers=((b"etag", f'"{upload.etag}"'.encode()),))

    def _check_size(self, size: int) -> None:
        if size > self.max_bytes:
            raise TooLarge(
                f"an object may have at most {self.max_bytes} bytes; write several objects"
            )

    async def _receive(self, fence: Fence, upload: FileUpload, body: BodyStream) -> None:
        size = 0
        self.written.add(fence, MIN_OBJECT_BYTES)
        while chunk := await body.read():
            size += len(chunk)
            self._check_size(size)
            self.written.add(fence, len(chunk))
            await asyncio.to_thread(upload.write, chunk)
        await asyncio.to_thread(upload.finish)

    async def _publish(
        self,
        store: FileStore,
        caller: ObjectCaller,
        address: ObjectAddress,
        upload: FileUpload,
        condition: PutCondition,
    ) -> None:
        """Publish while the task is locked, so that a stale or completed attempt changes nothing.

        Only this attempt writes under its prefixes, so the lock also makes conditions reliable. Output
        with a success marker is complete. The completion verifies it, so it must not change.
        """
        async with transaction(self.scopes.pool) as conn:
            await lock_lease(conn, caller.fence)
            marker = _find_marker(caller.capability, address)
            if marker is not None and await asyncio.to_thread(_exists, store, marker):
                raise Conflict(f"{marker.url} exists: the output is complete and cannot change")
            await asyncio.to_thread(_require_condition, store, address, condition)
            await asyncio.to_thread(upload.publish)

    # --- listing ------------------------------------------------------------------------------

    async def _answer_list(self, store: FileStore, caller: ObjectCaller, query: bytes) -> RpcAnswer:
        values = parse_qs(query.decode("latin-1"))
        prefix = _parse_prefix(values)
        after = values.get("after", [""])[-1]
        if not caller.scope.can_write(prefix):
            require_read(caller.scope, prefix)
        found = await asyncio.to_thread(_list_objects, store, prefix)
        page = [item for item in found if item.url > after][: _MAX_PAGE + 1]
        items = page[:_MAX_PAGE]
        following = items[-1].url if len(page) > _MAX_PAGE else None
        return RpcAnswer(ObjectList(items=items, next=following).model_dump_json().encode())


def streams_body(method: str, path: str) -> bool:
    """Whether a request carries an object, whose body is not kept in memory."""
    return method == "PUT" and path.startswith(OBJECTS_PATH)


def _parse_path(path: str) -> ObjectAddress:
    """Return the object that a path names. It is decoded once. Raises Invalid."""
    try:
        text = unquote_to_bytes(path.removeprefix(OBJECTS_PATH).encode("latin-1")).decode()
        return parse_object(f"s3://{text}")
    except (BadAddress, UnicodeDecodeError) as error:
        raise Invalid([Fault("path", str(error))]) from error


def _parse_prefix(values: dict[str, list[str]]) -> ObjectAddress:
    try:
        (prefix,) = values.get("prefix", [])
        return parse_prefix(prefix)
    except ValueError as error:  # BadAddress is a ValueError, too
        raise Invalid([Fault("prefix", "must be given once, as s3://bucket/prefix/")]) from error


def _parse_range(header: bytes | None, size: int) -> tuple[int, int]:
    """Return the first byte and the length. Several ranges and other units mean the whole object."""
    match = _RANGE.fullmatch(header or b"")
    if match is None or match.group(0) == b"bytes=-":
        return 0, size
    first, last = match.groups()
    if not first:
        length = min(int(last), size)
        start = size - length
    else:
        start = int(first)
        length = min(int(last) if last else size - 1, size - 1) - start + 1
    if length <= 0 or start >= size:
        raise RangeNotSatisfiable(f"the object has {size} bytes; ask for a range inside of it")
    return start, length


def _describe(reader: FileReader, start: int, length: int) -> tuple[tuple[bytes, bytes], ...]:
    modified = reader.modified_at.strftime("%a, %d %b %Y %H:%M:%S GMT").encode()
    headers = (
        (b"accept-ranges", b"bytes"),
        (b"etag", f'"{reader.etag}"'.encode()),
        (b"last-modified", modified),
    )
    if length == reader.size:
        return headers
    span = f"bytes {start}-{start + length - 1}/{reader.size}".encode()
    return (*headers, (b"content-range", span))


async def _stream_content(reader: FileReader, start: int, length: int) -> AsyncGenerator[bytes]:
    """Yield the content, and read the next chunk while the last one is sent."""
    end = start + length
    pending: asyncio.Future[bytes] | None = None
    try:
        while start < end:
            size = min(_CHUNK, end - start)
            pending = pending or _read_later(reader, start, size)
            chunk = await pending
            if len(chunk) != size:
                raise OSError("the object became shorter while it was read")
            start += size
            pending = _read_later(reader, start, min(_CHUNK, end - start)) if start < end else None
            yield chunk
    finally:
        if pending is not None:
            await asyncio.wait([pending])  # the read uses the open file
        reader.close()


def _read_later(reader: FileReader, start: int, size: int) -> "asyncio.Future[bytes]":
    return asyncio.get_running_loop().run_in_executor(None, reader.read, start, size)


def _explain_unwritable(address: ObjectAddress, error: StorageError) -> TraceError:
    """Return the error for a failed write. It names the object, never a path of the server."""
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno in _UNUSABLE_NAME:
        problem = "its name is too long, or it lies under another object, or one lies under it"
        return Invalid([Fault("path", f"cannot write {address.url}: {problem}")])
    return Unavailable(f"cannot write {address.url}; the store is full or not writable")


def _open_reader(store: FileStore, address: ObjectAddress) -> FileReader:
    try:
        return FileReader(store, f"{address.bucket}/{address.key}")
    except (ObjectMissing, NotAnObject) as error:
        raise NotFound(f"there is no object {address.url}; check the address") from error
    except StorageError as error:
        raise Unavailable(f"cannot read {address.url}; try again") from error


def _find_marker(capability: Capability, address: ObjectAddress) -> ObjectAddress | None:
    """Return the success marker of the output that an address belongs to."""
    for grant in capability.outputs.values():
        if grant.url and address.is_under(prefix := parse_prefix(grant.url)):
            return ObjectAddress(prefix.bucket, prefix.key + SUCCESS_MARKER)
    return None


def _exists(store: FileStore, address: ObjectAddress) -> bool:
    return _find_etag(store, address) is not None


def _find_etag(store: FileStore, address: ObjectAddress) -> str | None:
    try:
        reader = FileReader(store, f"{address.bucket}/{address.key}")
    except ObjectMissing:
        return None
    reader.close()
    return reader.etag


def _require_condition(store: FileStore, address: ObjectAddress, condition: PutCondition) -> None:
    if condition == PutCondition():
        return
    existing = _find_etag(store, address)
    if not condition.allows(existing):
        problem = "does not exist" if existing is None else f'exists with ETag "{existing}"'
        raise PreconditionFailed(f"{address.url} {problem}; read it again, then decide")


def _list_objects(store: FileStore, prefix: ObjectAddress) -> list[ListedObject]:
    try:
        found: list[Any] = list(store.list(f"{prefix.bucket}/{prefix.key}"))
    except ObjectMissing:
        return []
    except StorageError as error:
        raise Unavailable(f"cannot list {prefix.url}; try again") from error
    items = [
        ListedObject(url=f"s3://{item.key}", size=item.size, modified_at=item.modified_at)
        for item in found
    ]
    return sorted(items, key=lambda item: item.url)
