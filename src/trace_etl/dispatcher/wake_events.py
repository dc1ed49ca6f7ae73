"""In-process signals that a loop has work."""

import asyncio
from dataclasses import dataclass, field


@dataclass(frozen=True)
class WakeEvents:
    """One event per loop. Setting it starts a pass now instead of at the next poll."""

    outbox: asyncio.Event = field(default_factory=asyncio.Event)
    retries: asyncio.Event = field(default_factory=asyncio.Event)
    pressure: asyncio.Event = field(default_factory=asyncio.Event)
    backfills: asyncio.Event = field(default_factory=asyncio.Event)
    generations: asyncio.Event = field(default_factory=asyncio.Event)
    invocations: asyncio.Event = field(default_factory=asyncio.Event)
    invocations_wait: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while tasks of a Lambda runtime wait for a free slot: a completion then starts the next one."""

    def note_completion(self) -> None:
        """Start the next invocation, if one waits for the slot of the completed task."""
        if self.invocations_wait.is_set():
            self.invocations.set()
