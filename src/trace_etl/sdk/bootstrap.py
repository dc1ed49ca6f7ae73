"""Run a Python function inside the sandbox: import the handler, call it once, end.

Arguments: the handler as `module.function`, the directory of the bundle, the file with the event.
"""

import importlib
import json
import os
import sys
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).parents[2])
)  # `trace_etl.sdk`, after the bundle's own modules


def main(handler: str, bundle: str, event_file: str) -> None:
    """Call the handler with the event."""
    from trace_etl.sdk import FunctionContext, Task

    sys.path.insert(0, bundle)
    event = json.loads(Path(event_file).read_bytes())
    module, _, name = handler.rpartition(".")
    function = getattr(importlib.import_module(module), name)
    function(event, FunctionContext(Task(event)))


if __name__ == "__main__":
    os.chdir(os.environ["TMPDIR"])
    main(*sys.argv[1:])
