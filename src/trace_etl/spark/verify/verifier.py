"""Verify chunks of blocks: everything a header commits to is recomputed from what the node returned."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trace_etl.dag.chain.rules import Check, VerifyRules
from trace_etl.spark.errors import ChainMismatch, Evidence, VerificationFailed, shorten
from trace_etl.spark.evm.chunk import BlockChunk
from trace_etl.spark.evm.columns import list_lengths, parse_binary, parse_integers, repeat_values
from trace_etl.spark.verify.blooms import compute_blooms, union_blooms
from trace_etl.spark.verify.contract_addresses import find_wrong_address
from trace_etl.spark.verify.gas_prices import find_wrong_price
from trace_etl.spark.verify.headers import encode_headers, encode_list, hash_headers
from trace_etl.spark.verify.keccak import keccak, keccak_rows
from trace_etl.spark.verify.receipts import encode_receipts
from trace_etl.spark.verify.rlp_columns import (
    encode_hashes,
    encode_quantities,
    encode_records,
    split,
)
from trace_etl.spark.verify.senders import recover_senders
from trace_etl.spark.verify.transactions import encode_transactions, read_types
from trace_etl.spark.verify.tries import compute_roots

_Array = Any  # pyarrow ships no types
_ZERO_ADDRESS = "0x" + "00" * 20
_NAMES_CHAIN = (1, 2, 3, 4)  # types whose signed content has the chain's id
_FIRST_PROTECTED = 35


class Verifier:
    """Checks chunks by the rules of one chain. Raises VerificationFailed with the evidence, or
    ValueError for an answer without a needed field.
    """

    def __init__(self, rules: VerifyRules) -> None:
        self._rules = rules
        self._checks = frozenset(rules.checks())

    def check(self, chunk: BlockChunk, chain_id: int | None = None) -> None:
        """Check the headers, then what they commit to, as far as the chunk has it.

        `chain_id` is what the node reported: signed transactions name the chain that they are for.
        """
        if self._has("header_hash"):
            _check_header_hashes(chunk.blocks)
        if self._has("uncles_hash") and chunk.uncles is not None:
            _check_uncles(chunk)
        if self._has("withdrawals_root") and _has_field(chunk.blocks, "withdrawals"):
            _check_withdrawals(chunk.blocks)
        if self._has("log_indices"):
            _check_log_indices(chunk)
        if self._rules.has_state_sync and chunk.receipts is not None:
            chunk = _drop_state_syncs(chunk)
        if chunk.transactions is not None:
            self._check_transactions(chunk)
            if chain_id is not None and self._has("transactions_root"):
                _check_chain_id(chunk, chain_id)
        if chunk.receipts is None:
            if self._has("logs_bloom") and chunk.has_logs:
                self._check_blooms_of_logs(chunk)
        else:
            self._check_receipts(chunk)

    def _has(self, check: Check) -> bool:
        return check in self._checks

    def _check_transactions(self, chunk: BlockChunk) -> None:
        if self._has("transactions_root"):
            encoded = encode_transactions(chunk.transactions)
            hashes = keccak_rows(encoded)
            _compare_rows(chunk, "transaction hash", hashes, chunk.transactions.field("hash"))
            roots = compute_roots(encoded, chunk.transaction_counts)
            _compare_blocks(chunk.blocks, "transactionsRoot", roots)
        else:
            _require_values(chunk.transactions, ("type", "gasPrice"))
        if self._has("gas_price"):
            _check_gas_prices(chunk)
        if self._has("contract_address") and chunk.receipts is not None:
            _check_contract_addresses(chunk)
        if self._has("senders"):
            senders = recover_senders(chunk.transactions)
            _compare_rows(chunk, "sender", senders, chunk.transactions.field("from"))

    def _check_receipts(self, chunk: BlockChunk) -> None:
        if self._has("gas_used"):
            _check_gas(chunk)
        if not (self._has("logs_bloom") or self._has("receipts_root")):
            return
        counts, log_counts = chunk.transaction_counts, chunk.log_counts
        if not self._has("receipts_root"):
            owners = np.repeat(np.repeat(np.arange(len(counts)), counts), log_counts)
            blooms = compute_blooms(chunk.logs, owners, len(counts))
            _compare_blocks(chunk.blocks, "logsBloom", [row.tobytes() for row in blooms])
            return
        owners = np.repeat(np.arange(len(log_counts)), log_counts)
        blooms = compute_blooms(chunk.logs, owners, len(log_counts))
        if self._has("logs_bloom"):
            of_blocks = union_blooms(blooms, counts)
            _compare_blocks(chunk.blocks, "logsBloom", [row.tobytes() for row in of_blocks])
        offsets = np.concatenate([[0], np.cumsum(log_counts)])
        encoded = encode_receipts(chunk.receipts, offsets, chunk.logs, blooms)
        _compare_blocks(chunk.blocks, "receiptsRoot", compute_roots(encoded, counts))

    def _check_blooms_of_logs(self, chunk: BlockChunk) -> None:
        """Check the logs of eth_getLogs, which come without receipts."""
        numbers = np.asarray(parse_integers(chunk.logs.field("blockNumber")))
        first = int(chunk.blocks.field("number")[0].as_py(), 16)
        blooms: Any = compute_blooms(chunk.logs, numbers - first, len(chunk.blocks))
        if self._rules.has_state_sync:
            # Logs of state syncs are not in the header's filter, and cannot be distinguished here.
            headers = _parse_blooms(chunk.blocks)
            covers: Any = np.all(headers & ~blooms == 0, axis=1)
            blooms = np.array(blooms)
            blooms[covers] = headers[covers]
        _compare_blocks(chunk.blocks, "logsBloom", [row.tobytes() for row in blooms])


def _require_values(transactions: _Array, names: tuple[str, ...]) -> None:
    """Refuse missing values that no root proves. Raises ValueError."""
    for name in names:
        values = transactions.field(name)
        if values.null_count:
            missing = np.flatnonzero(np.asarray(values.is_null()))
            at = transactions.field("hash")[int(missing[0])]
            raise ValueError(f"{name} of transaction {at}: a value is missing")


def _check_chain_id(chunk: BlockChunk, chain_id: int) -> None:
    """Check that transactions, whose hashes cover their chain, are of the reported chain."""
    types = read_types(chunk.transactions)
    for rows, name in (
        (np.flatnonzero(np.isin(types, _NAMES_CHAIN)), "chainId"),
        (np.flatnonzero(types == 0), "v"),
    ):
        values = chunk.transactions.field(name).take(pa.array(rows)).dictionary_encode()
        for code, text in enumerate(values.dictionary.to_pylist()):
            number = int(text, 16)
            if name == "v":  # since EIP-155, `v` contains the id of the chain
                number = (
                    (number - _FIRST_PROTECTED) // 2 if number >= _FIRST_PROTECTED else chain_id
                )
            if number != chain_id:
                row = int(rows[int(np.flatnonzero(np.asarray(values.indices) == code)[0])])
                # Another endpoint may have answered eth_chainId, so this one is not set aside.
                raise ChainMismatch(
                    f"transaction {chunk.transactions.field('hash')[row]} is for chain {number}, "
                    f"but eth_chainId answered {chain_id}"
                )


def _check_header_hashes(blocks: _Array) -> None:
    claimed = split(parse_binary(blocks.field("hash")))
    for index, computed in enumerate(hash_headers(blocks)):
        if computed != claimed[index]:
            raise _make_error(blocks, index, "hash", computed, claimed[index])


def _check_withdrawals(blocks: _Array) -> None:
    lists, roots = blocks.field("withdrawals"), blocks.field("withdrawalsRoot")
    rows = lists.flatten()
    counts: Any = np.diff(np.asarray(lists.offsets))
    fields = [
        encode_quantities(rows.field("index")),
        encode_quantities(rows.field("validatorIndex")),
        encode_hashes(rows.field("address"), length=20),
        encode_quantities(rows.field("amount")),
    ]
    computed = compute_roots(encode_records(fields), counts)
    for index, root in enumerate(computed):
        expected = roots[index].as_py()
        if expected is None and not counts[index]:
            continue  # before Shanghai
        if expected is None or bytes.fromhex(expected[2:]) != root:
            raise _make_error(blocks, index, "withdrawalsRoot", expected, root)


def _check_uncles(chunk: BlockChunk) -> None:
    """Check that the uncles are those of the header, and that their hashes are right."""
    _check_header_hashes(chunk.uncles)
    counts = list_lengths(chunk.blocks.field("uncles"))
    ends: Any = np.cumsum(counts)
    headers = encode_headers(chunk.uncles)
    lists = [encode_list(headers[a:b]) for a, b in zip(ends - counts, ends, strict=True)]
    _compare_blocks(chunk.blocks, "sha3Uncles", [keccak(encoded) for encoded in lists])


def _check_log_indices(chunk: BlockChunk) -> None:
    """Check that logs are numbered from 0 in each block, and belong to their receipts."""
    if not chunk.has_logs or not len(chunk.logs):
        return
    indices = np.asarray(parse_integers(chunk.logs.field("logIndex")))
    per_block = chunk.logs_per_block
    starts = np.cumsum(per_block) - per_block
    expected = np.arange(len(indices)) - np.repeat(starts, per_block)
    wrong = np.flatnonzero(indices != expected)
    if len(wrong):
        row = int(wrong[0])
        block = int(np.searchsorted(np.cumsum(per_block), row, side="right"))
        raise _make_error(
            chunk.blocks, block, "logIndex", hex(int(expected[row])), hex(int(indices[row]))
        )
    if chunk.receipts is not None:
        _check_log_owners(chunk)


def _check_log_owners(chunk: BlockChunk) -> None:
    for name in ("transactionHash", "transactionIndex"):
        expected = repeat_values(chunk.receipts.field(name), chunk.log_counts)
        actual = chunk.logs.field(name)
        if expected.equals(actual):
            continue
        differs = np.flatnonzero(np.asarray(pc.fill_null(pc.not_equal(expected, actual), True)))
        if len(differs):
            row = int(differs[0])
            block = int(np.searchsorted(np.cumsum(chunk.logs_per_block), row, side="right"))
            field = f"{name} of log {chunk.logs.field('logIndex')[row]}"
            raise _make_error(
                chunk.blocks, block, field, expected[row].as_py(), actual[row].as_py()
            )


def _check_gas(chunk: BlockChunk) -> None:
    """Check that the gas of receipts adds up to their cumulative gas and to the header's."""
    counts = chunk.transaction_counts
    used = np.asarray(parse_integers(chunk.receipts.field("gasUsed")))
    cumulative = np.asarray(parse_integers(chunk.receipts.field("cumulativeGasUsed")))
    totals = np.concatenate([[0], np.cumsum(used)])
    starts = np.cumsum(counts) - counts
    expected = totals[1:] - np.repeat(totals[starts], counts)
    wrong = np.flatnonzero(expected != cumulative)
    if len(wrong):
        row = int(wrong[0])
        block = int(np.searchsorted(np.cumsum(counts), row, side="right"))
        field = f"cumulativeGasUsed of transaction {chunk.receipts.field('transactionHash')[row]}"
        raise _make_error(
            chunk.blocks, block, field, hex(int(expected[row])), hex(int(cumulative[row]))
        )
    header = np.asarray(parse_integers(chunk.blocks.field("gasUsed")))
    sums = totals[starts + counts] - totals[starts]
    unequal = np.flatnonzero(header != sums)
    if len(unequal):
        block = int(unequal[0])
        raise _make_error(
            chunk.blocks, block, "gasUsed", hex(int(header[block])), hex(int(sums[block]))
        )


