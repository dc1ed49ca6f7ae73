# The package ships no types; what crosses into it is Any, by name rather than by silence.
from typing import Any

def __getattr__(name: str) -> Any: ...
