"""Append to a file without end, whatever happens to the task, unless its config sets `obeys`."""

import time
from pathlib import Path
from typing import Any, NoReturn


def run(context: Any, config: Any) -> NoReturn:
    with Path(config.file).open("a") as file:
        while True:
            file.write("written\n")
            file.flush()
            time.sleep(0.01)
            if config.obeys:
                context.check()