def _check_gas_prices(chunk: BlockChunk) -> None:
    wrong = find_wrong_price(chunk)
    if wrong is not None:
        row, name, expected, received = wrong
        field = f"{name} of transaction {chunk.transactions.field('hash')[row]}"
        raise _make_error(chunk.blocks, chunk.find_block(row), field, expected, received)


def _check_contract_addresses(chunk: BlockChunk) -> None:
    wrong = find_wrong_address(chunk)
    if wrong is not None:
        row, expected, received = wrong
        field = f"contractAddress of transaction {chunk.transactions.field('hash')[row]}"
        raise _make_error(chunk.blocks, chunk.find_block(row), field, expected, received)


def _drop_state_syncs(chunk: BlockChunk) -> BlockChunk:
    """Remove transactions that the chain adds outside of its roots, and their logs."""
    receipts = chunk.receipts
    is_system = pc.and_(
        pc.equal(receipts.field("from"), _ZERO_ADDRESS),
        pc.and_(
            pc.equal(receipts.field("to"), _ZERO_ADDRESS),
            pc.equal(receipts.field("gasUsed"), "0x0"),
        ),
    )
    keep = ~np.asarray(pc.fill_null(is_system, False))
    if np.all(keep):
        return chunk
    return chunk.select_transactions(keep)


