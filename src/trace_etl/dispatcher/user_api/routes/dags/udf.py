"""Bundles of user-defined functions. A bundle is uploaded in parts, checked, and never changes."""

import asyncio
import hashlib
import io
from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Query, Request

from trace_etl.api.body import DatasetName
from trace_etl.api.user.dags.udf import (
    MAX_PARTS,
    PART_BYTES,
    BundleItem,
    BundleList,
    UploadReply,
    UploadRequest,
)
from trace_etl.dispatcher.user_api.context import CallerDep, ContextDep
from trace_etl.dispatcher.user_api.pages import PageDep
from trace_etl.model.errors import Fault, Invalid
from trace_etl.model.storage import bundle_key
from trace_etl.objects.errors import ObjectExists
from trace_etl.objects.store import ObjectStore
from trace_etl.policy.bundles import BadBundle, check_bundle
from trace_etl.state.bundles import bundles, uploads
from trace_etl.state.db.pool import transaction

router = APIRouter(prefix="/v1/udf", tags=["udf"])
_WAIT_SECONDS = 60.0
_PART_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.get("/bundles")
async def list_bundles(
    user: CallerDep,
    ctx: ContextDep,
    page: PageDep,
    name: Annotated[DatasetName | None, Query(description="Only bundles of this name.")] = None,
) -> BundleList:
    """List the bundles of user-defined functions, newest first."""
    async with ctx.pool.connection() as conn:
        rows = await bundles.list_bundles(
            conn, user.org_id, name=name, after=page.after(datetime, str), limit=page.fetch
        )
    return page.reply(BundleList, rows, lambda row: (row.pushed_at, row.sha256))


@router.post("/uploads")
async def start_upload(body: UploadRequest, user: CallerDep, ctx: ContextDep) -> UploadReply:
    """Start the upload of a bundle. Ends your earlier upload of this name."""
    async with transaction(ctx.pool) as conn:
        upload_id = await uploads.start_upload(
            conn,
            user.org_id,
            user=user.name,
            name=body.name,
            sha256=body.sha256,
            size=body.size_bytes,
        )
    return UploadReply(upload_id=upload_id)


@router.put("/uploads/{upload_id}/parts/{number}", openapi_extra=_PART_BODY)
async def put_part(
    upload_id: UUID,
    number: Annotated[int, Path(ge=0, lt=MAX_PARTS)],
    request: Request,
    user: CallerDep,
    ctx: ContextDep,
) -> UploadReply:
    """Send one part of a bundle, counted from 0. Sending a part again replaces it."""
    content = await request.body()
    async with transaction(ctx.pool) as conn:
        upload = await uploads.lock_upload(conn, user.org_id, user.name, upload_id)
        expected = min(PART_BYTES, upload.size_bytes - number * PART_BYTES)
        if len(content) != expected:
            rule = f"has {len(content)} bytes, but part {number} must have {max(0, expected)}"
            raise Invalid([Fault("body", f"{rule}; send parts of {PART_BYTES} bytes")])
        await uploads.put_part(conn, upload_id, number, content)
    return UploadReply(upload_id=upload_id)


@router.post("/uploads/{upload_id}/finalize")
async def finalize(upload_id: UUID, user: CallerDep, ctx: ContextDep) -> BundleItem:
    """Check the uploaded bundle and keep it. The same bundle again changes nothing."""
    async with ctx.bundle_checks.take(f"{user.org_id}/{user.name}", _WAIT_SECONDS):
        async with ctx.pool.connection() as conn:
            upload = await uploads.lock_upload(conn, user.org_id, user.name, upload_id)
            content = await uploads.read_parts(conn, upload_id)
        files = await asyncio.to_thread(_check, content, upload)
        key = bundle_key(ctx.objects.org_root(user.org_id), upload.sha256)
        await asyncio.to_thread(_store, ctx.objects, key, content)
        del content
    async with transaction(ctx.pool) as conn:
        upload = await uploads.lock_upload(conn, user.org_id, user.name, upload_id)
        return await uploads.finish_upload(conn, user.org_id, user.name, upload, files)


def _check(content: bytes, upload: uploads.Upload) -> int:
    """Return the number of files. Raises Invalid."""
    if len(content) != upload.size_bytes:
        sent = f"{len(content)} of {upload.size_bytes} bytes were sent"
        raise Invalid([Fault("parts", f"{sent}; send the missing parts")])
    if (found := hashlib.sha256(content).hexdigest()) != upload.sha256:
        raise Invalid([Fault("sha256", f"the parts have {found}; send them again")])
    try:
        return len(check_bundle(io.BytesIO(content)))
    except BadBundle as error:
        raise Invalid([Fault("bundle", str(error))]) from error


def _store(objects: ObjectStore, key: str, content: bytes) -> None:
    try:
        objects.create(key, content)
    except ObjectExists:
        return  # the name is the hash of the content
