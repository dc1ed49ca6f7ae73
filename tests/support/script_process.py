"""A process that runs one script after another, so that scripts share what is slow to start."""

import json
import os
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path

_TESTS = str(Path(__file__).parents[1])


class ScriptProcess:
    def __init__(self, process: "subprocess.Popen[str]", prelude: str) -> None:
        self._process = process
        self._prelude = prelude

    def run(self, script: str, *arguments: object) -> str:
        """Run the prelude and a script with these arguments. Returns what they printed."""
        assert self._process.stdin and self._process.stdout
        text = self._prelude + textwrap.dedent(script)
        request = {"script": text, "arguments": [str(one) for one in arguments]}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        assert answer["error"] is None, answer["error"]
        return answer["printed"]


@contextmanager
def script_process(prelude: str) -> Generator[ScriptProcess]:
    with subprocess.Popen(
        [sys.executable, "-m", "support.script_process"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([_TESTS, *filter(None, sys.path)])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield ScriptProcess(process, prelude)
        finally:
            process.kill()


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints goes to standard error
    variables = {"__name__": "script"}  # a script can use those of the scripts before it
    for line in sys.stdin:
        request = json.loads(line)
        sys.argv[1:] = request["arguments"]
        printed, error = StringIO(), None
        try:
            with redirect_stdout(printed):
                exec(request["script"], variables)
        except BaseException:
            error = traceback.format_exc()
        print(json.dumps({"printed": printed.getvalue(), "error": error}), file=answers, flush=True)


if __name__ == "__main__":
    _serve()
