"""Check the addresses of created contracts: they follow from the sender and its nonce."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trace_etl.spark.evm.chunk import BlockChunk
from trace_etl.spark.verify.keccak import keccak_rows
from trace_etl.spark.verify.rlp_columns import encode_hashes, encode_quantities, encode_records
from trace_etl.spark.verify.transactions import read_types

_MAX_TYPE = 4  # other types belong to chains with rules of their own


def find_wrong_address(chunk: BlockChunk) -> tuple[int, str, str] | None:
    """Return the first wrong address as row, expected and received value."""
    given = chunk.receipts.field("contractAddress")
    is_ours = read_types(chunk.transactions) <= _MAX_TYPE
    creates = np.asarray(chunk.transactions.field("to").is_null())
    invented = np.flatnonzero(is_ours & ~creates & np.asarray(given.is_valid()))
    if len(invented):
        row = int(invented[0])
        return row, "null", given[row].as_py()
    rows = np.flatnonzero(is_ours & creates)
    if not len(rows):
        return None
    failed = np.asarray(pc.fill_null(pc.equal(chunk.receipts.field("status"), "0x0"), False))
    for row, address in zip(rows.tolist(), _compute_addresses(chunk, rows), strict=True):
        received = given[row].as_py()
        if received is None and failed[row]:
            continue  # some nodes report no address if the creation failed
        if received is None or received.lower() != address:
            return row, address, str(received)
    return None


def _compute_addresses(chunk: BlockChunk, rows: Any) -> list[str]:
    place = pa.array(rows)
    senders = chunk.transactions.field("from").take(place)
    nonces = chunk.transactions.field("nonce").take(place)
    encoded = encode_records([encode_hashes(senders, length=20), encode_quantities(nonces)])
    return [f"0x{digest[12:].hex()}" for digest in keccak_rows(encoded)]
