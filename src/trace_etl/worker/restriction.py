"""Give up rights after the start of a process that needs more of them."""

import os
import sys
from collections.abc import Mapping

from trace_etl import landlock
from trace_etl.process import count_threads
from trace_etl.worker.settings import AllowedPaths

_NOTHING_LEFT = {"TRACE_ALLOWED_PATHS": "null"}


def restrict(allowed: AllowedPaths, descriptors: Mapping[str, int]) -> None:
    """Restrict this process to these paths. Settings then have the descriptors, by their variables.

    Landlock binds a thread and what it starts. If this process has another thread, the program starts
    again, so that no thread with more rights is left. Raises OSError.
    """
    is_alone = count_threads() == 1
    landlock.restrict(read=[*allowed.read, *allowed.write], write=allowed.write, scoped=True)
    os.environ.update(_NOTHING_LEFT | {name: str(fd) for name, fd in descriptors.items()})
    if not is_alone:
        for descriptor in descriptors.values():
            os.set_inheritable(descriptor, True)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606
