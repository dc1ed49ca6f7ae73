"""Client for the calls of the Dispatcher's API that the scheduler makes."""

import ssl
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from trace_etl.api.user.dags.schedules import LastTick, ScheduleItem, ScheduleList
from trace_etl.api.user.triggers import TriggerReply
from trace_etl.model.errors import Conflict, Forbidden, Unauthenticated, Unavailable
from trace_etl.scheduler.ticks import Schedule

_TIMEOUT = 10.0


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
        items: list[ScheduleItem] = []
        params: dict[str, str | int] = {"limit": 1000}
        while True:
            answer = await self._send("GET", "/v1/schedules", params=params)
            page = ScheduleList.model_validate_json(answer)
            items += page.items
            if page.next is None:
                break
            params["after"] = page.next
        return [CronJob(i.dag, i.job, _read_schedule(i)) for i in items]

    async def last_tick(self, job: CronJob, now: datetime) -> datetime | None:
        """Return the newest tick up to `now` that triggered the job, among its newest tasks."""
        path = f"/v1/schedules/{job.dag}/{job.job}/last-tick"
        answer = await self._send("GET", path, params={"until": now.isoformat()})
        return LastTick.model_validate_json(answer).tick

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
            raise Forbidden("the user of this token is unknown or disabled; ask an admin")
        if answer.status_code == 401:
            raise Unauthenticated("the token is not valid; get a new one")
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


def _read_schedule(item: ScheduleItem) -> Schedule:
    return Schedule(
        expression=item.schedule,
        timezone=item.options.get("timezone", "UTC"),
        missed=item.options.get("missed", "last"),
        max_missed=item.options.get("most_missed", 100),
    )
