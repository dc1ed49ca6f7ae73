"""The committed OpenAPI documents. Tests compare them with the code; building one takes a second."""

import json
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).parents[2] / "docs" / "reference"


def openapi(name: str) -> dict[str, Any]:
    """Return the OpenAPI document in `docs/reference/NAME.json`."""
    return json.loads((DIRECTORY / f"{name}.json").read_text())
