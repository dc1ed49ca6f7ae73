"""Consecutive blocks as a node returned them."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from trace_etl.spark.evm import shapes
from trace_etl.spark.evm.columns import list_lengths, parse_integers

_Array = Any  # pyarrow ships no types


@dataclass(frozen=True)
class BlockChunk:
    """Consecutive blocks, with what was read of them; receipts match the transactions."""

    blocks: _Array
    transactions: _Array = None
    receipts: _Array = None
    receipt_counts: Any = None
    """Number of receipts per block."""
    fetched_logs: _Array = None
    """The logs of eth_getLogs, if they were read without receipts."""
    traces: _Array = None
    uncles: _Array = None
    endpoint: str = ""
    """The endpoints that returned the blocks, for messages."""

    @property
    def has_logs(self) -> bool:
        return self.receipts is not None or self.fetched_logs is not None

    @property
    def logs(self) -> _Array:
        if self.fetched_logs is not None:
            return self.fetched_logs
        if self.receipts is not None:
            return self.receipts.field("logs").flatten()
        return pa.array([], shapes.LOG)

    @property
    def transaction_counts(self) -> Any:
        """Number of transactions per block; the chunk has them or their receipts."""
        return self.receipt_counts

    @property
    def log_counts(self) -> Any:
        """Number of logs per receipt."""
        assert self.receipts is not None
        return list_lengths(self.receipts.field("logs"))

    @property
    def logs_per_block(self) -> Any:
        if self.receipts is None:
            numbers = np.asarray(parse_integers(self.logs.field("blockNumber")))
            first = int(self.blocks.field("number")[0].as_py(), 16)
            return np.bincount(numbers - first, minlength=len(self.blocks))
        starts = np.concatenate([[0], np.cumsum(self.log_counts)])
        edges = starts[np.concatenate([[0], np.cumsum(self.receipt_counts)])]
        return np.diff(edges)

    def find_block(self, transaction: int) -> int:
        """The position of the block that a transaction belongs to."""
        return int(np.searchsorted(np.cumsum(self.receipt_counts), transaction, side="right"))

    def select_transactions(self, keep: Any) -> "BlockChunk":
        """Keep some transactions with their receipts and logs."""
        assert self.receipts is not None
        owners = np.repeat(np.arange(len(self.receipt_counts)), self.receipt_counts)
        mask = pa.array(keep)
        return replace(
            self,
            transactions=None if self.transactions is None else self.transactions.filter(mask),
            receipts=self.receipts.filter(mask),
            receipt_counts=np.bincount(owners[keep], minlength=len(self.receipt_counts)),
        )
