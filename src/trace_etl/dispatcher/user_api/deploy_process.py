"""`python -m trace_etl.dispatcher.user_api.deploy_process`: plan or deploy one large DAG.

Reads a pickled `Call` from stdin, and writes the pickled reply or error to stdout.
"""

import asyncio
import os
import pickle
import resource
import sys
from dataclasses import dataclass
from uuid import UUID

from trace_etl.api.user.dags.dags import DeployRequest, PlanRequest
from trace_etl.dag.parsing import parse_dag
from trace_etl.dag.runtimes import Runtimes
from trace_etl.dispatcher.user_api import deploys
from trace_etl.dispatcher.user_api.webhook_signatures import WebhookSecrets
from trace_etl.model.errors import Fault, Invalid, TraceError, Unavailable
from trace_etl.state.db.pool import CONNECTION_ERRORS, make_pool

_NICENESS = 5


@dataclass(frozen=True)
class DeployLimits:
    """What one process may use."""

    cpu_seconds: int = 60
    memory_bytes: int = 1536 * 1024**2

    def apply(self) -> None:
        """Limit this process. The kernel ends it with SIGXCPU after its processor time."""
        resource.setrlimit(resource.RLIMIT_CPU, (self.cpu_seconds, self.cpu_seconds + 5))
        resource.setrlimit(resource.RLIMIT_AS, (self.memory_bytes, self.memory_bytes))

    def refusal(self) -> Invalid:
        limit = f"{self.cpu_seconds} s or {self.memory_bytes >> 20} MiB"
        return Invalid([Fault("text", f"checking the file takes more than {limit}; split the DAG")])


@dataclass(frozen=True)
class Call:
    """A request to plan or deploy a DAG file."""

    state_dsn: str
    secrets: WebhookSecrets
    runtimes: Runtimes
    org_id: UUID
    body: PlanRequest | DeployRequest
    limits: DeployLimits


async def _answer(call: Call) -> bytes:
    dag = parse_dag(call.body.text, call.runtimes)
    async with make_pool(call.state_dsn, size=1, checked=False) as pool:
        return await deploys.answer(pool, call.secrets, call.org_id, dag, call.body)


def _answer_or_refuse(call: Call) -> bytes | TraceError:
    try:
        return asyncio.run(_answer(call))
    except TraceError as error:
        return error
    except CONNECTION_ERRORS:
        return Unavailable("Postgres state is unavailable; retry the request")
    except MemoryError:
        return call.limits.refusal()


def main() -> None:
    """Answer one call, with less priority than the Dispatcher."""
    os.nice(_NICENESS)
    call: Call = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by the Dispatcher
    call.limits.apply()
    pickle.dump(_answer_or_refuse(call), sys.stdout.buffer)


if __name__ == "__main__":
    main()
