"""Children that do not outlive their parent, even when it is killed outright."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def dies_with_parent(sent: signal.Signals) -> Callable[[], None] | None:
    """What a child runs before exec so that the kernel signals it when its parent dies.

    Hazard: the kernel watches the *thread* that forked; start children from one that stays.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def ask_kernel() -> None:
        # After setuid: a change of credentials clears the wish.
        if prctl(_PR_SET_PDEATHSIG, int(sent), 0, 0, 0) != 0 or os.getppid() != parent:
            os._exit(127)

    return ask_kernel
