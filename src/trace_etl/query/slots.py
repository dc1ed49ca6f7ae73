"""Share the slots of running queries between users, or between tasks."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from trace_etl.model.errors import Unavailable
from trace_etl.query.errors import TooManyQueries


class FairSlots:
    """Grants slots to waiting users in turn. One user never has more than `per_user` slots.

    With `is_for_tasks`, a user is a task.
    """

    def __init__(
        self, slots: int, per_user: int, max_waiting: int, *, is_for_tasks: bool = False
    ) -> None:
        self.slots, self.per_user, self.max_waiting = slots, per_user, max_waiting
        self._caller = "task" if is_for_tasks else "user"
        self._setting = "TRACE_TASK_QUERY" if is_for_tasks else "TRACE_QUERY"
        self.free = slots
        self._running: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def take(self, user: str, seconds: float) -> AsyncGenerator[None]:
        """Hold a slot. Waits at most `seconds`; raises TooManyQueries or Unavailable."""
        await self._acquire(user, seconds)
        try:
            yield
        finally:
            self._release(user)

    async def _acquire(self, user: str, seconds: float) -> None:
        queue = self._waiting.setdefault(user, deque())
        granted = asyncio.get_running_loop().create_future()
        queue.append(granted)
        self._grant()
        if not granted.done() and len(queue) > self.max_waiting:
            self._forget(user, granted)
            raise TooManyQueries(
                f"{self.max_waiting} of your queries are already waiting"
                f" ({self._setting}_QUEUE_PER_{self._caller.upper()}); wait for their answers"
            )
        try:
            async with asyncio.timeout(seconds):
                await granted
        except TimeoutError as error:
            self._forget(user, granted)
            raise self._explain_wait(user, seconds) from error
        except asyncio.CancelledError:
            self._forget(user, granted)
            raise

    def _explain_wait(self, user: str, seconds: float) -> TooManyQueries | Unavailable:
        if self._running[user] >= self.per_user:
            return TooManyQueries(
                f"you run {self.per_user} queries, as many as one {self._caller} may"
                f" ({self._setting}_SLOTS_PER_{self._caller.upper()}), and none ended within"
                f" {seconds:g} s"
            )
        return Unavailable(
            f"all {self.slots} query slots ({self._setting}_SLOTS) were busy for {seconds:g} s;"
            " try again"
        )

    def _forget(self, user: str, granted: "asyncio.Future[None]") -> None:
        if granted.done() and not granted.cancelled():
            self._release(user)  # granted at the moment of the timeout
            return
        granted.cancel()
        queue = self._waiting.get(user)
        if queue and granted in queue:
            queue.remove(granted)
            if not queue:
                del self._waiting[user]

    def _release(self, user: str) -> None:
        self.free += 1
        self._running[user] -= 1
        if not self._running[user]:
            del self._running[user]
        self._grant()

    def _grant(self) -> None:
        """Give the free slots to the users that have waited longest since their last turn."""
        for user in list(self._waiting):
            if not self.free:
                return
            self._grant_one(user)

    def _grant_one(self, user: str) -> None:
        if self._running[user] >= self.per_user:
            return
        queue = self._waiting.pop(user)
        granted = queue.popleft()
        if queue:
            self._waiting[user] = queue  # at the end: other users come first
        if granted.done():  # its timeout has just canceled it
            self._grant()
            return
        self.free -= 1
        self._running[user] += 1
        granted.set_result(None)
