"""Transactions, logs and receipts, with their consensus encodings."""

from typing import NamedTuple

from trace_etl.devtools.devchain.chain import bloom, rlp


class Log(NamedTuple):
    """An event log."""

    address: bytes
    topics: tuple[bytes, ...]
    data: bytes

    def encode(self) -> bytes:
        """Encode the log as a part of its receipt. Addresses and topics have fixed lengths."""
        topics = rlp.encode_list([b"\xa0" + topic for topic in self.topics])
        return rlp.encode_list((b"\x94" + self.address, topics, rlp.encode_bytes(self.data)))

    def bloom(self) -> int:
        """Return the filter bits of the address and all topics."""
        return bloom.union(map(bloom.bits, (self.address, *self.topics)))


class Transaction(NamedTuple):
    """A transaction of type 0 (legacy) or 2 (dynamic fee).

    The signature has a valid form but no key, so the sender cannot be recovered from it.
    """

    chain_id: int
    type: int
    nonce: int
    sender: bytes
    to: bytes | None
    value: int
    input: bytes
    gas_limit: int
    max_fee: int
    priority_fee: int
    parity: int
    r: int
    s: int

    @property
    def v(self) -> int:
        """The recovery value of the signature; for a legacy transaction it includes the chain id."""
        return self.parity if self.type else self.chain_id * 2 + 35 + self.parity

    def gas_price(self, base_fee: int) -> int:
        """Return the price of a unit of gas in a block with this base fee."""
        return min(self.max_fee, base_fee + self.priority_fee) if self.type else self.max_fee

    def encode(self) -> bytes:
        """Encode the signed transaction; the hash of this is the transaction hash."""
        to = self.to or b""
        if self.type:
            dynamic = (self.chain_id, self.nonce, self.priority_fee, self.max_fee, self.gas_limit)
            call = (to, self.value, self.input, ())
            return b"\x02" + rlp.encode((*dynamic, *call, self.parity, self.r, self.s))
        call = (self.nonce, self.max_fee, self.gas_limit, to, self.value, self.input)
        return rlp.encode((*call, self.v, self.r, self.s))


class TransactionOutcome(NamedTuple):
    """The result of executing a transaction."""

    succeeded: bool
    gas_used: int
    logs: tuple[Log, ...]
    created: bytes | None

    def bloom(self) -> int:
        """Return the filter bits of all logs."""
        return bloom.union(log.bloom() for log in self.logs)


def encode_receipt(
    transaction: Transaction, outcome: TransactionOutcome, gas: int, bits: int
) -> bytes:
    """Encode a receipt for the receipts trie; `gas` is cumulative, `bits` the filter of the logs."""
    fields = [rlp.encode(field) for field in (int(outcome.succeeded), gas, bloom.to_bytes(bits))]
    logs = rlp.encode_list([log.encode() for log in outcome.logs])
    receipt = rlp.encode_list((*fields, logs))
    return b"\x02" + receipt if transaction.type else receipt
