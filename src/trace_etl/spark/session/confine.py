"""Run a command that can execute only the listed programs. Standard library only: runs with -I -S.

Arguments: the programs, `--`, the command. A program is a file, or a directory with all files in it.
This is a separate program, because code between fork and exec may deadlock in a process with threads.
"""

import os
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[3]))
from trace_etl import landlock

_END = "--"
_ELF_64 = b"\x7fELF\x02"
_LOADER_ENTRY = 3


def confine_command(command: Sequence[str], programs: Sequence[Path]) -> list[str]:
    """The command line that runs `command` with the right to execute only these programs."""
    return [sys.executable, "-I", "-S", __file__, *map(str, programs), _END, *command]


def main(arguments: list[str]) -> None:
    """Restrict this process, then replace it with the command."""
    end = arguments.index(_END)
    programs, command = arguments[:end], arguments[end + 1 :]
    loaders = [_find_loader(Path(program)) for program in programs]
    try:
        landlock.restrict(execute=[*programs, *filter(None, loaders)])
        os.execv(command[0], command)  # noqa: S606
    except OSError as error:
        sys.exit(f"cannot start {command[0]}: {error}")


def _find_loader(program: Path) -> str | None:
    """The dynamic loader that the kernel executes for this program, from its ELF header."""
    if not program.is_file():
        return None
    with program.open("rb") as file:
        head = file.read(64)
        if not head.startswith(_ELF_64):
            return None
        order = "<" if head[5] == 1 else ">"
        [start] = struct.unpack_from(f"{order}Q", head, 32)
        size, count = struct.unpack_from(f"{order}HH", head, 54)
        for number in range(count):
            file.seek(start + number * size)
            kind, _, offset, _, _, length = struct.unpack(f"{order}IIQQQQ", file.read(40))
            if kind == _LOADER_ENTRY:
                file.seek(offset)
                return file.read(length).rstrip(b"\0").decode()
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
