"""The limits of one sandboxed program."""

import math
import os
from dataclasses import dataclass

MIB = 1 << 20
_RESERVED = 8192 * MIB  # V8 reserves 512 MiB for the code of each thread with JavaScript


@dataclass(frozen=True)
class Limits:
    """What a sandboxed program may use. Memory and processes count for the whole process tree."""

    memory_bytes: int = 512 * MIB
    processes: int = 64
    wall_seconds: float = 300.0
    temporary_bytes: int = 256 * MIB
    temporary_files: int = 20_000
    open_files: int = 256
    output_bytes: int = MIB
    """How much of the program's output is kept. The rest is read and dropped."""
    reserves_memory: bool = False
    """Whether the program reserves much more memory than it uses, as Node does. Then the limit of each
    process has room for that, and the memory that the process tree really uses is what counts."""

    @property
    def cpu_seconds(self) -> int:
        """The processor time of one process: all that it can use until `wall_seconds`."""
        return math.ceil(self.wall_seconds) * (os.cpu_count() or 1)

    @property
    def file_bytes(self) -> int:
        """The size of one file: more than fits, so that a write fails and no signal ends the program."""
        return self.temporary_bytes + MIB

    @property
    def memory_rule(self) -> tuple[str, int]:
        """The limit of the kernel for one process, by its name."""
        if self.reserves_memory:
            return "RLIMIT_DATA", self.memory_bytes + _RESERVED
        return "RLIMIT_AS", self.memory_bytes
