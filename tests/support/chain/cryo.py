"""Runs cryo, another extraction tool, on the same chain to compare results."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

_DEADLINE = 120
_FREEZE = """
import os, sys, cryo
tables, blocks, url, directory, chunk = sys.argv[1:]
cryo.freeze(tables.split(","), blocks=[blocks], rpc=url, output_dir=directory,
            chunk_size=int(chunk), verbose=False)
os._exit(0)  # its threads still run, and a usual exit sometimes ends with a segmentation fault
"""


def freeze(tables: Iterable[str], length: int, url: str, into: Path, *, chunk: int = 1000) -> None:
    """Have cryo write the first `length` blocks of a chain into a new directory.

    Runs in a separate process because cryo does not close its event loop.
    """
    arguments = [",".join(tables), f"0:{length}", url, str(into), str(chunk)]
    into.mkdir()
    result = subprocess.run(
        [sys.executable, "-c", _FREEZE, *arguments],
        capture_output=True,
        text=True,
        timeout=_DEADLINE,
        env={**os.environ, "HOME": str(into)},
        check=False,
    )
    if result.returncode != 0:
        raise RuntimeError(f"cryo ended with {result.returncode}: {result.stdout}{result.stderr}")
