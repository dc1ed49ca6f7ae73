"""Accept the beginning of an id in place of the id."""

import re
from uuid import UUID

from trace_etl.cli.client import StackClient, fail

_PREFIX = re.compile("[0-9a-fA-F]{4}[0-9a-fA-F-]{0,32}")


def resolve_id(client: StackClient, kind: str, text: str) -> str:
    """Return the id that the text is, or begins. Exits with an error if it is none or several."""
    try:
        return str(UUID(text))
    except ValueError:
        pass
    if not _PREFIX.fullmatch(text):
        fail([f"{text!r} is not an id; give the id of a {kind}, or at least its first 4 digits"])
    found = client.get(f"/v1/ids/{kind}/{text}")["ids"]
    if len(found) > 1:
        fail([f"several ids begin with {text!r}; give more digits: {', '.join(found)}"])
    return found[0]
