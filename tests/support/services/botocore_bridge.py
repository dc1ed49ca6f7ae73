"""Calls botocore for the tests, which cannot import it: its dependencies contradict ours.

Runs in the environment of ministack. Reads one call per line of JSON and answers with one line.
"""

import base64
import json
import sys
from functools import cache
from typing import Any

import botocore.config
import botocore.exceptions
import botocore.session

SESSION = botocore.session.Session()


def encode(value: Any) -> Any:
    if hasattr(value, "read"):
        value = value.read()
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else str(value)


def decode(value: dict[str, Any]) -> Any:
    return base64.b64decode(value["base64"]) if set(value) == {"base64"} else value


@cache
def make_client(service: str, options: tuple[tuple[str, str], ...]) -> Any:
    """Create a client once: it takes longer than a call."""
    config = botocore.config.Config(
        s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}
    )
    return SESSION.create_client(service, config=config, **dict(options))


def answer(call: dict[str, Any]) -> dict[str, Any]:
    client = make_client(call["service"], tuple(call["client"].items()))
    try:
        if call["is_presigned"]:
            return {"result": client.generate_presigned_url(call["operation"], call["parameters"])}
        return {"result": getattr(client, call["operation"])(**call["parameters"])}
    except botocore.exceptions.ClientError as error:
        return {"error": error.response["Error"]["Code"], "message": str(error)}


for line in sys.stdin:
    print(json.dumps(answer(json.loads(line, object_hook=decode)), default=encode), flush=True)
