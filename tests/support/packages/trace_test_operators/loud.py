"""Print and log in every way that an operator can: streams, loggers, threads, executors."""

import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

import structlog


def run(context: Any, config: Any) -> NoReturn:
    word = config.say

    def pass_rows(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            print(word, "in an executor")
            yield batch
        print(word, "leaves an executor", end="")

    def speak() -> None:
        for _ in range(200):
            print(word, "in a thread")

    thread = threading.Thread(target=speak)
    thread.start()
    for _ in range(200):
        print(word, "on stderr", file=sys.stderr)
    thread.join()
    sys.stdout.buffer.write(f"{word} in bytes\n".encode())
    logging.getLogger("loud").info("%s logged", word)
    structlog.stdlib.get_logger().info("event", said=word)
    context.spark.range(4).mapInPandas(pass_rows, "id long").collect()
    print("x" * config.flood, end="")
    print(word, "without an end", end="")
    raise RuntimeError(word)
