"""Client for the calls of the Dispatcher's API that the scheduler makes."""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from trace_etl.api.user.jobs import JobItem, JobList
from trace_etl.api.user.tasks import TaskList
from trace_etl.api.user.triggers import TriggerReply
from trace_etl.model.errors import Conflict, Forbidden, Unauthenticated, Unavailable
from trace_etl.scheduler.ticks import Schedule

_TIMEOUT = 10.0
_NEWEST_TASKS = 100


@dataclass(frozen=True)
class CronJob:
    """A source job and its current schedule."""

    dag: str
    job: str
    schedule: Schedule


class DispatcherApi:
    """Client of the Dispatcher. Raises Unavailable if a retry may help, Conflict if it cannot."""

    def __init__(self, url: str, ca: Path, token_file: Path) -> None:
        self._token_file = token_file
        self._http = httpx.AsyncClient(
            base_url=url,
            verify=ssl.create_default_context(cafile=str(ca)),
            timeout=_TIMEOUT,
            trust_env=False,
        )

    async def __aenter__(self) -> "DispatcherApi":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._http.aclose()

    async def cron_jobs(self) -> list[CronJob]:
        """List the deployed cron sources. Paused ones are included: the Dispatcher keeps their ticks."""
        jobs: list[JobItem] = []
        params: dict[str, str | int] = {"source_kind": "cron", "limit": 1000}
        while True:
            page = JobList.model_validate_json(await self._send("GET", "/v1/jobs", params=params))
            jobs += page.items
            if page.next is None:
                break
            params["after"] = page.next
        return [CronJob(j.dag, j.job, _read_schedule(j)) for j in jobs if j.schedule]

    async def last_tick(self, job: CronJob, now: datetime) -> datetime | None:
        """Return the newest tick up to `now` that triggered the job, among its newest tasks.

        A range of one number is a tick of an earlier release.
        """
        params = {"dag": job.dag, "job": job.job, "limit": _NEWEST_TASKS}
        answer = await self._send("GET", "/v1/tasks", params=params)
        ticks = [
            _read_tick(task.partition_key) for task in TaskList.model_validate_json(answer).items
        ]
        return max((tick for tick in ticks if tick is not None and tick <= now), default=None)

    async def trigger(self, job: CronJob, tick: datetime) -> bool:
        """Trigger a tick, identified by its time. Returns False if another scheduler has triggered it."""
        body = {"dag": job.dag, "job": job.job, "scheduled_time": tick.isoformat()}
        answer = await self._send("POST", "/v1/triggers", json=body)
        return TriggerReply.model_validate_json(answer).created

    async def check(self, token: str) -> None:
        """Raise Unauthenticated or Forbidden unless the Dispatcher accepts the token."""
        headers = {"authorization": f"Bearer {token}"}
        try:
            answer = await self._http.get("/v1/me", headers=headers)
        except httpx.HTTPError as error:
            raise Unavailable(f"the Dispatcher does not answer: {error!r}") from error
        if answer.status_code == 403:
            raise Forbidden("the user of this token is unknown or disabled")
        if answer.status_code == 401:
            raise Unauthenticated("the token is not valid")
        if answer.is_error:
            raise Unavailable(f"HTTP {answer.status_code}: {answer.text}")

    async def _send(self, method: str, path: str, **options: Any) -> bytes:
        # Read the file for each request: the token in it is renewed long before it expires.
        token = self._token_file.read_text().strip()
        headers = {"authorization": f"Bearer {token}"}
        try:
            answer = await self._http.request(method, path, headers=headers, **options)
        except httpx.HTTPError as error:
            raise Unavailable(f"the Dispatcher does not answer: {error!r}") from error
        if answer.status_code in (404, 409, 422):
            raise Conflict(answer.text)
        if answer.status_code in (401, 403):
            raise Unavailable(
                f"the Dispatcher rejects the token in {self._token_file}: {answer.text}"
            )
        if answer.is_error:
            raise Unavailable(f"HTTP {answer.status_code}: {answer.text}")
        return answer.content


_LAST_SECOND = 253_402_300_799  # the end of the year 9999


def _read_tick(partition_key: str | None) -> datetime | None:
    """Return the time of a tick; None for other partitions."""
    start, _, end = (partition_key or "").partition("-")
    if start == end and start.isdecimal() and int(start) <= _LAST_SECOND:
        return datetime.fromtimestamp(int(start), UTC)
    try:
        return datetime.strptime(partition_key or "", "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None


def _read_schedule(job: JobItem) -> Schedule:
    options = job.source_options or {}
    return Schedule(
        expression=job.schedule or "",
        timezone=options.get("timezone", "UTC"),
        missed=options.get("missed", "last"),
        max_missed=options.get("most_missed", 100),
    )
