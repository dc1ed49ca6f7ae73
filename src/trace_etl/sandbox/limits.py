"""The limits of one sandboxed program."""

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """What a sandboxed program may use. Memory and processes count for the whole process tree."""

    memory_bytes: int = 512 * MIB
    processes: int = 64
    cpu_seconds: int = 300
    wall_seconds: float = 300.0
    temporary_bytes: int = 256 * MIB
    temporary_files: int = 20_000
    file_bytes: int = 256 * MIB
    open_files: int = 256
    output_bytes: int = MIB
    """How much of the program's output is kept. The rest is read and dropped."""
    limits_address_space: bool = True
    """False for programs that reserve much more memory than they use, such as Node."""
