"""Kinds of transactions that accounts send, with their calls, gas and logs."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from trace_etl.devtools.devchain.chain import rlp
from trace_etl.devtools.devchain.chain.draws import TransactionDraw
from trace_etl.devtools.devchain.chain.transaction import Log, Transaction, TransactionOutcome
from trace_etl.devtools.devchain.chain.world import Party, World
from trace_etl.spark.verify.keccak import keccak

GWEI = 10**9
MAX_UINT256 = (1 << 256) - 1

TRANSFER = keccak(b"Transfer(address,address,uint256)")
APPROVAL = keccak(b"Approval(address,address,uint256)")
SYNC = keccak(b"Sync(uint112,uint112)")
SWAP = keccak(b"Swap(address,uint256,uint256,uint256,uint256,address)")
OWNERSHIP = keccak(b"OwnershipTransferred(address,address)")

_TRANSFER_CALL = keccak(b"transfer(address,uint256)")[:4]
_TRANSFER_FROM_CALL = keccak(b"transferFrom(address,address,uint256)")[:4]
_APPROVE_CALL = keccak(b"approve(address,uint256)")[:4]
_SWAP_CALL = keccak(b"swap(address,uint256,uint256)")[:4]
_INIT_CODE = bytes.fromhex("6080604052348015600f57600080fd5b50")
_ONE_IN_64 = 1 << 10


class Effect(NamedTuple):
    """The call of a transaction, and its logs if it succeeds."""

    to: bytes | None
    value: int
    input: bytes
    gas: int
    logs: tuple[Log, ...]


Action: TypeAlias = Callable[[World, TransactionDraw, Party, int], Effect]


def abi_word(number: int) -> bytes:
    """Encode a number as a 32-byte ABI word."""
    return number.to_bytes(32, "big")


def send_ether(world: World, slot: TransactionDraw, sender: Party, nonce: int) -> Effect:
    """Transfer ether; one transfer in 64 has value zero."""
    receiver = world.accounts[world.rank_account(slot.receiver)]
    value = slot.amount % 5_000_000 * 10**15 + slot.noise % 10**9 if slot.gas >= _ONE_IN_64 else 0
    return Effect(receiver.address, value, b"", 21_000, ())


def send_token(world: World, slot: TransactionDraw, sender: Party, nonce: int) -> Effect:
    """Transfer an ERC-20 token."""
    token = world.tokens[world.rank_token(slot.asset)]
    receiver = world.accounts[world.rank_account(slot.receiver)]
    amount = abi_word((1 + slot.amount % 1_000_000) * 10**token.decimals // 100)
    log = Log(token.address, (TRANSFER, sender.topic, receiver.topic), amount)
    return Effect(token.address, 0, _TRANSFER_CALL + receiver.topic + amount, 45_000, (log,))


def send_collectible(world: World, slot: TransactionDraw, sender: Party, nonce: int) -> Effect:
    """Transfer an ERC-721 token: same event name, but the token id is a fourth topic, without data."""
    collection = world.collections[world.rank_collection(slot.asset)]
    receiver = world.accounts[world.rank_account(slot.receiver)]
    token_id = abi_word(1 + slot.amount % 4_096)
    log = Log(collection, (TRANSFER, sender.topic, receiver.topic, token_id), b"")
    call = _TRANSFER_FROM_CALL + sender.topic + receiver.topic + token_id
    return Effect(collection, 0, call, 60_000, (log,))


def swap(world: World, slot: TransactionDraw, sender: Party, nonce: int) -> Effect:
    """Trade with a pool through the router: two token transfers, then two events of the pool."""
    pool = world.pools[world.rank_pool(slot.asset)]
    units = 1 + slot.amount % 1_000_000
    paid = abi_word(units * 10**pool.token_in.decimals // 100)
    received = abi_word((1 + slot.noise % units) * 10**pool.token_out.decimals // 100)
    reserves = abi_word(slot.noise) + abi_word(slot.amount)
    amounts = paid + bytes(64) + received
    logs = (
        Log(pool.token_in.address, (TRANSFER, sender.topic, pool.party.topic), paid),
        Log(pool.token_out.address, (TRANSFER, pool.party.topic, sender.topic), received),
        Log(pool.party.address, (SYNC,), reserves),
        Log(pool.party.address, (SWAP, world.router.topic, sender.topic), amounts),
    )
    call = _SWAP_CALL + pool.party.topic + paid + received
    return Effect(world.router.address, 0, call, 110_000, logs)


def approve(world: World, slot: TransactionDraw, sender: Party, nonce: int) -> Effect:
    """Approve the router to spend a token, in half of the cases without limit."""
    token = world.tokens[world.rank_token(slot.asset)]
    allowance = abi_word(MAX_UINT256 if slot.noise & 1 else slot.amount * 10**token.decimals)
    log = Log(token.address, (APPROVAL, sender.topic, world.router.topic), allowance)
    return Effect(token.address, 0, _APPROVE_CALL + world.router.topic + allowance, 46_000, (log,))


def create(world: World, slot: TransactionDraw, sender: Party, nonce: int) -> Effect:
    """Create a contract that emits one event without data and one without topics."""
    address = contract_address(sender.address, nonce)
    logs = (
        Log(address, (OWNERSHIP, bytes(32), sender.topic), b""),
        Log(address, (), b"deployed by " + sender.address),
    )
    return Effect(None, 0, _INIT_CODE + slot.r + slot.s, 120_000, logs)


def contract_address(sender: bytes, nonce: int) -> bytes:
    """Compute the address of a contract that this sender creates with this nonce."""
    return keccak(rlp.encode((sender, nonce)))[12:]


# Upper bounds of a 16-bit draw: 23% ether, 46% ERC-20, 7% ERC-721, 18% swap, 5% approve, 1% new.
_ACTIONS: tuple[tuple[int, Action], ...] = (
    (15_073, send_ether),
    (45_219, send_token),
    (49_807, send_collectible),
    (61_603, swap),
    (64_880, approve),
    (65_536, create),
)


def make_transaction(
    world: World, chain_id: int, slot: TransactionDraw, nonce: int
) -> tuple[Transaction, TransactionOutcome]:
    """Make a transaction and its outcome. One in 64 fails: it uses its gas and has no logs."""
    sender = world.accounts[world.rank_account(slot.sender)]
    action = next(action for bound, action in _ACTIONS if slot.kind < bound)
    effect = action(world, slot, sender, nonce)
    gas_used = effect.gas if action is send_ether else effect.gas + slot.gas // 4
    transaction = _build_transaction(
        chain_id, slot, nonce, sender, effect, gas_used + gas_used // 5
    )
    if slot.shape < _ONE_IN_64:
        return transaction, TransactionOutcome(False, gas_used, (), None)
    created = contract_address(sender.address, nonce) if action is create else None
    return transaction, TransactionOutcome(True, gas_used, effect.logs, created)


def _build_transaction(
    chain_id: int, slot: TransactionDraw, nonce: int, sender: Party, effect: Effect, gas_limit: int
) -> Transaction:
    """Build the transaction of a call; three of four have a dynamic fee."""
    return Transaction(
        chain_id=chain_id,
        type=2 if slot.shape & 3 else 0,
        nonce=nonce,
        sender=sender.address,
        to=effect.to,
        value=effect.value,
        input=effect.input,
        gas_limit=gas_limit,
        max_fee=20 * GWEI + slot.tip * 10_000,
        priority_fee=GWEI // 10 + slot.tip * 10_000,
        parity=slot.shape >> 2 & 1,
        r=int.from_bytes(slot.r, "big") >> 1,
        s=int.from_bytes(slot.s, "big") >> 2,
    )
