"""A chain of any length from one block: `python -m bench.endless --ready-file FILE`.

Only number, hash and parent differ from block to block, so that gigabytes cost the server nothing.
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
from trace_etl.devtools.devchain.rpc.jsonrpc import JsonRpc
from trace_etl.devtools.devchain.rpc.methods import NodeMethods
from trace_etl.devtools.devchain.rpc.server import listen

TXS_PER_BLOCK = 100
HEAD = 10_000_000
_NUMBER, _HASH, _PARENT = b"@number@", b"@hash@", b"@parent@"
_MARKS = {"blockNumber": _NUMBER, "blockHash": _HASH}


@dataclass(frozen=True)
class _Block:
    """One block; both of its answers are the first block's with other names in them."""

    number: int
    body: bytes
    its_receipts: bytes

    def full(self) -> bytes:
        return self._named(self.body)

    def all_receipts(self) -> bytes:
        return self._named(self.its_receipts)

    def _named(self, text: bytes) -> bytes:
        text = text.replace(_NUMBER, hex(self.number).encode())
        text = text.replace(_PARENT, _hash(self.number - 1))
        return text.replace(_HASH, _hash(self.number))


class Endless:
    """What the node methods ask of a chain."""

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
        self._body = orjson.dumps(_marked(block))
        self._receipts = orjson.dumps(_marked(receipts))

    def block(self, number: int) -> Any:
        return _Block(number, self._body, self._receipts) if number <= self.head else None

    def block_by_hash(self, block_hash: str) -> Any:
        return None

    def find_transaction(self, transaction_hash: str) -> Any:
        return None


def _marked(value: Any) -> Any:
    if isinstance(value, list):
        return [_marked(item) for item in value]
    if isinstance(value, dict):
        return {
            key: _MARKS[key].decode() if key in _MARKS else _marked(item)
            for key, item in value.items()
        }
    return value


def _hash(number: int) -> bytes:
    return b"0x" + sha256(b"%d" % number).hexdigest().encode()


def bytes_per_block() -> int:
    """Of both answers."""
    block = Endless().block(1)
    return len(block.full()) + len(block.all_receipts())


def main(ready_file: Annotated[Path, typer.Option()]) -> None:
    async def never(number: int) -> None:
        raise AssertionError(f"a block of it is always there: {number}")

    logs.configure("endless")
    rpc = JsonRpc(NodeMethods(Endless()).table(), never)
    serve_until_signal(listen(rpc.answer, HOST, 0), ready_file)


if __name__ == "__main__":
    typer.run(main)
