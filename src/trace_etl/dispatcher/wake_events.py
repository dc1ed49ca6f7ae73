"""Telling a loop of this process that there is work, without asking Postgres."""

import asyncio
from dataclasses import dataclass, field


@dataclass(frozen=True)
class WakeEvents:
    outbox: asyncio.Event = field(default_factory=asyncio.Event)
    retries: asyncio.Event = field(default_factory=asyncio.Event)
    leases: asyncio.Event = field(default_factory=asyncio.Event)
    pressure: asyncio.Event = field(default_factory=asyncio.Event)
    backfills: asyncio.Event = field(default_factory=asyncio.Event)
    generations: asyncio.Event = field(default_factory=asyncio.Event)
