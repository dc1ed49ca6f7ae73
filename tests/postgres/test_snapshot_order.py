"""Snapshots are ordered by the time they were taken, whatever transactions run concurrently."""

import random
from itertools import pairwise

import psycopg
import pytest

from trace_etl.lite.postgres.databases import Dsns


def later(conn: psycopg.Connection, one: str, other: str) -> bool:
    query = "SELECT read_later(%s::pg_snapshot, %s::pg_snapshot)"
    (row,) = conn.execute(query, (one, other)).fetchall()
    return row[0]


@pytest.mark.parametrize("seed", range(3))
def test_snapshots_are_ordered_by_the_time_they_were_taken(dsns: Dsns, seed: int) -> None:
    rng = random.Random(seed)
    observer = psycopg.connect(dsns.state, autocommit=True)
    others = [psycopg.connect(dsns.state) for _ in range(5)]
    taken: list[str] = []
    try:
        for _ in range(60):
            conn = rng.choice(others)
            if conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
                conn.execute("SELECT pg_current_xact_id()")
            else:
                rng.choice([conn.commit, conn.rollback])()
            (row,) = observer.execute("SELECT pg_current_snapshot()::text").fetchall()
            taken.append(row[0])
        for earlier, after in pairwise(taken):
            assert not later(observer, earlier, after)
            assert later(observer, after, earlier) == (earlier != after)
        assert later(observer, taken[-1], taken[0])
    finally:
        for conn in (observer, *others):
            conn.close()


def test_an_unknown_snapshot_is_older_than_any_other(dsns: Dsns) -> None:
    with psycopg.connect(dsns.state) as conn:
        query = """
            SELECT read_later(pg_current_snapshot(), NULL), read_later(NULL, pg_current_snapshot()),
                   read_later(NULL, NULL)
        """
        assert conn.execute(query).fetchall() == [(True, False, False)]
