"""Bundles of functions: zips, and how a client pushes them."""

import hashlib
import io
import zipfile

import httpx

from support.lifecycle.lifecycle import Bench
from trace_etl.api.user.dags.udf import PART_BYTES


def make_zip(text: str, name: str = "rule.py") -> bytes:
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w") as archive:
        archive.writestr(name, text)
    return output.getvalue()


def push(shared: Bench, name: str, content: bytes, *, sha256: str | None = None) -> httpx.Response:
    """Send a bundle in parts and finalize it."""
    digest = sha256 or hashlib.sha256(content).hexdigest()
    body = {"name": name, "sha256": digest, "size_bytes": len(content)}
    reply = shared.user.post("/v1/udf/uploads", json=body)
    assert reply.status_code == 200, reply.text
    path = f"/v1/udf/uploads/{reply.json()['upload_id']}"
    for number, start in enumerate(range(0, len(content), PART_BYTES)):
        part = content[start : start + PART_BYTES]
        sent = shared.user.put(f"{path}/parts/{number}", content=part)
        assert sent.status_code == 200, sent.text
    return shared.user.post(f"{path}/finalize")
