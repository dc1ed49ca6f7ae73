"""The command line of the development chain, shared by `trace devchain` and the module."""

import asyncio
import errno
import os
import signal
import tempfile
from contextlib import AbstractAsyncContextManager
from math import isfinite
from pathlib import Path
from typing import Annotated

import structlog
import typer

from trace_etl import logs
from trace_etl.devtools.devchain.chain.devchain import (
    DEFAULT_CHAIN_ID,
    MAX_LENGTH,
    MAX_SEED,
    MAX_TXS_PER_BLOCK,
    DevChain,
    ReorgAt,
)
from trace_etl.devtools.devchain.rpc.server import new_event_loop, serve

HOST = "127.0.0.1"
DEFAULT_PORT = 8545
_CANNOT_LISTEN = {errno.EADDRINUSE: "is in use", errno.EACCES: "needs more privileges"}

log = structlog.get_logger()


_Length = Annotated[
    int,
    typer.Option(min=1, max=MAX_LENGTH, help="Number of blocks, including the genesis block."),
]
_Seed = Annotated[
    int,
    typer.Option(
        min=0, max=MAX_SEED, help="Seed of the chain; the same seed gives the same blocks."
    ),
]
_Port = Annotated[
    int, typer.Option(min=0, max=65_535, help="Port on 127.0.0.1; 0 selects a free port.")
]
_TxsPerBlock = Annotated[
    int,
    typer.Option(min=0, max=MAX_TXS_PER_BLOCK, help="Mean number of transactions per block."),
]
_BlockTime = Annotated[
    float,
    typer.Option(min=0, help="Seconds between blocks; 0 serves all blocks from the start."),
]
_Initial = Annotated[
    int | None, typer.Option(min=1, help="Blocks at the start of a growing chain. Default: 1.")
]
_ReorgAt = Annotated[
    str | None,
    typer.Option(
        metavar="BLOCK[:DEPTH]",
        help="Replace the last DEPTH blocks (default 3) when the head reaches BLOCK.",
    ),
]
_ChainId = Annotated[int, typer.Option(min=1, max=MAX_SEED)]
_ReadyFile = Annotated[
    Path | None, typer.Option(help="Write the URL into this file once the server answers.")
]


def devchain(
    *,
    length: _Length = 10_000,
    seed: _Seed = 7,
    port: _Port = DEFAULT_PORT,
    txs_per_block: _TxsPerBlock = 4,
    block_time: _BlockTime = 0.0,
    initial: _Initial = None,
    reorg_at: _ReorgAt = None,
    chain_id: _ChainId = DEFAULT_CHAIN_ID,
    ready_file: _ReadyFile = None,
) -> None:
    """Serve a deterministic Ethereum-like chain over JSON-RPC until interrupted."""
    _check_growth(block_time, initial)
    if ready_file is not None and not ready_file.parent.is_dir():
        raise typer.BadParameter(
            f"{ready_file.parent} is not a directory", param_hint="--ready-file"
        )
    plan = parse_reorg(reorg_at)
    try:
        chain = DevChain(
            seed,
            length,
            initial=initial or (1 if block_time else None),
            txs_per_block=txs_per_block,
            reorg_at=plan,
            chain_id=chain_id,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    logs.configure("devchain")
    if plan is not None and chain.head >= plan.block:
        hint = "set --block-time to let the chain grow to this block"
        log.warning("devchain_reorg_already_done", block=plan.block, depth=plan.depth, hint=hint)
    _serve_chain(chain, port, block_time, ready_file)


def _check_growth(block_time: float, initial: int | None) -> None:
    if not isfinite(block_time):
        raise typer.BadParameter(
            f"{block_time} is not a duration; give seconds, 0 or more", param_hint="--block-time"
        )
    if initial is not None and block_time == 0:
        raise typer.BadParameter(
            "needs --block-time: without it all blocks exist from the start", param_hint="--initial"
        )


def parse_reorg(text: str | None) -> ReorgAt | None:
    """Read BLOCK[:DEPTH]. Raises BadParameter."""
    if text is None:
        return None
    numbers = text.split(":")
    if len(numbers) > 2 or not all(part.isascii() and part.isdigit() for part in numbers):
        raise typer.BadParameter(
            f"must be BLOCK or BLOCK:DEPTH, not {text!r}", param_hint="--reorg-at"
        )
    return ReorgAt(*map(int, numbers))


def _serve_chain(chain: DevChain, port: int, block_time: float, ready_file: Path | None) -> None:
    try:
        serve_until_signal(serve(chain, HOST, port, block_time=block_time), ready_file)
    except OSError as error:
        if error.errno not in _CANNOT_LISTEN:
            raise
        cause = _CANNOT_LISTEN[error.errno]
        typer.echo(f"Port {port} on {HOST} {cause}: choose another --port, or 0.", err=True)
        raise typer.Exit(1) from error


def serve_until_signal(serving: AbstractAsyncContextManager[str], ready_file: Path | None) -> None:
    """Serve, print the URL, and stop at SIGTERM or SIGINT."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve_until_signal(serving, ready_file))


async def _serve_until_signal(
    serving: AbstractAsyncContextManager[str], ready_file: Path | None
) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serving as url:
        if ready_file is not None:
            _write_atomically(ready_file, url + "\n")
        typer.echo(url)
        log.info("devchain_ready", url=url)
        await stop.wait()
    log.info("devchain_stopped")


def _write_atomically(path: Path, text: str) -> None:
    """Write a file so that readers never see a part of it."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    Path(name).replace(path)
