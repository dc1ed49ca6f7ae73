"""Valid blocks of every fork, as nodes return them. Encoded with `rlp`, independently of our encoder."""

from random import Random
from typing import Any

import rlp
from coincurve import PrivateKey

from trace_etl.devtools.devchain.chain.trie import ordered_root
from trace_etl.spark.verify.keccak import keccak

FORKS = (
    *("frontier", "byzantium", "berlin", "london", "paris"),
    *("shanghai", "cancun", "prague", "osaka"),
)
# Blocks of other chains: the preset that they need, and the fork whose rules they follow.
CHAINS = {
    "optimism before canyon": ("optimism", "paris"),
    "optimism since canyon": ("optimism", "shanghai"),
    "optimism since isthmus": ("optimism", "prague"),
    "arbitrum": ("arbitrum", "london"),
}
CHAIN_ID = 1
DEPOSIT = 0x7E
_ARBITRUM_KINDS = (0x6A, 0x69, 0x64, 0x68)


def make_block(name: str, seed: int = 0) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a block of a fork or chain with one transaction of each type, and its receipts."""
    preset, fork = CHAINS.get(name, (None, name))
    return _Forge(fork, preset, Random(seed)).make()


def encode_int(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8, "big")


class _Forge:
    def __init__(self, fork: str, preset: str | None, random: Random) -> None:
        self.level = FORKS.index(fork)
        self.preset = preset
        self.random = random

    def since(self, fork: str) -> bool:
        return self.level >= FORKS.index(fork)

    def hash(self) -> bytes:
        return self.random.randbytes(32)

    def address(self) -> bytes:
        return self.random.randbytes(20)

    def make(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        base_fee = 7 * 10**9 if self.since("london") else None
        pairs = [self.transaction(kind, n, base_fee) for n, kind in enumerate(self.kinds())]
        transactions, encoded = [tx for tx, _ in pairs], [raw for _, raw in pairs]
        receipts, encoded_receipts, bloom = self.receipts(transactions)
        header: dict[str, Any] = {
            "parentHash": self.hash(),
            "sha3Uncles": keccak(rlp.encode([])),
            "miner": self.address(),
            "stateRoot": self.hash(),
            "transactionsRoot": ordered_root(encoded),
            "receiptsRoot": ordered_root(encoded_receipts),
            "logsBloom": bloom,
            "difficulty": 0 if self.since("paris") else 1 << 40,
            "number": 7_000_000 + self.level,
            "gasLimit": 30_000_000,
            "gasUsed": int(receipts[-1]["cumulativeGasUsed"], 16),
            "timestamp": 1_700_000_000,
            "extraData": b"forged",
            "mixHash": self.hash(),
            "nonce": bytes(8),
        }
        block: dict[str, Any] = {"totalDifficulty": "0x1", "size": "0x100", "uncles": []}
        if base_fee is not None:
            header["baseFeePerGas"] = base_fee
        if self.since("shanghai"):
            block["withdrawals"], header["withdrawalsRoot"] = self.withdrawals()
        if self.since("cancun"):
            header |= {
                "blobGasUsed": 131072,
                "excessBlobGas": 0,
                "parentBeaconBlockRoot": self.hash(),
            }
        if self.since("prague"):
            header["requestsHash"] = self.hash()
        values = [encode_int(v) if isinstance(v, int) else v for v in header.values()]
        block_hash = keccak(rlp.encode(values))
        block |= {name: _show(value) for name, value in header.items()} | {
            "hash": _show(block_hash)
        }
        place = {"blockHash": block["hash"], "blockNumber": block["number"]}
        for item in transactions:
            item |= place
        for receipt in receipts:
            receipt |= place
            for log in receipt["logs"]:
                log |= place
        return {**block, "transactions": transactions}, receipts

    def kinds(self) -> list[int]:
        kinds = [DEPOSIT, DEPOSIT] if self.preset == "optimism" else []
        kinds += _ARBITRUM_KINDS[:2] if self.preset == "arbitrum" else []
        kinds += [0, 0]
        kinds += [1] if self.since("berlin") else []
        kinds += [2] if self.since("london") else []
        kinds += [3] if self.since("cancun") and not self.preset else []
        kinds += [4] if self.since("prague") else []
        return [*kinds, *(_ARBITRUM_KINDS[2:] if self.preset == "arbitrum" else ())]

    def transaction(
        self, kind: int, index: int, base_fee: int | None
    ) -> tuple[dict[str, Any], bytes]:
        if kind == DEPOSIT:
            return self.deposit(index)
        if kind in _ARBITRUM_KINDS:
            return self.arbitrum_transaction(kind, index)
        key = PrivateKey(self.hash())
        price, tip, most = 20 * 10**9, 10**9, 30 * 10**9
        common = [self.random.randrange(1, 2**40), 21_000 + index]  # nonce, gas
        to = b"" if index == 0 else self.address()
        call = [to, self.random.randrange(1, 2**80), self.random.randbytes(index * 30)]
        access = [[self.address(), [self.hash(), self.hash()]], [self.address(), []]]
        fields: list[Any]
        if kind == 0:
            fields = [common[0], price, common[1], *call]
        elif kind == 1:
            fields = [CHAIN_ID, common[0], price, common[1], *call, access]
        else:
            fields = [CHAIN_ID, common[0], tip, most, common[1], *call, access]
        blobs = [b"\x01" + self.hash()[1:]]
        authorization = [[CHAIN_ID, self.address(), 5, 1, 2**250 + 1, 2**200 + 3]]
        fields += [10**9, blobs] if kind == 3 else [authorization] if kind == 4 else []
        is_protected = kind == 0 and index > 0 and self.since("byzantium")
        message = [*fields, CHAIN_ID, b"", b""] if is_protected else fields
        prefix = bytes([kind]) if kind else b""
        signature = key.sign_recoverable(keccak(prefix + _encode(message)), hasher=None)
        r, s = (int.from_bytes(signature[a:b], "big") for a, b in ((0, 32), (32, 64)))
        parity = signature[64]
        v = parity if kind else parity + (2 * CHAIN_ID + 35 if is_protected else 27)
        raw = prefix + _encode([*fields, v, r, s])
        paid = price if kind < 2 else min(most, (base_fee or 0) + tip)
        if kind >= 2 and self.preset == "arbitrum":
            paid = base_fee or 0  # tips are not paid
        shown: dict[str, Any] = {
            "hash": _show(keccak(raw)),
            "transactionIndex": hex(index),
            "type": hex(kind),
            "nonce": hex(common[0]),
            "from": _show(keccak(key.public_key.format(compressed=False)[1:])[12:]),
            "to": _show(to) if to else None,
            "value": hex(call[1]),
            "input": _show(call[2]),
            "gas": hex(common[1]),
            "gasPrice": hex(paid),
            **{"v": hex(v), "r": hex(r), "s": hex(s)},
        }
        if kind:
            shown |= {"chainId": hex(CHAIN_ID), "yParity": hex(parity)}
            shown["accessList"] = [
                {"address": _show(a), "storageKeys": [_show(key) for key in keys]}
                for a, keys in access
            ]
        if kind >= 2:
            shown |= {"maxPriorityFeePerGas": hex(tip), "maxFeePerGas": hex(most)}
        if kind == 3:
            shown |= {
                "maxFeePerBlobGas": hex(10**9),
                "blobVersionedHashes": [_show(b) for b in blobs],
            }
        if kind == 4:
            names = ("chainId", "address", "nonce", "yParity", "r", "s")
            shown["authorizationList"] = [
                {name: _show(x) for name, x in zip(names, item, strict=True)}
                for item in authorization
            ]
        return shown, raw

    def deposit(self, index: int) -> tuple[dict[str, Any], bytes]:
        """The deposit of the block's attributes, or one that creates a contract and mints."""
        is_first, is_system = index == 0, index == 0 and not self.since("shanghai")
        to, mint = (self.address(), 0) if is_first else (b"", self.random.randrange(1, 2**90))
        source, sender, data = self.hash(), self.address(), self.random.randbytes(68)
        value, gas = (0 if is_first else 2**70), 1_000_000 + index
        raw = b"\x7e" + _encode([source, sender, to, mint, value, gas, int(is_system), data])
        shown: dict[str, Any] = {
            **self._show_unsigned(DEPOSIT, raw, index),
            **{"from": _show(sender), "to": _show(to) if to else None, "input": _show(data)},
            **{"sourceHash": _show(source), "value": hex(value), "gas": hex(gas)},
        }
        if not is_first:
            shown["mint"] = hex(mint)
        if is_system:
            shown["isSystemTx"] = True
        return shown, raw

    def arbitrum_transaction(self, kind: int, index: int) -> tuple[dict[str, Any], bytes]:
        """A transaction whose encoded fields a node does not return in full."""
        raw = bytes([kind]) + self.random.randbytes(90)
        return {
            **self._show_unsigned(kind, raw, index),
            **{"from": _show(self.address()), "to": _show(self.address()), "input": "0x1234"},
            **{"value": "0x12", "gas": hex(100_000 + index), "requestId": _show(self.hash())},
        }, raw

    def _show_unsigned(self, kind: int, raw: bytes, index: int) -> dict[str, Any]:
        return {
            **{"hash": _show(keccak(raw)), "transactionIndex": hex(index), "type": hex(kind)},
            **{"nonce": hex(5000 + index), "gasPrice": "0x0", "v": "0x0", "r": "0x0", "s": "0x0"},
        }

    def receipts(
        self, transactions: list[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], list[bytes], bytes]:
        receipts: list[dict[str, Any]] = []
        encoded: list[bytes] = []
        total, position, union = 0, 0, 0
        for index, tx in enumerate(transactions):
            gas = 21_000 + self.random.randrange(1000)
            total += gas
            logs = [
                [self.address(), [self.hash() for _ in range(n)], self.random.randbytes(n * 7)]
                for n in range(index % 5)
            ]
            bits = 0
            for address, topics, _ in logs:
                for value in (address, *topics):
                    digest = keccak(value)
                    for at in (0, 2, 4):
                        bits |= 1 << (int.from_bytes(digest[at : at + 2], "big") & 2047)
            union |= bits
            outcome = encode_int(1) if self.since("byzantium") else self.hash()
            bloom = bits.to_bytes(256, "big")
            kind = int(tx["type"], 16)
            extra = self.receipt_extra(tx)
            is_hashed = "depositReceiptVersion" in extra
            hashed = [int(extra["depositNonce"], 16), 1] if is_hashed else []
            content = _encode([outcome, total, bloom, logs, *hashed])
            encoded.append((bytes([kind]) if kind else b"") + content)
            place = {"transactionHash": tx["hash"], "transactionIndex": hex(index)}
            shown_logs: list[dict[str, Any]] = []
            for address, topics, data in logs:
                shown_logs.append(
                    {
                        "address": _show(address),
                        "topics": [_show(topic) for topic in topics],
                        "data": _show(data),
                        "logIndex": hex(position),
                        **place,
                    }
                )
                position += 1
            receipts.append(
                {
                    **place,
                    **extra,
                    "type": tx["type"],
                    ("status" if self.since("byzantium") else "root"): "0x1"
                    if self.since("byzantium")
                    else _show(outcome),
                    "gasUsed": hex(gas),
                    "cumulativeGasUsed": hex(total),
                    "effectiveGasPrice": tx["gasPrice"],
                    "contractAddress": None if tx["to"] else _create_address(tx),
                    "logs": shown_logs,
                }
            )
        return receipts, encoded, union.to_bytes(256, "big")

    def receipt_extra(self, tx: dict[str, Any]) -> dict[str, str]:
        """The fields that only receipts of other chains have."""
        if self.preset == "arbitrum":
            return {"gasUsedForL1": "0x1d", "l1BlockNumber": "0x1234567"}
        if tx["type"] != hex(DEPOSIT):
            return {"l1Fee": "0x1f4a", "l1GasUsed": "0x640"} if self.preset else {}
        version = {"depositReceiptVersion": "0x1"} if self.since("shanghai") else {}
        return {"depositNonce": tx["nonce"], **version}

    def withdrawals(self) -> tuple[list[dict[str, Any]], bytes]:
        if self.preset == "optimism":  # since Isthmus the root is one of the state
            return [], self.hash() if self.since("prague") else ordered_root([])
        rows = [[n, 1000 + n, self.address(), 10**9 + n] for n in range(3)]
        names = ("index", "validatorIndex", "address", "amount")
        shown = [{name: _show(x) for name, x in zip(names, row, strict=True)} for row in rows]
        return shown, ordered_root([_encode(row) for row in rows])


def _encode(item: Any) -> bytes:
    return rlp.encode(_to_items(item))


def _to_items(item: Any) -> Any:
    if isinstance(item, list):
        return [_to_items(member) for member in item]
    return encode_int(item) if isinstance(item, int) else item


def _show(value: Any) -> str:
    return hex(value) if isinstance(value, int) else f"0x{value.hex()}"


def _create_address(tx: dict[str, Any]) -> str:
    creator = [bytes.fromhex(tx["from"][2:]), int(tx["nonce"], 16)]
    return _show(keccak(_encode(creator))[12:])
