"""Turn messages of DuckDB into faults of the SQL."""

import re

from trace_etl.model.errors import Fault

_MAX_MESSAGE = 2000
_LINE_EXCERPT = re.compile(r"\n\nLINE (\d{1,9}): (.*)\n( *)\^", re.DOTALL)
_SETTINGS_ADVICE = re.compile(r'\s+Use "SET .*', re.DOTALL)


def remove_advice(message: str) -> str:
    """Return a message without advice about settings, which are locked."""
    return _SETTINGS_ADVICE.sub("", message).strip()


def parse_sql_fault(message: str) -> Fault:
    """Turn a message of DuckDB into a fault, without its line excerpt and hints about settings."""
    excerpt = _LINE_EXCERPT.search(message)
    line = int(excerpt[1]) if excerpt else None
    column = None
    # DuckDB cuts off the start of a long line: the caret then does not give the column.
    if excerpt and not excerpt[2].startswith("..."):
        column = len(excerpt[3]) - len(f"LINE {line}: ") + 1
    text = remove_advice(message[: excerpt.start()] if excerpt else message)
    if len(text) > _MAX_MESSAGE:  # `error(…)` and casts put values of any size into messages
        text = f"{text[:_MAX_MESSAGE]}… ({len(text)} characters)"
    return Fault("sql", text, line, column)
