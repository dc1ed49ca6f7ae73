"""Headers of mainnet: their published hashes prove that they are right."""

import pyarrow as pa
import pytest

from trace_etl.spark.evm import shapes
from trace_etl.spark.verify.headers import hash_headers

pytestmark = pytest.mark.usefixtures("each_implementation")

_EMPTY = "0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421"
_NO_UNCLES = "0x1dcc4de8dec75d7aab85b567b6ccd41ad312451b948a7413f0a142fd40d49347"
_COMMON = {
    "sha3Uncles": _NO_UNCLES,
    "transactionsRoot": _EMPTY,
    "receiptsRoot": _EMPTY,
    "logsBloom": "0x" + "00" * 256,
    "gasLimit": "0x1388",
    "gasUsed": "0x0",
}
GENESIS = _COMMON | {
    "hash": "0xd4e56740f876aef8c010b86a40d5f56745a118d0906a34e69aec8c0db1cb8fa3",
    "parentHash": "0x" + "00" * 32,
    "miner": "0x" + "00" * 20,
    "stateRoot": "0xd7f8974fb5ac78d9ac099b9ad5018bedc2ce0a72dad1827a1709da30580f0544",
    "difficulty": "0x400000000",
    "number": "0x0",
    "timestamp": "0x0",
    "extraData": "0x11bbe8db4e347b4e8c937c1c8370e4b5ed33adb3db69cbdb7a38e1e50b1b82fa",
    "mixHash": "0x" + "00" * 32,
    "nonce": "0x0000000000000042",
}
FIRST = _COMMON | {
    "hash": "0x88e96d4537bea4d9c05d12549907b32561d3bf31f45aae734cdc119f13406cb6",
    "parentHash": GENESIS["hash"],
    "miner": "0x05a56e2d52c817161883f50c441c3228cfe54d9f",
    "stateRoot": "0xd67e4d450343046425ae4271474353857ab860dbc0a1dde64b41b5cd3a532bf3",
    "difficulty": hex(17171480576),
    "number": "0x1",
    "timestamp": hex(1438269988),
    "extraData": "0x476574682f76312e302e302f6c696e75782f676f312e342e32",
    "mixHash": "0x969b900de27b6ac6a67742365dd65f55a0526c41fd18e1b16f1a1215c2e66f59",
    "nonce": "0x539bd4979fef1ec4",
}


def test_headers_of_mainnet_have_their_published_hashes() -> None:
    blocks = pa.array([GENESIS, FIRST], shapes.HEADER)
    assert [f"0x{value.hex()}" for value in hash_headers(blocks)] == [
        GENESIS["hash"],
        FIRST["hash"],
    ]
