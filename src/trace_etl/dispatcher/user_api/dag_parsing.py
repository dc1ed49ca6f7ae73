"""Parse DAG files without delaying other requests."""

import asyncio
import os
import pickle
import sys
from asyncio.subprocess import PIPE
from typing import cast

from trace_etl.dag import parse_process
from trace_etl.dag.parsing import parse_dag
from trace_etl.model.dag import Dag
from trace_etl.model.errors import Fault, Invalid

_SMALL = 16 * 1024


async def parse(text: str, slots: asyncio.Semaphore) -> Dag:
    """Parse the text of a DAG file. Raises Invalid with all faults and their positions.

    Parsing a file of 1 MiB takes seconds, and a thread would hold the interpreter's lock for that time.
    So a large file is parsed in a separate process, with limits of processor time and memory.
    """
    if len(text) <= _SMALL:
        return await asyncio.to_thread(parse_dag, text)
    async with slots:
        output = await _run_process(text.encode())
    if not output:
        limit = f"{parse_process.CPU_SECONDS} s or {parse_process.MEMORY_BYTES >> 20} MiB"
        raise Invalid([Fault("text", f"checking the file takes more than {limit}; split the DAG")])
    result = cast("Dag | list[Fault]", pickle.loads(output))  # noqa: S301 - written by our own process
    if isinstance(result, list):
        raise Invalid(result)
    return result


async def _run_process(text: bytes) -> bytes:
    paths = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "trace_etl.dag.parse_process"),
        env=paths,  # the Dispatcher's own environment contains credentials
        stdin=PIPE,
        stdout=PIPE,
    )
    try:
        output, _ = await process.communicate(text)
        return output if process.returncode == 0 else b""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
