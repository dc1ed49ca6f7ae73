"""The end of the stack that all tests share: no test may use it after this one."""

import json

import psutil

from support.services.whole_stack import Stack
from support.waiting import eventually
from trace_etl.lite.processes import process_tree


def test_trace_down_stops_every_process(stack: Stack) -> None:
    supervisor = psutil.Process(
        json.loads((stack.home / "connection.json").read_text())["supervisor_pid"]
    )
    eventually(
        lambda: (
            "java" in {p.name() for p in process_tree.session_members(stack.service("worker").pid)}
        )
    )
    descendants = supervisor.children(recursive=True)
    assert stack.trace("down").returncode == 0
    assert [p for p in (supervisor, *descendants) if process_tree.is_running(p)] == []
    log = (stack.home / "logs" / "supervisor.log").read_text()
    assert '"stack_stopped"' in log
