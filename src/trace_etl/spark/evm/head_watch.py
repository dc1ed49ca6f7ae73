"""Compare the heads of a pool's endpoints: one that is frozen or wrong must not hold back the tip."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal

import structlog

from trace_etl.spark.evm.rpc.set_aside import SET_ASIDE

_log = structlog.stdlib.get_logger()
_SECONDS = 120.0  # every comparison renews it while the fault lasts
Reason = Literal["lagging", "unproven_head", "other_chain"]
OnSetAside = Callable[[Reason], None]
"""Called for each endpoint that is set aside, in the thread of the follower."""


def ignore_set_aside(reason: Reason) -> None:
    """Do nothing: the log already names the endpoint."""


@dataclass(frozen=True)
class HeadClaim:
    """The head that an endpoint reports, and how far its blocks verify."""

    url: str
    label: str
    head: int
    proven: int | None
    """The last block that continues the held ones; None if the next blocks do not verify."""
    error: str = ""
    """Why they do not verify."""
    is_trusted: bool = True
    """Whether the endpoint was not set aside when its head was read."""


def find_faults(
    claims: Sequence[HeadClaim], earlier: Sequence[HeadClaim]
) -> list[tuple[HeadClaim, Reason]]:
    """Return the endpoints with a fault in two comparisons in a row. Pure.

    An endpoint lags if it lacks a block now that another one had in the earlier comparison.
    """
    tip, earlier_tip = find_tip(claims), find_tip(earlier)
    if tip is None or earlier_tip is None:
        return []  # no endpoint is known to be better
    tip = min(tip, earlier_tip)
    was_unproven = {claim.url for claim in earlier if claim.proven is None}
    faults: list[tuple[HeadClaim, Reason]] = []
    for claim in claims:
        if claim.head < tip:
            faults.append((claim, "lagging"))
        elif claim.proven is None and claim.url in was_unproven:
            faults.append((claim, "unproven_head"))
    return faults


def find_tip(claims: Sequence[HeadClaim]) -> int | None:
    """Return the last block that a trusted endpoint proves."""
    proven = (claim.proven for claim in claims if claim.is_trusted)
    return max((number for number in proven if number is not None), default=None)


class HeadWatch:
    """Reads the claims of all endpoints in threads of its own: an endpoint that hangs delays nothing else."""

    def __init__(
        self, urls: Sequence[str], interval: float, on_set_aside: OnSetAside = ignore_set_aside
    ) -> None:
        self._urls = urls
        self._interval = interval
        self._on_set_aside = on_set_aside
        self._pool = ThreadPoolExecutor(len(urls), "evm-heads")
        self._pending: list[Future[HeadClaim | None]] = []
        self._earlier: list[HeadClaim] = []
        self._began = time.monotonic()

    def poll(self, read: Callable[[str], HeadClaim | None]) -> None:
        """Use the claims that arrived, and ask for new ones when they are due. Never waits."""
        if self._pending and all(future.done() for future in self._pending):
            claims = [claim for future in self._pending if (claim := future.result())]
            self._pending = []
            self._compare(claims)
        now = time.monotonic()
        if not self._pending and now - self._began >= self._interval:
            self._began = now
            self._pending = [self._pool.submit(read, url) for url in self._urls]

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _compare(self, claims: Sequence[HeadClaim]) -> None:
        claims = [replace(claim, is_trusted=not SET_ASIDE.includes(claim.url)) for claim in claims]
        for claim, reason in find_faults(claims, self._earlier):
            SET_ASIDE.add(claim.url, _SECONDS)
            if claim.is_trusted:
                _log.warning(
                    "endpoint_set_aside",
                    endpoint=claim.label,
                    reason=reason,
                    head=claim.head,
                    tip=find_tip(claims),
                    error=claim.error,
                )
                self._on_set_aside(reason)
        self._earlier = claims
