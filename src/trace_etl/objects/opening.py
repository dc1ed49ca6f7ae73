"""Open the object store that a process is configured with."""

import re
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from trace_etl.objects.errors import UnsupportedStore
from trace_etl.objects.file_store import FileStore
from trace_etl.objects.s3_options import S3Options
from trace_etl.objects.s3_store import ORG, S3Store
from trace_etl.objects.store import ObjectStore

# The names of buckets and keys that need no escaping in URLs, policies and shells.
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9._=-]*/)*")
_SAMPLE_ORG = "00000000-0000-0000-0000-000000000000"


def open_store(url: str, s3: S3Options | None = None) -> ObjectStore:
    """Open a store by its URL (`TRACE_OBJECTS_URL`). Raises UnsupportedStore."""
    parts = urlsplit(url)
    if not parts.query and not parts.fragment:
        if parts.scheme == "s3":
            return _open_s3(url, parts, s3 or S3Options())
        is_local = parts.scheme == "file" and parts.netloc in ("", "localhost")
        if is_local and parts.path.startswith("/") and ORG not in url:
            return FileStore(Path(unquote(parts.path)))
    raise UnsupportedStore(
        f"TRACE_OBJECTS_URL: {_hide_user(parts)} is not supported; use file:///directory, an "
        "absolute path, or s3://bucket/prefix"
    )


def _open_s3(url: str, parts: SplitResult, options: S3Options) -> S3Store:
    bucket, path = parts.netloc, parts.path.strip("/")
    prefix = f"{path}/" if path else ""
    if not _BUCKET.fullmatch(bucket.replace(ORG, _SAMPLE_ORG)):
        raise UnsupportedStore(
            f"TRACE_OBJECTS_URL: {_hide_user(parts)} has no valid bucket name; use s3://bucket/prefix"
        )
    if not _PREFIX.fullmatch(prefix.replace(ORG, _SAMPLE_ORG)):
        raise UnsupportedStore(
            f"TRACE_OBJECTS_URL: {url}: in the prefix use only letters, digits, . _ = - and /, and "
            f"{ORG} for the id of the organisation"
        )
    return S3Store(bucket, prefix, options)


def _hide_user(parts: SplitResult) -> str:
    """Return the URL without a user and password: some tools put keys there."""
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
