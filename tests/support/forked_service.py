"""The main function of a service in a process that another one forked after it imported the service."""

import importlib
import os
from collections.abc import Mapping
from pathlib import Path


def run_service(module: str, environment: Mapping[str, str], log: Path) -> None:
    """Run `python -m module` with this environment, and write its output to the log."""
    os.environ.clear()
    os.environ.update(environment)
    with log.open("ab") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    importlib.import_module(f"{module}.__main__").main()
