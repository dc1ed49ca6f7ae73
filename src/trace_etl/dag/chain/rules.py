"""What is verified of each block: levels, checks, and the exceptions of chains that differ."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

RULES_VERSION = 2
"""Version of the verification rules, recorded with every verified partition."""

FinalityTag = Literal["finalized", "provisional"]
Finality = FinalityTag | int
"""The last block that history may include: the node's finalized one, the head until that one is known,
or a number of confirmations."""

Level = Literal["links", "bloom", "roots"]
LEVELS: tuple[Level, ...] = get_args(Level)

Check = Literal[
    "header_hash",
    "links",
    "uncles_hash",
    "transactions_root",
    "receipts_root",
    "withdrawals_root",
    "logs_bloom",
    "log_indices",
    "gas_used",
    "gas_price",
    "contract_address",
    "senders",
]
CHECKS: tuple[Check, ...] = get_args(Check)

STATE_SYNC = "state_sync_transactions"
"""Exception: transactions without gas from and to address zero are not part of the roots."""

PRESETS: Mapping[str, tuple[str, ...]] = {
    # Bor adds transactions and logs of state syncs to blocks, outside of the roots and the bloom.
    "polygon": (STATE_SYNC,),
    # The withdrawals root is a storage root since Isthmus. Deposits (type 0x7e) pay no gas price.
    "optimism": ("withdrawals_root", "gas_price"),
    # Types 0x64 to 0x6a have fields that JSON-RPC does not return in full.
    "arbitrum": ("transactions_root", "gas_price", "contract_address", "senders"),
    # Headers are not hashed as on Ethereum, and their roots and blooms are empty.
    "zksync": (
        "header_hash",
        "uncles_hash",
        "transactions_root",
        "receipts_root",
        "withdrawals_root",
        "logs_bloom",
        "gas_used",
        "gas_price",
        "contract_address",
        "senders",
    ),
}
EXCEPTIONS = (*PRESETS, *(check for check in CHECKS if check != "links"), STATE_SYNC)
"""Every name that `exceptions` accepts. The links between blocks are always checked."""


def check_exceptions(names: list[str]) -> list[str]:
    """Return the names. Raises ValueError for an unknown one."""
    unknown = [name for name in names if name not in EXCEPTIONS]
    if unknown:
        raise ValueError(f"unknown exception `{unknown[0]}`; use one of {', '.join(EXCEPTIONS)}")
    return names


@dataclass(frozen=True)
class VerifyRules:
    """The level of verification, the declared exceptions, and whether senders are recovered."""

    level: Level = "roots"
    exceptions: tuple[str, ...] = ()
    """As declared: names of presets, of checks to skip, or `state_sync_transactions`."""
    senders: bool = False

    def includes(self, check: Check) -> bool:
        """Whether a check is part of the level and not excepted."""
        return check in self._list_checks() and check not in self.skipped

    @property
    def skipped(self) -> frozenset[str]:
        """The exceptions with presets replaced by their content."""
        return frozenset(_expand(self.exceptions))

    @property
    def has_state_sync(self) -> bool:
        return STATE_SYNC in self.skipped

    def checks(self) -> tuple[Check, ...]:
        """The checks that apply to data that is read in full."""
        return tuple(check for check in CHECKS if self.includes(check))

    def _list_checks(self) -> set[Check]:
        found: set[Check] = {"header_hash", "links", "log_indices", "gas_used"}
        if self.level != "links":
            found.add("logs_bloom")
        if self.level == "roots":
            found |= {"uncles_hash", "transactions_root", "receipts_root", "withdrawals_root"}
            found |= {"gas_price", "contract_address"}
        if self.senders:
            found.add("senders")
        return found


def _expand(names: Iterable[str]) -> Iterable[str]:
    for name in names:
        yield from PRESETS.get(name, (name,))
