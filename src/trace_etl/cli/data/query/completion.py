"""Complete keywords, dataset names and column names in SQL."""

import re
import time
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from trace_etl.client.schemas import read_schema
from trace_etl.client.stack_client import NotRunning, RequestRejected, StackClient

if TYPE_CHECKING:
    from trace_etl.api.user.data.datasets import DatasetColumn

_KEYWORDS = """
    ALL AND ANY AS ASC BETWEEN BY CASE CAST COUNT CROSS DESC DESCRIBE DISTINCT ELSE END EXCEPT
    EXISTS FALSE FROM FULL GROUP HAVING IN INNER INTERSECT IS JOIN LEFT LIKE LIMIT MAX MIN NOT NULL
    OFFSET ON OR ORDER OVER PARTITION QUALIFY RIGHT SELECT SUM SUMMARIZE THEN TRUE UNION USING
    VALUES WHEN WHERE WINDOW WITH
"""
KEYWORDS = _KEYWORDS.split()
COMMANDS = {
    "\\d": "list the datasets, or the columns of one: \\d NAME",
    "\\?": "show this help",
    "\\q": "quit",
}
_MAX_AGE = 10.0  # seconds: completion asks at every key
_WORD = re.compile(r"[A-Za-z_]\w*|\\\w*")
_SOURCE = re.compile(r"\b(?:FROM|JOIN)\s+(\w+)(?:\s+(?:AS\s+)?(\w+))?", re.IGNORECASE)
_NAMES_A_DATASET = re.compile(
    r"(?:\b(?:FROM|JOIN|DESCRIBE|SUMMARIZE)\s+|\\d\s+)\w*$", re.IGNORECASE
)
_QUALIFIED = re.compile(r"(\w+)\.\w*$")


class Schemas:
    """The datasets and columns of a stack, fetched when they are first needed."""

    def __init__(self, client: StackClient) -> None:
        self._client = client
        self._names: list[str] = []
        self._fetched_at = -_MAX_AGE
        self.columns = cache(self._fetch_columns)

    def datasets(self) -> list[str]:
        """List the names of the published datasets, as of a few seconds ago."""
        if time.monotonic() - self._fetched_at >= _MAX_AGE:
            items = self._client.get_all("/v1/datasets", published=True)["items"]
            self._names = [str(item["name"]) for item in items]
            self._fetched_at = time.monotonic()
        return self._names

    def _fetch_columns(self, name: str) -> "tuple[DatasetColumn, ...]":
        return tuple(read_schema(self._client, name))


class SqlCompleter(Completer):
    """Completes the word at the cursor."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        word = document.get_word_before_cursor(pattern=_WORD)
        try:
            found = list(self._list_candidates(document))
        except (RequestRejected, NotRunning):
            return  # a prompt without completion is better than none
        for text, meta in found:
            if text.lower().startswith(word.lower()):
                yield Completion(text, -len(word), display_meta=meta)

    def _list_candidates(self, document: Document) -> Iterator[tuple[str, str]]:
        before = document.text_before_cursor
        if before.startswith("\\") and " " not in before:
            yield from COMMANDS.items()
            return
        if _NAMES_A_DATASET.search(before):
            yield from ((name, "dataset") for name in self._schemas.datasets())
            return
        sources = find_sources(document.text)
        if qualified := _QUALIFIED.search(before):
            name = sources.get(qualified[1].lower())
            yield from self._list_columns([name] if name else [])
            return
        yield from self._list_columns(sorted(set(sources.values())))
        yield from ((keyword, "") for keyword in KEYWORDS)

    def _list_columns(self, names: Iterable[str]) -> Iterator[tuple[str, str]]:
        published = set(self._schemas.datasets())
        for name in names:
            if name in published:
                for column in self._schemas.columns(name):
                    yield column.name, f"{name} · {column.type}"


def find_sources(sql: str) -> dict[str, str]:
    """Return the datasets that a text names after FROM and JOIN, by name and by alias."""
    found: dict[str, str] = {}
    for name, alias in _SOURCE.findall(sql):
        found[name.lower()] = name
        if alias and alias.upper() not in KEYWORDS:
            found[alias.lower()] = name
    return found
