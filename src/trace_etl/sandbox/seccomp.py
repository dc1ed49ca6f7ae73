"""The system call filter of a sandbox, as a BPF program for `bwrap --seccomp`.

Denies calls that reach other processes, keys, devices, mounts and namespaces, that keep memory or
messages outside of all processes, or that have a history of kernel defects. Calls that are newer than
this list do not exist for the program.
"""

import errno
import platform
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from trace_etl.sandbox.errors import SandboxUnavailable

_LOAD_WORD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_AND = 0x54
_ALLOW, _KILL_PROCESS, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
# Offsets in struct seccomp_data.
_NUMBER, _ARCHITECTURE, _ARGUMENT_0, _ARGUMENT_1, _ARGUMENT_2 = 0, 4, 16, 24, 32
_NEW_NAMESPACES = 0x7E020080  # every CLONE_NEW… flag
_X32_CALLS = 0x40000000
_LAST_KNOWN_CALL = 466
_AF_UNIX, _AF_INET = 1, 2
_SOCK_STREAM, _SOCKET_KIND = 1, 0xF  # the other bits are flags
_ANY_PROTOCOL, _TCP = 0, 6
_SOL_SOCKET, _BUFFER_SIZES = 1, (7, 8)  # SO_SNDBUF, SO_RCVBUF
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: type into the terminal of another process

