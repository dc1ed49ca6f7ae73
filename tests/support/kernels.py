"""Turn off the native package."""

from collections.abc import Generator
from contextlib import contextmanager

from trace_etl.proof import native


@contextmanager
def without_kernels() -> Generator[None]:
    installed, native.kernels = native.kernels, None
    try:
        yield
    finally:
        native.kernels = installed
