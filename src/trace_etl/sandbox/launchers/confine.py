"""The first program inside a sandbox: sets limits and Landlock rules, then becomes the user's program.

Standard library only, and no package: it runs with -I -S from a directory that holds this file and
`landlock.py`. Arguments: the settings as JSON, `--`, the command.
"""

import json
import os
import resource
import sys

sys.path.append(os.path.dirname(__file__))
import landlock  # pyright: ignore[reportMissingImports] - a copy beside this file

_END = "--"


def main(arguments: list[str]) -> None:
    """Restrict this process, then replace it with the command."""
    end = arguments.index(_END)
    settings, command = json.loads(arguments[0]), arguments[end + 1 :]
    if settings["listen"]:
        _hand_out_listener(**settings["listen"])
    for name, value in settings["limits"].items():
        limit = getattr(resource, name)
        resource.setrlimit(limit, (value, value))
    if settings["landlock"]:
        readable, writable = settings["read"], settings["write"]
        landlock.restrict(  # pyright: ignore[reportUnknownMemberType]
            read=[*readable, *writable], write=writable, execute=readable, scoped=True
        )
    os.chdir(settings["directory"])
    os.write(settings["started"], b"1")
    os.close(settings["started"])
    os.execve(command[0], command, dict(os.environ))  # noqa: S606


def _hand_out_listener(port: int, control: str) -> None:
    """Listen on the loopback of this sandbox, and give the listener to the program outside."""
    import socket  # only some programs need it

    with socket.create_server(("127.0.0.1", port)) as server, socket.socket(socket.AF_UNIX) as out:
        out.connect(control)
        socket.send_fds(out, [b"listener"], [server.fileno()])


if __name__ == "__main__":
    main(sys.argv[1:])
