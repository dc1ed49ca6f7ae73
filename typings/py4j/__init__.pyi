# The package has no type hints; declare every name as Any.
from typing import Any

def __getattr__(name: str) -> Any: ...
