"""Structured logs: one JSON line per event on standard error."""

import logging
import sys
from collections.abc import Callable
from typing import Any

import structlog


def configure(process: str, level: str = "info", copy: Callable[[str], None] | None = None) -> None:
    """Send structlog and the standard library's warnings through one JSON renderer.

    `copy` gets each line of structlog, too.
    """
    threshold = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _add_process_name(process),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
            *([_pass_to(copy)] if copy else []),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    # uvicorn warns about each malformed request: a client without a token could fill the log.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)


def _pass_to(copy: Callable[[str], None]) -> structlog.types.Processor:
    def pass_on(_: object, __: str, line: Any) -> str:
        copy(line)
        return line

    return pass_on


def _add_process_name(process: str) -> structlog.types.Processor:
    # Not a context variable: new threads do not inherit those, and every line needs the name.
    def add(_: object, __: str, event: structlog.types.EventDict) -> structlog.types.EventDict:
        event["process"] = process
        return event

    return add
