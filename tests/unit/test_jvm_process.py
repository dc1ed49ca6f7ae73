"""The end of Spark's JVM, as the process that started it sees it."""

import contextlib
import socket
import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from py4j.clientserver import (
    ClientServer,
    FinalizerWorker,
    JavaParameters,
    PythonParameters,
)

from support.waiting import eventually
from trace_etl.spark.session.jvm import JvmProcess


def finalizers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if isinstance(thread, FinalizerWorker)]


@contextmanager
def exiting_jvm() -> Generator[int]:
    """Listen like a JVM that exits: it resets a connection before it has read the command."""

    def reset_connection() -> None:
        with contextlib.suppress(OSError):  # no client connected
            connection, _ = listener.accept()
            with connection:
                connection.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=reset_connection)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_objects_that_end_after_the_jvm_log_no_errors(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = finalizers()
    with exiting_jvm() as port:
        gateway = ClientServer(
            java_parameters=JavaParameters(port=port),
            python_parameters=PythonParameters(eager_load=False),  # no server for calls of the JVM
        )
        [finalizer] = [thread for thread in finalizers() if thread not in before]
        process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
        JvmProcess(process, tmp_path, tmp_path / "log", gateway).stop()
        assert process.returncode == 0
        gateway._gateway_client.garbage_collect_object("o1", False)
    assert caplog.records == []
    eventually(lambda: not finalizer.is_alive(), "the thread of the gateway ends")
