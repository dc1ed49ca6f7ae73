"""Values of backfills and backpressure."""

from typing import Literal

ChunkAction = Literal["build", "rebuild", "there", "no_input"]
"""`there`: the chunk is already built. `no_input`: no input partition has these blocks."""
QueueLimit = Literal["depth", "age"]
"""The limit that a queue has reached."""