def _parse_blooms(blocks: _Array) -> Any:
    content = b"".join(split(parse_binary(blocks.field("logsBloom"))))
    return np.frombuffer(content, np.uint8).reshape(-1, 256)


def _compare_blocks(blocks: _Array, field: str, computed: list[bytes]) -> None:
    """Compare a value of each header with the one computed from the content."""
    expected = split(parse_binary(blocks.field(field)))
    for index, value in enumerate(computed):
        if value != expected[index]:
            raise _make_error(blocks, index, field, expected[index], value)


def _compare_rows(chunk: BlockChunk, field: str, computed: list[bytes], texts: _Array) -> None:
    """Compare a value of each transaction with the one computed from its fields."""
    claimed = split(parse_binary(texts))
    if computed == claimed:
        return
    row = next(n for n, value in enumerate(computed) if value != claimed[n])
    index = chunk.transactions.field("transactionIndex")[row].as_py()
    block = chunk.find_block(row)
    raise _make_error(chunk.blocks, block, f"{field} at index {index}", computed[row], claimed[row])


def _make_error(
    blocks: _Array, index: int, field: str, expected: object, received: object
) -> VerificationFailed:
    number = int(blocks.field("number")[index].as_py(), 16)
    block_hash = blocks.field("hash")[index].as_py()
    texts = map(shorten, (block_hash, field, _show(expected), _show(received)))
    return VerificationFailed.of(Evidence(number, *texts))


def _show(value: object) -> str:
    return f"0x{value.hex()}" if isinstance(value, bytes) else str(value)


def _has_field(rows: _Array, name: str) -> bool:
    return rows.type.get_field_index(name) >= 0
