"""In any order of commits, a reader of the change stream learns the final status of every task."""

from collections.abc import Generator
from contextlib import ExitStack
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.rows import dict_row

from support.lifecycle.lifecycle import Bench, bench
from support.services.dispatcher import Secrets, live
from support.services.postgres import Templates, copied
from trace_etl.dispatcher.user_api.routes.changes import _format_id, _parse_position
from trace_etl.state.feed import changes
from trace_etl.state.feed.changes import ChangePosition

LOCAL = UUID("00000000-0000-0000-0000-000000000001")
TASKS = 6
_CHANGE = """
UPDATE tasks SET status = CASE status WHEN 'Queued' THEN 'Canceled' ELSE 'Queued' END,
       finished_at = CASE status WHEN 'Queued' THEN now() END
 WHERE task_id = %s
"""
steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 3), st.integers(0, TASKS - 1)),
        st.tuples(st.just("end"), st.integers(0, 3), st.booleans()),
        st.tuples(st.just("read"), st.integers(1, 4), st.booleans()),
    ),
    max_size=40,
)


class Reader:
    """Reads the stream in small pages, like a client that reconnects at any time."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self.conn = conn
        self.position = ChangePosition(self.end().xid)
        self.known: dict[str, str] = {}

    def end(self) -> ChangePosition:
        (row,) = self.conn.execute(changes._HEAD).fetchall()
        return ChangePosition(int(next(iter(row.values()))) - 1)

    def read(self, limit: int, *, reconnect: bool = False) -> int:
        end = self.end()
        values = changes.parameters(
            LOCAL, self.position, end, dag=None, kinds=["task"], limit=limit
        )
        found = self.conn.execute(changes._READ, values).fetchall()
        for row in found:
            place = ChangePosition(row["xid"], row["source"], row["key"], row["subkey"])
            assert self.position < place  # no change is repeated, and positions only grow
            self.position = place
            self.known[row["body"]["task_id"]] = row["body"]["status"]
        if len(found) < limit:
            self.position = max(self.position, end)
        if reconnect:
            self.position = _parse_position(_format_id(self.position))
        return len(found)


@pytest.fixture(scope="module")
def place(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[tuple[Bench, list[str]]]:
    objects = tmp_path_factory.mktemp("objects")
    with copied(templates) as dsns, live(secrets, dsns, objects) as running, bench(running) as made:
        yield made, made.tasks(TASKS)


def test_no_order_of_commits_hides_a_change_from_a_reader(place: tuple[Bench, list[str]]) -> None:
    bench, tasks = place
    dsn = bench.live.dsns.state

    with ExitStack() as stack:
        conns = [stack.enter_context(psycopg.connect(dsn)) for _ in range(4)]
        observer = stack.enter_context(psycopg.connect(dsn, autocommit=True, row_factory=dict_row))

        @settings(max_examples=40)
        @given(steps)
        def run(plan: list[tuple[Any, ...]]) -> None:
            before = statuses(observer)
            reader = Reader(observer)
            held: dict[int, int] = {}  # task -> the open transaction that changed it
            for kind, first, second in plan:
                if kind == "write" and held.setdefault(second, first) == first:
                    conns[first].execute(_CHANGE, (tasks[second],))
                elif kind == "end":
                    conns[first].commit() if second else conns[first].rollback()
                    held = {task: owner for task, owner in held.items() if owner != first}
                elif kind == "read":
                    reader.read(first, reconnect=second)
            for conn in conns:
                conn.commit()
            while reader.read(3):
                pass
            assert {**before, **reader.known} == statuses(observer)

        run()


def statuses(conn: psycopg.Connection[Any]) -> dict[str, str]:
    rows = conn.execute("SELECT task_id, status FROM tasks").fetchall()
    return {str(row["task_id"]): row["status"] for row in rows}
