"""Stable hashes of plain data."""

import hashlib
import json


def digest(value: object) -> str:
    """A stable hash of plain data."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
