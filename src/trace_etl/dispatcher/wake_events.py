"""In-process signals that a loop has work."""

import asyncio
from dataclasses import dataclass, field


@dataclass(frozen=True)
class WakeEvents:
    """One event per loop. Setting it starts a pass now instead of at the next poll."""

    outbox: asyncio.Event = field(default_factory=asyncio.Event)
    retries: asyncio.Event = field(default_factory=asyncio.Event)
    leases: asyncio.Event = field(default_factory=asyncio.Event)
    pressure: asyncio.Event = field(default_factory=asyncio.Event)
    backfills: asyncio.Event = field(default_factory=asyncio.Event)
    generations: asyncio.Event = field(default_factory=asyncio.Event)
