"""Files and directories that only their owner may read, written whole or not at all."""

import os
import secrets
from pathlib import Path


def make_directory(path: Path) -> Path:
    """Create the directory if needed and close it to everyone else."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def write(path: Path, content: str | bytes) -> None:
    """Replace the file in one step; its mode is 0600 from its first byte on."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
