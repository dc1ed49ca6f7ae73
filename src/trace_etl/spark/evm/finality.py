"""Which blocks are final: the chain does not replace them any more."""

from dataclasses import dataclass

from trace_etl.dag.chain.rules import Finality
from trace_etl.spark.errors import ChainMismatch, NotFinal, RpcRefused
from trace_etl.spark.evm.rpc.answers import RpcCall
from trace_etl.spark.evm.rpc.client import RpcClient, RpcSource, ask_endpoints


@dataclass(frozen=True)
class FinalBlock:
    """The newest block that counts as final, and the endpoint with the lowest answer."""

    number: int
    endpoint: str


def check_finality(source: RpcSource, last: int, finality: Finality) -> bool:
    """Return whether the blocks up to `last` are provisional.

    Raises NotFinal if the job must wait, RpcUnreachable or RpcRefused.
    """
    if finality == 0:
        return False
    if finality != "provisional":
        _require_final(source, last, finality)
        return False
    if last <= find_final_block(source, "finalized").number:
        return False
    head = find_final_block(source, 0)
    if last > head.number:
        raise NotFinal(
            f"block {last} does not exist yet: the head of {head.endpoint} is {head.number}; the task "
            "waits for it"
        )
    return True


def _require_final(source: RpcSource, last: int, finality: Finality) -> None:
    final = find_final_block(source, finality)
    if last <= final.number:
        return
    if finality == "finalized":
        known = f"{final.endpoint} reports block {final.number} as finalized"
    else:
        known = f"the head of {final.endpoint} less {finality} confirmations is {final.number}"
    raise NotFinal(f"block {last} is not final yet: {known}; the task waits for it")


def find_final_block(source: RpcSource, finality: Finality) -> FinalBlock:
    """Ask every endpoint and return the lowest answer. Raises the error of the last one."""
    answers = ask_endpoints(source, lambda client: _ask(client, finality))
    return min(answers, key=lambda answer: answer.number)


def _ask(client: RpcClient, finality: Finality) -> FinalBlock:
    """Ask one endpoint. Raises NotFinal if it answers, but does not report a finalized block."""
    if isinstance(finality, int):
        return FinalBlock(_read_number(client, "latest") - finality, client.label)
    try:
        return FinalBlock(_read_number(client, "finalized"), client.label)
    except (RpcRefused, ChainMismatch) as error:
        _read_number(client, "latest")  # raises if the endpoint does not work at all
        raise NotFinal(
            f"the endpoint reports no finalized block ({error}); if the chain has none, set "
            "`finality` of the job to a number of confirmations, such as 64"
        ) from error


def _read_number(client: RpcClient, tag: str) -> int:
    block = client.call(RpcCall("eth_getBlockByNumber", (tag, False)))
    try:
        return int(block["number"], 16)
    except (TypeError, KeyError, ValueError) as error:
        raise ChainMismatch(
            f"eth_getBlockByNumber of {tag} at {client.label}: the answer is not a block"
        ) from error
