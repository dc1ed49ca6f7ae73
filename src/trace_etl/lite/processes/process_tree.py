"""Process trees: bind children to their parent, and find and stop orphans."""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

import psutil

from trace_etl import launcher
from trace_etl.lite.isolation import Access
from trace_etl.lite.postgres.account import Account

# psutil derives a start time from the boot time, which moves a little with the clock.
_CLOCK_SLACK = 2.0
_POLL = 0.02


def bound(
    command: Sequence[str],
    *,
    sent: signal.Signals = signal.SIGTERM,
    account: Account | None = None,
    directory: str = "/",
    access: Access | None = None,
) -> list[str]:
    """Wrap a command so that it runs as `account` and gets the signal `sent` if this process dies.

    With `access`, it can use only these paths.

    Hazard: the kernel watches the *thread* that forks. Start children from a thread that stays.
    """
    other = account is not None and not account.is_ours
    uid, gid = (account.uid, account.gid) if account and other else (-1, -1)
    numbers = [str(number) for number in (os.getpid(), int(sent), uid, gid)]
    allowed = json.dumps(asdict(access) if access else None)
    return [sys.executable, "-I", "-S", launcher.__file__, *numbers, allowed, directory, *command]


def find_process(pid: int, created: float) -> psutil.Process | None:
    """Return the process with that pid and start time if it still runs, else None."""
    try:
        process = psutil.Process(pid)
        is_same = abs(process.create_time() - created) <= _CLOCK_SLACK
        return process if is_same and is_running(process) else None
    except psutil.NoSuchProcess:
        return None


def is_reused_pid(pid: int, created: float) -> bool:
    """Return whether the pid belongs to another process now."""
    try:
        return abs(psutil.Process(pid).create_time() - created) > _CLOCK_SLACK
    except psutil.NoSuchProcess:
        return False


def is_running(process: psutil.Process) -> bool:
    """Return whether the process runs. A zombie does not run."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until_ended(processes: Sequence[psutil.Process], grace: float) -> list[psutil.Process]:
    """Wait up to `grace` seconds until all have ended; return those that still run."""
    deadline = time.monotonic() + grace
    alive = [process for process in processes if is_running(process)]
    while alive and time.monotonic() < deadline:
        time.sleep(_POLL)
        alive = [process for process in alive if is_running(process)]
    return alive


def session_members(leader: int) -> list[psutil.Process]:
    """List the other processes in a leader's session, such as the JVM and its Python workers."""
    members: list[psutil.Process] = []
    for pid in psutil.pids():
        try:
            if pid != leader and os.getsid(pid) == leader:
                members.append(psutil.Process(pid))
        except (ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            continue
    return members


def kill_all(processes: Sequence[psutil.Process]) -> None:
    """Send SIGKILL to each process that still runs."""
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def end(processes: Sequence[psutil.Process], *signals: signal.Signals, grace: float) -> None:
    """Send each signal in turn until all processes have ended."""
    alive = list(processes)
    for sent in signals:
        for process in alive:
            try:
                process.send_signal(sent)
            except psutil.NoSuchProcess:
                continue
        alive = wait_until_ended(alive, grace)
        if not alive:
            return
