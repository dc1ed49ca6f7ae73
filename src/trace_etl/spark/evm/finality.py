"""Which blocks are final: the chain does not replace them any more."""

from dataclasses import dataclass

from trace_etl.dag.chain.rules import Finality
from trace_etl.spark.errors import ChainMismatch, NotFinal, OperatorError, RpcRefused
from trace_etl.spark.evm.answers import RpcCall, UnsupportedMethod
from trace_etl.spark.evm.client import RpcClient
from trace_etl.spark.evm.fetch import RpcSource
from trace_etl.spark.evm.set_aside import SET_ASIDE

_TRIES = 2


@dataclass(frozen=True)
class FinalBlock:
    """The newest block that counts as final, and the endpoint with the lowest answer."""

    number: int
    endpoint: str


def require_final(source: RpcSource, last: int, finality: Finality) -> None:
    """Raise NotFinal if the chain may still replace block `last`. Raises RpcUnreachable or RpcRefused."""
    final = find_final_block(source, finality)
    if last <= final.number:
        return
    if finality == "finalized":
        known = f"{final.endpoint} reports block {final.number} as finalized"
    else:
        known = f"the head of {final.endpoint} less {finality} confirmations is {final.number}"
    raise NotFinal(f"block {last} is not final yet: {known}; the task waits for it")


def find_final_block(source: RpcSource, finality: Finality) -> FinalBlock:
    """Ask every endpoint and return the lowest answer: one that lags or lies must not decide alone.

    Endpoints that do not answer are ignored if others do. Raises the error of the last one.
    """
    trusted = [url for url in source.urls if not SET_ASIDE.includes(url)]
    answers: list[FinalBlock] = []
    errors: list[OperatorError] = []
    for url in trusted or source.urls:
        client = RpcClient(
            (url,), timeout=source.timeout, tries=_TRIES, initial_delay=source.initial_delay
        )
        try:
            answers.append(_ask(client, finality))
        except OperatorError as error:
            errors.append(error)
        finally:
            client.close()
    if not answers:
        raise errors[-1]
    return min(answers, key=lambda answer: answer.number)


def _ask(client: RpcClient, finality: Finality) -> FinalBlock:
    """Ask one endpoint. Raises NotFinal if it answers, but does not report a finalized block."""
    if finality != "finalized":
        return FinalBlock(_read_number(client, "latest") - finality, client.label)
    try:
        return FinalBlock(_read_number(client, "finalized"), client.label)
    except (RpcRefused, UnsupportedMethod, ChainMismatch) as error:
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
