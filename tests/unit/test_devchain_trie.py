"""The trie is compared with a simple implementation and with roots of the main chain."""

import pytest
import rlp as reference

from trace_etl.devtools.devchain.chain import trie
from trace_etl.spark.verify.keccak import keccak


def _insert(node: list | None, path: tuple[int, ...], value: bytes) -> list:
    """Insert one key into branches only: [children by nibble, value]."""
    node = node or [{}, b""]
    if not path:
        node[1] = value
    else:
        node[0][path[0]] = _insert(node[0].get(path[0]), path[1:], value)
    return node


def _compact(path: list[int], leaf: bool) -> bytes:
    flag = 2 * leaf + len(path) % 2
    nibbles = [flag, *path] if len(path) % 2 else [flag, 0, *path]
    return bytes(a * 16 + b for a, b in zip(nibbles[::2], nibbles[1::2], strict=True))


def _structure(node: list) -> list:
    """Fold runs of single children into leaves and extensions."""
    path: list[int] = []
    while len(node[0]) == 1 and not node[1]:
        ((nibble, node),) = node[0].items()
        path.append(nibble)
    if not node[0]:
        return [_compact(path, True), node[1]]
    branch = [_linked(node[0][n]) if n in node[0] else b"" for n in range(16)] + [node[1]]
    return [_compact(path, False), _linked_raw(branch)] if path else branch


def _linked(node: list) -> list | bytes:
    return _linked_raw(_structure(node))


def _linked_raw(structure: list) -> list | bytes:
    encoded = reference.encode(structure)
    return structure if len(encoded) < 32 else keccak(encoded)


def reference_root(values: list[bytes]) -> bytes:
    root: list | None = None
    for index, value in enumerate(values):
        key = reference.encode(index)
        root = _insert(root, tuple(n for byte in key for n in (byte >> 4, byte & 15)), value)
    assert root is not None
    return keccak(reference.encode(_structure(root)))


@pytest.mark.parametrize("count", [1, 2, 3, 15, 16, 17, 18, 127, 128, 129, 130, 256, 257, 300])
@pytest.mark.parametrize("size", [1, 27, 28, 29, 100])
def test_the_root_equals_that_of_a_trie_built_key_by_key(count: int, size: int) -> None:
    values = [bytes([1 + index % 100]) * size for index in range(count)]
    assert trie.ordered_root(values) == reference_root(values)


def test_the_empty_root_is_the_root_of_every_empty_block() -> None:
    known = "56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421"
    assert trie.ordered_root([]).hex() == known


def test_the_first_transaction_of_the_main_chain_has_the_root_of_its_block() -> None:
    transaction = reference.encode(
        [
            0,
            50_000_000_000_000,
            21_000,
            bytes.fromhex("5df9b87991262f6ba471f09758cde1c0fc1de734"),
            31_337,
            b"",
            28,
            0x88FF6CF0FEFD94DB46111149AE4BFC179E9B94721FFFD821D38D16464B3F71D0,
            0x45E0AFF800961CFCE805DAEF7016B9B675C137A6A41A548F7B60A3484C06A33A,
        ]
    )
    known_hash = "5c504ed432cb51138bcf09aa5e8a410dd4a1e204ef84bfed1be16dfba1b22060"
    known_root = "4513310fcb9f6f616972a3b948dc5d547f280849a87ebb5af0191f98b87be598"
    assert keccak(transaction).hex() == known_hash
    assert trie.ordered_root([transaction]).hex() == known_root
