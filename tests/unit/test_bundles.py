"""Bundles of functions: the same bytes every time, and no zip that could harm when unpacked."""

import hashlib
import io
import os
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from trace_etl.model import bundles as limits
from trace_etl.policy import bundles
from trace_etl.policy.bundles import BadBundle, build_bundle, check_bundle, unpack_bundle


def make_zip(*entries: zipfile.ZipInfo | str, content: bytes = b"x") -> bytes:
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry in entries:
            archive.writestr(entry, content)
    return output.getvalue()


def entry(name: str, mode: int = stat.S_IFREG | 0o644) -> zipfile.ZipInfo:
    made = zipfile.ZipInfo(name)
    made.external_attr = mode << 16
    return made


def patched(content: bytes, old: bytes, new: bytes) -> bytes:
    assert old in content and len(old) == len(new)
    return content.replace(old, new)


def test_the_same_files_give_the_same_bundle(tmp_path: Path) -> None:
    hashes: list[str] = []
    for number, order in enumerate((("a.py", "b/c.py"), ("b/c.py", "a.py"))):
        place = tmp_path / str(number)
        for name in order:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text("print()")
            os.utime(place / name, (number * 1e9, number * 1e9))
        (place / "__pycache__").mkdir()
        (place / "__pycache__" / "a.pyc").write_bytes(b"x")
        hashes.append(build_bundle(place).sha256)
    assert hashes[0] == hashes[1]
    (tmp_path / "1" / "a.py").chmod(0o755)
    assert build_bundle(tmp_path / "1").sha256 != hashes[0]


def test_a_bundle_is_unpacked_as_it_was(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "lib").mkdir(parents=True)
    (source / "rule.py").write_text("x = 1")
    (source / "lib" / "run").write_text("#!/bin/sh")
    (source / "lib" / "run").chmod(0o700)
    built = build_bundle(source)
    unpack_bundle(built.content, built.sha256, tmp_path / "unpacked")
    assert (tmp_path / "unpacked" / "rule.py").read_text() == "x = 1"
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "unpacked").rglob("*")
    }
    assert modes == {"rule.py": 0o644, "lib": 0o755, "run": 0o755}


def test_links_and_empty_directories_are_not_bundled(tmp_path: Path) -> None:
    with pytest.raises(BadBundle, match="has no files"):
        build_bundle(tmp_path)
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(BadBundle, match="is a link; copy the file"):
        build_bundle(tmp_path)
    with pytest.raises(BadBundle, match="is not a directory"):
        build_bundle(tmp_path / "missing")


_HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "not_a_zip": (lambda: b"PK\x03\x04 no", "not a zip"),
    "cut": (lambda: make_zip("a.py")[:-10], "not a zip"),
    "empty": (lambda: make_zip(), "has no files"),
    "absolute": (lambda: make_zip("/etc/cron.d/x"), "inside of the bundle"),
    "parent": (lambda: make_zip("../x"), "inside of the bundle"),
    "hidden_parent": (lambda: make_zip("a/../../x"), "inside of the bundle"),
    "dot": (lambda: make_zip("./x"), "inside of the bundle"),
    "empty_part": (lambda: make_zip("a//x"), "inside of the bundle"),
    "backslash": (lambda: patched(make_zip("a_b"), b"a_b", b"a\\b"), "forbidden character"),
    "nul": (lambda: patched(make_zip("a_b"), b"a_b", b"a\0b"), "forbidden character"),
    "newline": (lambda: make_zip("a\nb"), "forbidden character"),
    "long": (lambda: make_zip("a" * 300), "inside of the bundle"),
    "link": (lambda: make_zip(entry("a", stat.S_IFLNK | 0o777)), "link or a device"),
    "device": (lambda: make_zip(entry("a", stat.S_IFBLK | 0o600)), "link or a device"),
    "pipe": (lambda: make_zip(entry("a", stat.S_IFIFO | 0o600)), "link or a device"),
    "file_as_directory": (lambda: make_zip("a", "a/b"), "inside of the file"),
    "many": (lambda: make_zip(*(str(n) for n in range(limits.MAX_FILES + 1))), "files, more than"),
}


@pytest.mark.parametrize("name", _HOSTILE)
def test_a_harmful_zip_is_refused(name: str, tmp_path: Path) -> None:
    make, reason = _HOSTILE[name]
    content = make()
    with pytest.raises(BadBundle, match=reason):
        check_bundle(io.BytesIO(content))
    with pytest.raises(BadBundle, match=reason):
        unpack_bundle(content, hashlib.sha256(content).hexdigest(), tmp_path / "unpacked")
    assert not (tmp_path / "unpacked").exists()


def test_a_bundle_with_a_name_twice_is_refused() -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        content = make_zip("a", "a")
    with pytest.raises(BadBundle, match="twice"):
        check_bundle(io.BytesIO(content))


def test_a_zip_bomb_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bomb = make_zip("a", "b", content=b"\0" * (2 << 20))
    assert len(bomb) < 10_000
    monkeypatch.setattr(bundles, "MAX_UNPACKED_BYTES", 3 << 20)
    with pytest.raises(BadBundle, match="unpacks to 4194304 bytes"):
        check_bundle(io.BytesIO(bomb))
    # The same with a false size in the directory of the zip.
    size, false = (2 << 20).to_bytes(4, "little"), (1000).to_bytes(4, "little")
    lying = make_zip("a", content=b"\0" * (2 << 20)).replace(size, false)
    with pytest.raises(BadBundle):
        unpack_bundle(lying, hashlib.sha256(lying).hexdigest(), tmp_path / "unpacked")
    written = sum(f.stat().st_size for f in (tmp_path / "unpacked").rglob("*") if f.is_file())
    assert written <= 1000


def test_a_large_zip_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "MAX_ZIP_BYTES", 50)
    with pytest.raises(BadBundle, match="more than 50"):
        check_bundle(io.BytesIO(make_zip("a")))


def test_a_bundle_with_another_hash_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadBundle, match="has the SHA-256"):
        unpack_bundle(make_zip("a"), "0" * 64, tmp_path / "unpacked")
