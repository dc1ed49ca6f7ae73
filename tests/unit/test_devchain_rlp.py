"""The RLP encoder is compared with the reference implementation."""

import pytest
import rlp as reference
from hypothesis import given
from hypothesis import strategies as st

from trace_etl.devtools.devchain.chain import rlp

_ITEMS = st.recursive(
    st.binary(max_size=80) | st.integers(min_value=0, max_value=2**256 - 1),
    lambda members: st.lists(members, max_size=6),
    max_leaves=30,
)


@given(_ITEMS)
def test_any_nesting_is_encoded_as_by_the_reference(item: rlp.Item) -> None:
    assert rlp.encode(item) == reference.encode(item)


@pytest.mark.parametrize("size", [0, 1, 55, 56, 255, 256, 4_095, 4_096, 65_535, 65_536])
def test_lengths_around_every_boundary_are_encoded_as_by_the_reference(size: int) -> None:
    text, members = b"\xff" * size, [b"a"] * size
    assert rlp.encode(text) == reference.encode(text)
    assert rlp.encode(members) == reference.encode(members)


@pytest.mark.parametrize("value", [0, 1, 0x7F, 0x80, 0xFF, 0x100])
def test_small_integers_and_single_bytes_are_encoded_as_by_the_reference(value: int) -> None:
    assert rlp.encode(value) == reference.encode(value)
    assert rlp.encode(bytes([value & 0xFF])) == reference.encode(bytes([value & 0xFF]))


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(OverflowError):
        rlp.encode(-1)