# Numbers that all architectures share.
_DENIED = {
    **{"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427},
    **{"open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432},
    **{"fspick": 433, "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442},
    **{"quotactl_fd": 443, "memfd_secret": 447},
}


@dataclass(frozen=True)
class _Architecture:
    audit: int
    clone: int
    socket: int
    setsockopt: int
    ioctl: int
    denied: Mapping[str, int]


_X86_64 = _Architecture(
    audit=0xC000003E,
    clone=56,
    socket=41,
    setsockopt=54,
    ioctl=16,
    denied={
        **{"ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312},
        **{"mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161},
        **{"unshare": 272, "setns": 308, "add_key": 248, "request_key": 249, "keyctl": 250},
        **{"bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "memfd_create": 319},
        **{"init_module": 175, "finit_module": 313, "delete_module": 176},
        **{"kexec_load": 246, "kexec_file_load": 320, "reboot": 169, "swapon": 167},
        **{"swapoff": 168, "acct": 163, "quotactl": 179, "syslog": 103, "settimeofday": 164},
        **{"clock_settime": 227, "adjtimex": 159, "clock_adjtime": 305, "sethostname": 170},
        **{"setdomainname": 171, "iopl": 172, "ioperm": 173, "modify_ldt": 154, "vhangup": 153},
        **{"name_to_handle_at": 303, "open_by_handle_at": 304, "personality": 135},
        **{"set_mempolicy": 238, "mbind": 237, "migrate_pages": 256, "move_pages": 279},
        **{"fanotify_init": 300, "lookup_dcookie": 212, "nfsservctl": 180, "uselib": 134},
        **{"ustat": 136, "sysfs": 139, "_sysctl": 156},
        **{"shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240},
    },
)
_AARCH64 = _Architecture(
    audit=0xC00000B7,
    clone=220,
    socket=198,
    setsockopt=208,
    ioctl=29,
    denied={
        **{"ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272},
        **{"mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51},
        **{"unshare": 97, "setns": 268, "add_key": 217, "request_key": 218, "keyctl": 219},
        **{"bpf": 280, "perf_event_open": 241, "userfaultfd": 282, "memfd_create": 279},
        **{"init_module": 105, "finit_module": 273, "delete_module": 106},
        **{"kexec_load": 104, "kexec_file_load": 294, "reboot": 142, "swapon": 224},
        **{"swapoff": 225, "acct": 89, "quotactl": 60, "syslog": 116, "settimeofday": 170},
        **{"clock_settime": 112, "adjtimex": 171, "clock_adjtime": 266, "sethostname": 161},
        **{"setdomainname": 162, "vhangup": 58, "name_to_handle_at": 264},
        **{"open_by_handle_at": 265, "personality": 92, "set_mempolicy": 237, "mbind": 235},
        **{"migrate_pages": 238, "move_pages": 239, "fanotify_init": 262},
        **{"lookup_dcookie": 18, "nfsservctl": 42},
        **{"shmget": 194, "semget": 190, "msgget": 186, "mq_open": 180},
    },
)
_ARCHITECTURES = {"x86_64": _X86_64, "aarch64": _AARCH64}
_CLONE3 = 435


def is_supported() -> bool:
    """Return whether there is a filter for this processor."""
    return platform.machine() in _ARCHITECTURES


def make_filter(machine: str | None = None, *, loopback: bool = False) -> bytes:
    """Return the filter for this processor. Raises SandboxUnavailable if there is none.

    `loopback` allows TCP, for programs that have a network of their own with nothing but loopback.
    """
    name = machine or platform.machine()
    if (arch := _ARCHITECTURES.get(name)) is None:
        fix = "use a machine with x86-64 or ARM64"
        raise SandboxUnavailable(f"there is no call filter for the processor {name}", fix)
    program = [
        _step(_LOAD_WORD, _ARCHITECTURE),
        *_unless_equal(arch.audit, _KILL_PROCESS),
        _step(_LOAD_WORD, _NUMBER),
        *_from(_X32_CALLS, _KILL_PROCESS),
        *_from(_LAST_KNOWN_CALL + 1, _fail(errno.ENOSYS)),
        # The libraries fall back to clone, whose flags can be checked.
        *_if_equal(_CLONE3, _fail(errno.ENOSYS)),
    ]
    for number in sorted({*_DENIED.values(), *arch.denied.values()}):
        program += _if_equal(number, _fail(errno.EPERM))
    program += _check_argument(arch.clone, _ARGUMENT_0, _if_bits(_NEW_NAMESPACES, errno.EPERM))
    families = _unless_equal(_AF_UNIX, _fail(errno.EAFNOSUPPORT))
    program += _check_argument(
        arch.socket, _ARGUMENT_0, _unless_unix_or_tcp() if loopback else families
    )
    program += _check_argument(arch.setsockopt, _ARGUMENT_1, _ignore_buffer_sizes())
    terminal = [step for call in _TERMINAL_INPUT for step in _if_equal(call, _fail(errno.EPERM))]
    program += _check_argument(arch.ioctl, _ARGUMENT_1, terminal)
    return b"".join([*program, _step(_RETURN, _ALLOW)])


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _fail(code: int) -> int:
    return _ERROR | code


def _if_equal(value: int, result: int) -> list[bytes]:
    return [_step(_JUMP_EQUAL, value, 0, 1), _step(_RETURN, result)]


def _unless_equal(value: int, result: int) -> list[bytes]:
    return [_step(_JUMP_EQUAL, value, 1, 0), _step(_RETURN, result)]


def _unless_unix_or_tcp() -> list[bytes]:
    """Allow Unix sockets and plain TCP: other protocols have a history of kernel defects."""
    tcp = [
        *_unless_equal(_AF_INET, _fail(errno.EAFNOSUPPORT)),
        _step(_LOAD_WORD, _ARGUMENT_1),
        _step(_AND, _SOCKET_KIND),
        *_unless_equal(_SOCK_STREAM, _fail(errno.EPROTONOSUPPORT)),
        _step(_LOAD_WORD, _ARGUMENT_2),
        _step(_JUMP_EQUAL, _ANY_PROTOCOL, 2, 0),
        *_unless_equal(_TCP, _fail(errno.EPROTONOSUPPORT)),
    ]
    return [_step(_JUMP_EQUAL, _AF_UNIX, len(tcp), 0), *tcp]


def _ignore_buffer_sizes() -> list[bytes]:
    """Do nothing, and report success: a socket keeps the usual buffers, whose memory is no process's."""
    options = [_step(_LOAD_WORD, _ARGUMENT_2)]
    options += [step for size in _BUFFER_SIZES for step in _if_equal(size, _fail(0))]
    return [_step(_JUMP_EQUAL, _SOL_SOCKET, 0, len(options)), *options]


def _from(value: int, result: int) -> list[bytes]:
    return [_step(_JUMP_GREATER_EQUAL, value, 0, 1), _step(_RETURN, result)]


def _if_bits(bits: int, code: int) -> list[bytes]:
    return [_step(_JUMP_BITS, bits, 0, 1), _step(_RETURN, _fail(code))]


def _check_argument(number: int, argument: int, checks: list[bytes]) -> list[bytes]:
    """Apply the checks to an argument of one call, then load the number of the call again."""
    inner = [_step(_LOAD_WORD, argument), *checks, _step(_LOAD_WORD, _NUMBER)]
    return [_step(_JUMP_EQUAL, number, 0, len(inner)), *inner]
