"""Serve a chain of any length, made from one block: `python -m bench.endless --ready-file FILE`.

Only number, hash and parent hash differ between blocks, so the server needs no time to make them.
"""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from trace_etl import logs
from trace_etl.devtools.devchain import DevChain
from trace_etl.devtools.devchain.command import HOST, serve_until_signal
from trace_etl.devtools.devchain.rpc.httpd import listen
from trace_etl.devtools.devchain.rpc.jsonrpc import JsonRpc
from trace_etl.devtools.devchain.rpc.methods import NodeMethods

TXS_PER_BLOCK = 100
HEAD = 10_000_000
_NUMBER, _HASH, _PARENT = b"@number@", b"@hash@", b"@parent@"
_PLACEHOLDERS = {"blockNumber": _NUMBER, "blockHash": _HASH}


@dataclass(frozen=True)
class _Block:
    """One block: the JSON of the template block with another number, hash and parent hash."""

    number: int
    body: bytes
    receipts: bytes

    def full(self) -> bytes:
        return self._fill_placeholders(self.body)

    def all_receipts(self) -> bytes:
        return self._fill_placeholders(self.receipts)

    def _fill_placeholders(self, text: bytes) -> bytes:
        text = text.replace(_NUMBER, hex(self.number).encode())
        text = text.replace(_PARENT, _hash(self.number - 1))
        return text.replace(_HASH, _hash(self.number))


class Endless:
    """A chain of copies of one block, with the interface that the node methods use."""

    chain_id = 1
    head = HEAD

    def __init__(self) -> None:
        chain = DevChain(length=2, txs_per_block=TXS_PER_BLOCK)
        chain.seal_to(1)
        first = chain.block(1)
        assert first is not None
        block, receipts = orjson.loads(first.full()), orjson.loads(first.all_receipts())
        named = {"number": _NUMBER, "hash": _HASH, "parentHash": _PARENT}
        block |= {key: mark.decode() for key, mark in named.items()}
        self._body = orjson.dumps(_insert_placeholders(block))
        self._receipts = orjson.dumps(_insert_placeholders(receipts))

    def block(self, number: int) -> Any:
        return _Block(number, self._body, self._receipts) if number <= self.head else None

    def block_by_hash(self, block_hash: str) -> Any:
        return None

    def find_transaction(self, transaction_hash: str) -> Any:
        return None


def _insert_placeholders(value: Any) -> Any:
    if isinstance(value, list):
        return [_insert_placeholders(item) for item in value]
    if isinstance(value, dict):
        return {
            key: _PLACEHOLDERS[key].decode() if key in _PLACEHOLDERS else _insert_placeholders(item)
            for key, item in value.items()
        }
    return value


def _hash(number: int) -> bytes:
    return b"0x" + sha256(b"%d" % number).hexdigest().encode()


def bytes_per_block() -> int:
    """Return the size of a block and its receipts as JSON."""
    block = Endless().block(1)
    return len(block.full()) + len(block.all_receipts())


def main(ready_file: Annotated[Path, typer.Option()]) -> None:
    async def never(number: int) -> None:
        raise AssertionError(f"block {number} must exist")

    logs.configure("endless")
    rpc = JsonRpc(NodeMethods(Endless()).table(), never)
    serve_until_signal(listen(rpc.answer, HOST, 0), ready_file)


if __name__ == "__main__":
    typer.run(main)
