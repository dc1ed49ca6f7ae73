"""Open the object store that a process is configured with."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from trace_etl.objects.errors import UnsupportedStore
from trace_etl.objects.file_store import FileStore
from trace_etl.objects.store import ObjectStore


def open_store(url: str) -> ObjectStore:
    """Open a store by its URL (`TRACE_OBJECTS_URL`). Raises UnsupportedStore."""
    parts = urlsplit(url)
    is_file = parts.scheme == "file" and parts.netloc in ("", "localhost")
    if not is_file or not parts.path.startswith("/") or parts.query or parts.fragment:
        raise UnsupportedStore(
            f"TRACE_OBJECTS_URL: {url} is not supported; use file:///directory, an absolute path"
        )
    return FileStore(Path(unquote(parts.path)))
