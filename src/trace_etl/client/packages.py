"""Import packages that only some results need."""

import importlib
from typing import Any


class MissingPackage(ImportError):
    """A package that is an extra of Trace is not installed."""


def import_package(name: str) -> Any:
    """Import an extra. Raises MissingPackage, which names the command that installs it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        command = f'pip install "trace-etl[{name}]"'
        raise MissingPackage(f"{name} is not installed; install the extra: {command}") from error
