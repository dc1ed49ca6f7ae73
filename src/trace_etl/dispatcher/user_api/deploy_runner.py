"""Plan and deploy DAG files without delaying other requests."""

import asyncio
import pickle
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Mapping
from typing import cast
from uuid import UUID

from trace_etl.api.user.dags.dags import DeployRequest, PlanRequest
from trace_etl.dag.parsing import parse_dag
from trace_etl.dag.runtimes import Runtimes
from trace_etl.dispatcher.user_api import deploys
from trace_etl.dispatcher.user_api.deploy_process import Call, DeployLimits
from trace_etl.dispatcher.user_api.webhook_signatures import WebhookSecrets
from trace_etl.http.fair_slots import FairSlots, SlotNames
from trace_etl.model.dag import Dag
from trace_etl.model.errors import TraceError, Unavailable
from trace_etl.state.catalog import dags
from trace_etl.state.db.pool import Pool

_SMALL_TEXT = 16 * 1024
_FEW_JOBS = 300
_SLOTS = 2
_SLOTS_PER_USER = 1
_MAX_WAITING_PER_USER = 4
_WAIT_SECONDS = 60.0
_MAX_SECONDS = 300.0
_LIMITS = DeployLimits()


class DeployRunner:
    """Runs small plans and deploys in the Dispatcher, and large ones in processes.

    The work for a file of 1 MiB takes seconds, and a thread would hold the interpreter's lock for
    that time. A process has limits of processor time and memory, and can be stopped.
    """

    def __init__(
        self,
        pool: Pool,
        state_dsn: str,
        secrets: WebhookSecrets,
        runtimes: Runtimes,
        environment: Mapping[str, str],
    ) -> None:
        self._pool, self._state_dsn, self._secrets = pool, state_dsn, secrets
        self._runtimes, self._environment = runtimes, environment
        names = SlotNames("plans and deploys of large DAGs")
        self._slots = FairSlots(_SLOTS, _SLOTS_PER_USER, _MAX_WAITING_PER_USER, names)

    async def run(self, org_id: UUID, user: str, body: PlanRequest | DeployRequest) -> bytes:
        """Deploy or plan a DAG file. Returns the reply as JSON.

        Raises Invalid with all faults and their positions, NameTaken, DeployConflict,
        TooManyRequests and Unavailable.
        """
        if len(body.text) <= _SMALL_TEXT:
            dag = await asyncio.to_thread(parse_dag, body.text, self._runtimes)
            if not await self._is_large(org_id, dag):
                return await deploys.answer(self._pool, self._secrets, org_id, dag, body)
        async with self._slots.take(f"{org_id}/{user}", _WAIT_SECONDS):
            call = Call(self._state_dsn, self._secrets, self._runtimes, org_id, body, _LIMITS)
            return await _run_process(call, self._environment)

    async def _is_large(self, org_id: UUID, dag: Dag) -> bool:
        """Return whether the deployed version has many jobs. Then a plan over it is large, too."""
        async with self._pool.connection() as conn:
            return await dags.has_more_jobs(conn, org_id, dag.name, than=_FEW_JOBS)


async def _run_process(call: Call, environment: Mapping[str, str]) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "trace_etl.dispatcher.user_api.deploy_process"),
        env=environment,
        stdin=PIPE,
        stdout=PIPE,
    )
    try:
        async with asyncio.timeout(_MAX_SECONDS):
            output, _ = await process.communicate(pickle.dumps(call))
    except TimeoutError as error:
        raise Unavailable(
            f"the plan or deploy did not end within {_MAX_SECONDS:g} s; try again"
        ) from error
    finally:
        if process.returncode is None:  # too slow, or the client has disconnected
            process.kill()
            await process.wait()
    if process.returncode == -signal.SIGXCPU:
        raise call.limits.refusal()
    if process.returncode:
        raise RuntimeError(f"the deploy process ended with code {process.returncode}; see the log")
    result = cast("bytes | TraceError", pickle.loads(output))  # noqa: S301 - our own process
    if isinstance(result, TraceError):
        raise result
    return result
