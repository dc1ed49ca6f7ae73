"""The static files of the page, read once. Their addresses contain a hash of them, so browsers keep them."""

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path

from fastapi import Request, Response

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_FOREVER = "public, max-age=31536000, immutable"
_SMALL = 1024


@dataclass(frozen=True)
class StaticFile:
    """One file, plain and compressed."""

    content: bytes
    compressed: bytes
    media_type: str

    def respond(self, request: Request, cache: str) -> Response:
        """Answer with the file, compressed if the browser accepts it."""
        headers = {"cache-control": cache, "vary": "accept-encoding"}
        if self.compressed and "gzip" in request.headers.get("accept-encoding", ""):
            headers["content-encoding"] = "gzip"
            return Response(self.compressed, media_type=self.media_type, headers=headers)
        return Response(self.content, media_type=self.media_type, headers=headers)


class StaticFiles:
    """All files of a directory, in memory."""

    def __init__(self, directory: Path) -> None:
        found = {
            path.relative_to(directory).as_posix(): path.read_bytes()
            for path in sorted(directory.rglob("*"))
            if path.suffix in _TYPES
        }
        digest = hashlib.sha256()
        for name, content in found.items():
            digest.update(f"{name} {len(content)}\n".encode() + content)
        self.version = digest.hexdigest()[:16]
        page = found.pop("index.html").replace(b"{{version}}", self.version.encode())
        self.page = _load("index.html", page)
        self._files = {name: _load(name, content) for name, content in found.items()}

    def respond(self, request: Request, version: str, name: str) -> Response:
        """Answer with one file. The name is looked up, so no path leaves the directory."""
        file = self._files.get(name)
        if file is None:
            return Response(status_code=404)
        return file.respond(request, _FOREVER if version == self.version else "no-cache")


def _load(name: str, content: bytes) -> StaticFile:
    compressed = gzip.compress(content, mtime=0) if len(content) > _SMALL else b""
    return StaticFile(content, compressed, _TYPES[Path(name).suffix])
