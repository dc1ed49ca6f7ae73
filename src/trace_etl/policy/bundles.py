"""Bundles of user-defined functions: zips that are built the same every time and checked before use."""

import hashlib
import io
import stat
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from trace_etl.model.bundles import MAX_FILES, MAX_UNPACKED_BYTES, MAX_ZIP_BYTES

MAX_NAME = 255
_SKIPPED = {"__pycache__", ".git", ".DS_Store", ".venv"}
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can hold
_ENCRYPTED = 0x1
_CHUNK = 1 << 20


class BadBundle(ValueError):
    """The zip is not a usable bundle. The message says why and what to do."""


@dataclass(frozen=True)
class BuiltBundle:
    """A built bundle."""

    content: bytes
    files: int

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


def build_bundle(directory: Path) -> BuiltBundle:
    """Zip a directory. The same files give the same bytes. Raises BadBundle.

    Names are sorted and times left out. A file keeps only whether it can be executed.
    """
    files = sorted(_list_files(directory), key=lambda path: path.relative_to(directory).parts)
    if not files:
        raise BadBundle(f"{directory} has no files; put the code of the function there")
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in files:
            entry = zipfile.ZipInfo(path.relative_to(directory).as_posix(), _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix, on every machine: the modes below apply
            mode = 0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644
            entry.external_attr = (stat.S_IFREG | mode) << 16
            archive.writestr(entry, path.read_bytes())
    bundle = BuiltBundle(output.getvalue(), len(files))
    check_bundle(io.BytesIO(bundle.content))
    return bundle


def _list_files(directory: Path) -> Iterator[Path]:
    if not directory.is_dir():
        raise BadBundle(f"{directory} is not a directory; name the directory of the function")
    for path in directory.rglob("*"):
        if _SKIPPED & set(path.relative_to(directory).parts):
            continue
        if path.is_symlink():
            raise BadBundle(f"{path} is a link; copy the file instead")
        if path.is_file():
            yield path


def check_bundle(content: IO[bytes]) -> list[zipfile.ZipInfo]:
    """Return the files of a bundle. Raises BadBundle for a zip that must not be unpacked."""
    size = content.seek(0, io.SEEK_END)
    if size > MAX_ZIP_BYTES:
        raise BadBundle(
            f"has {size} bytes, more than {MAX_ZIP_BYTES}; remove what it does not need"
        )
    try:
        with zipfile.ZipFile(content) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError) as error:
        raise BadBundle(
            f"is not a zip file: {error}; push the directory of the function"
        ) from error
    if len(entries) > MAX_FILES:
        raise BadBundle(
            f"has {len(entries)} files, more than {MAX_FILES}; remove those it does not need"
        )
    if (total := sum(entry.file_size for entry in entries)) > MAX_UNPACKED_BYTES:
        raise BadBundle(
            f"unpacks to {total} bytes, more than {MAX_UNPACKED_BYTES}; remove what it does not need"
        )
    _check_names(entries)
    for entry in entries:
        _check_entry(entry)
    files = [entry for entry in entries if not entry.is_dir()]
    if not files:
        raise BadBundle("has no files; add the code of the function")
    return files


def _check_names(entries: list[zipfile.ZipInfo]) -> None:
    files: set[PurePosixPath] = set()
    for entry in entries:
        path = PurePosixPath(entry.filename)
        if path in files:
            raise BadBundle(f"has {entry.filename!r} twice; keep one of them")
        if not entry.is_dir():
            files.add(path)
    for entry in entries:
        parents = PurePosixPath(entry.filename).parents
        if inside := next((parent for parent in parents if parent in files), None):
            raise BadBundle(
                f"has {entry.filename!r} inside of the file {str(inside)!r}; rename one"
            )


def _check_entry(entry: zipfile.ZipInfo) -> None:
    # `orig_filename` is the stored name: zipfile cuts `filename` at a NUL.
    name, stored = entry.filename, entry.orig_filename
    parts = name.rstrip("/").split("/")
    if name != stored or any(ord(c) < 32 or c in "\\\x7f" for c in stored):
        raise BadBundle(f"has the file {stored!r}, whose name has a forbidden character; rename it")
    if name.startswith("/") or {"", ".", ".."} & set(parts) or len(name.encode()) > MAX_NAME:
        raise BadBundle(
            f"has the file {name!r}, whose name is not a path inside of the bundle; rename it"
        )
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise BadBundle(f"has {name!r}, which is a link or a device; use plain files")
    if entry.flag_bits & _ENCRYPTED:
        raise BadBundle(f"has the encrypted file {name!r}; zip it without a password")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise BadBundle(f"has {name!r}, which is neither stored nor deflated; zip it with deflate")


def unpack_bundle(content: bytes, sha256: str, directory: Path) -> None:
    """Verify a bundle and unpack it into an empty directory. Raises BadBundle."""
    if (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise BadBundle(f"has the SHA-256 {found}, not {sha256}; push it again")
    files = check_bundle(io.BytesIO(content))
    directory.mkdir()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for entry in files:
            _unpack_file(archive, entry, directory / entry.filename)
    for path in [directory, *directory.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)  # independent of the umask: another user reads it


def _unpack_file(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    left = entry.file_size
    try:
        with archive.open(entry) as source, path.open("xb") as target:
            while chunk := source.read(min(_CHUNK, left + 1)):
                left -= len(chunk)
                if left < 0:
                    raise BadBundle(
                        f"has {entry.filename!r}, which is larger than its header says; push it again"
                    )
                target.write(chunk)
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise BadBundle(
            f"cannot be unpacked: {entry.filename!r}: {error}; push it again"
        ) from error
    is_program = entry.external_attr >> 16 & stat.S_IXUSR
    path.chmod(0o755 if is_program else 0o644)
