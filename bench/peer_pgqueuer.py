"""Run jobs with pgqueuer and its driver: `python -m bench.peer_pgqueuer DSN WORKERS JOBS`."""

import asyncio
import sys
import time

import asyncpg
import uvloop
from pgqueuer.db import AsyncpgDriver
from pgqueuer.qm import QueueManager
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode
from psycopg.conninfo import conninfo_to_dict


async def _connect(dsn: str) -> asyncpg.Connection:
    parameters = conninfo_to_dict(dsn)
    return await asyncpg.connect(
        host=parameters["host"],
        port=int(parameters["port"]),
        user=parameters["user"],
        database=parameters["dbname"],
        passfile=parameters["passfile"],
    )


async def main(dsn: str, workers: int, jobs: int) -> float:
    """Return jobs per second from the first dequeue to the end of the last job."""
    connection = await _connect(dsn)
    queries = Queries(AsyncpgDriver(connection))
    if not await queries.has_table("pgqueuer"):
        await queries.install()
    await queries.enqueue(["work"] * jobs, [None] * jobs, [0] * jobs)
    managers = [QueueManager(Queries(AsyncpgDriver(await _connect(dsn)))) for _ in range(workers)]
    for manager in managers:

        @manager.entrypoint("work")
        async def work(job: object) -> None:
            pass

    began = time.perf_counter()
    await asyncio.gather(*(m.run(mode=QueueExecutionMode.drain, batch_size=10) for m in managers))
    return jobs / (time.perf_counter() - began)


if __name__ == "__main__":
    print(uvloop.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
