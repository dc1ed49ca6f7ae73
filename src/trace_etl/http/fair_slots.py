"""Share slots for expensive work between callers."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from trace_etl.model.errors import TooManyRequests, Unavailable


@dataclass(frozen=True)
class SlotNames:
    """How error messages name the work, the callers and the settings."""

    work: str
    """In the plural: `queries`."""
    caller: str = "user"
    setting: str | None = None
    """The prefix of the settings. None: the limits are constants."""
    refusal: type[TooManyRequests] = TooManyRequests

    def cite(self, limit: str) -> str:
        """Return the setting of a limit in parentheses, for an error message."""
        return f" ({self.setting}_{limit})" if self.setting else ""


class FairSlots:
    """Grants slots to waiting callers in turn. One caller never has more than `per_caller` slots."""

    def __init__(self, slots: int, per_caller: int, max_waiting: int, names: SlotNames) -> None:
        self.slots, self.per_caller, self.max_waiting = slots, per_caller, max_waiting
        self._names = names
        self.free = slots
        self._running: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def take(self, caller: str, seconds: float) -> AsyncGenerator[None]:
        """Hold a slot. Waits at most `seconds`; raises TooManyRequests or Unavailable."""
        await self._acquire(caller, seconds)
        try:
            yield
        finally:
            self._release(caller)

    async def _acquire(self, caller: str, seconds: float) -> None:
        queue = self._waiting.setdefault(caller, deque())
        granted = asyncio.get_running_loop().create_future()
        queue.append(granted)
        self._grant()
        if not granted.done() and len(queue) > self.max_waiting:
            self._forget(caller, granted)
            names = self._names
            raise names.refusal(
                f"{self.max_waiting} of your {names.work} are already waiting"
                f"{names.cite(f'QUEUE_PER_{names.caller.upper()}')}; wait for their answers"
            )
        try:
            async with asyncio.timeout(seconds):
                await granted
        except TimeoutError as error:
            self._forget(caller, granted)
            raise self._explain_wait(caller, seconds) from error
        except asyncio.CancelledError:
            self._forget(caller, granted)
            raise

    def _explain_wait(self, caller: str, seconds: float) -> TooManyRequests | Unavailable:
        names = self._names
        if self._running[caller] >= self.per_caller:
            return names.refusal(
                f"{self.per_caller} of your {names.work} are running, as many as one {names.caller} may"
                f" have{names.cite(f'SLOTS_PER_{names.caller.upper()}')}, and none ended within"
                f" {seconds:g} s"
            )
        return Unavailable(
            f"all {self.slots} slots for {names.work}{names.cite('SLOTS')} were busy for"
            f" {seconds:g} s; try again"
        )

    def _forget(self, caller: str, granted: "asyncio.Future[None]") -> None:
        if granted.done() and not granted.cancelled():
            self._release(caller)  # granted at the moment of the timeout
            return
        granted.cancel()
        queue = self._waiting.get(caller)
        if queue and granted in queue:
            queue.remove(granted)
            if not queue:
                del self._waiting[caller]

    def _release(self, caller: str) -> None:
        self.free += 1
        self._running[caller] -= 1
        if not self._running[caller]:
            del self._running[caller]
        self._grant()

    def _grant(self) -> None:
        """Give the free slots to the callers that have waited longest since their last turn."""
        for caller in list(self._waiting):
            if not self.free:
                return
            self._grant_one(caller)

    def _grant_one(self, caller: str) -> None:
        if self._running[caller] >= self.per_caller:
            return
        queue = self._waiting.pop(caller)
        granted = queue.popleft()
        if queue:
            self._waiting[caller] = queue  # at the end: other callers come first
        if granted.done():  # its timeout has just canceled it
            self._grant()
            return
        self.free -= 1
        self._running[caller] += 1
        granted.set_result(None)
