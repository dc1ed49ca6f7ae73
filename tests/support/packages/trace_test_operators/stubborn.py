"""Append to a file for ever, whatever happens to the task."""

import time
from pathlib import Path
from typing import Any, NoReturn


def run(context: Any, config: Any) -> NoReturn:
    with Path(config.file).open("a") as file:
        while True:
            file.write("written\n")
            file.flush()
            time.sleep(0.01)
