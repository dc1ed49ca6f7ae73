"""Print, log and raise what the config says, with the secret in it."""

import os
from typing import Any, NoReturn

from prometheus_client import Counter

from trace_etl.api.task.events import ChainHead, Event

TALKS = Counter("trace_test_talks", "Tasks of this operator")


def run(context: Any, config: Any) -> NoReturn:
    TALKS.inc()
    text = f"{config.say} {context.secrets.get('key')}"
    os.write(2, f"raw {text}\n".encode())  # not by Python: it belongs to no attempt
    print(text)
    context.log(text + "\n")
    context.emit([Event(dataset="told", cursor=7)])
    context.link.report_head(ChainHead(head=9, head_time=1_700_000_000, position=7))
    raise RuntimeError(text)
