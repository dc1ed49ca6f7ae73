"""Render blocks as the JSON that nodes return.

The JSON is built from f-strings because this is the hot path; all values are hex, so nothing needs
escaping.
"""

from itertools import accumulate

from trace_etl.devtools.devchain.chain import bloom
from trace_etl.devtools.devchain.chain.blocks import BlockJson, LogJson
from trace_etl.devtools.devchain.chain.body import Body
from trace_etl.devtools.devchain.chain.seal import SealedBlock
from trace_etl.devtools.devchain.chain.transaction import Log, Transaction, TransactionOutcome


def render(block: SealedBlock, body: Body) -> BlockJson:
    """Render a block with its transactions, receipts and logs."""
    hashes = tuple("0x" + transaction_hash.hex() for transaction_hash in block.transaction_hashes)
    where = f'"blockHash":"0x{block.hash.hex()}","blockNumber":"{body.number:#x}"'
    rendered = BlockJson(body.number, _render_header(block).encode(), hashes, [], [], [])
    cumulative = accumulate(outcome.gas_used for outcome in body.outcomes)
    steps = zip(hashes, body.transactions, body.outcomes, cumulative, strict=True)
    for index, (transaction_hash, transaction, outcome, gas) in enumerate(steps):
        here = f'{where},"transactionIndex":"{index:#x}"'
        place = f'{here},"transactionHash":"{transaction_hash}"'
        price = transaction.gas_price(body.base_fee)
        logs = [
            _render_log(log, place, position)
            for position, log in enumerate(outcome.logs, start=len(rendered.logs))
        ]
        call = _render_transaction(transaction, f'{here},"hash":"{transaction_hash}"', price)
        rendered.transactions.append(call.encode())
        receipt = _render_receipt(transaction, outcome, place, gas, price)
        rendered.receipts.append(
            b'%b,"logs":[%b]}' % (receipt.encode(), b",".join([log.json for log in logs]))
        )
        rendered.logs.extend(logs)
    return rendered


def _render_header(block: SealedBlock) -> str:
    """Render the block's fields without the closing brace; the transactions follow."""
    header = block.header
    return (
        f'{{"hash":"0x{block.hash.hex()}"'
        f',"parentHash":"0x{header.parent_hash.hex()}"'
        f',"sha3Uncles":"0x{header.uncles_hash.hex()}"'
        f',"miner":"0x{header.miner.hex()}"'
        f',"stateRoot":"0x{header.state_root.hex()}"'
        f',"transactionsRoot":"0x{header.transactions_root.hex()}"'
        f',"receiptsRoot":"0x{header.receipts_root.hex()}"'
        f',"logsBloom":"0x{header.logs_bloom.hex()}"'
        f',"difficulty":"{header.difficulty:#x}","totalDifficulty":"0x0"'
        f',"number":"{header.number:#x}"'
        f',"gasLimit":"{header.gas_limit:#x}"'
        f',"gasUsed":"{header.gas_used:#x}"'
        f',"timestamp":"{header.timestamp:#x}"'
        f',"extraData":"0x{header.extra_data.hex()}"'
        f',"mixHash":"0x{header.mix_hash.hex()}"'
        f',"nonce":"0x{header.nonce.hex()}"'
        f',"baseFeePerGas":"{header.base_fee:#x}"'
        f',"size":"{block.size:#x}","uncles":[]'
    )


def _render_transaction(transaction: Transaction, place: str, gas_price: int) -> str:
    common = (
        f'{{{place},"type":"{transaction.type:#x}"'
        f',"chainId":"{transaction.chain_id:#x}"'
        f',"nonce":"{transaction.nonce:#x}"'
        f',"from":"0x{transaction.sender.hex()}"'
        f',"to":{_render_address(transaction.to)}'
        f',"value":"{transaction.value:#x}"'
        f',"input":"0x{transaction.input.hex()}"'
        f',"gas":"{transaction.gas_limit:#x}"'
        f',"gasPrice":"{gas_price:#x}"'
        f',"v":"{transaction.v:#x}","r":"{transaction.r:#x}","s":"{transaction.s:#x}"'
    )
    return f"{common}{_render_dynamic_fee(transaction)}}}" if transaction.type else f"{common}}}"


def _render_dynamic_fee(transaction: Transaction) -> str:
    return (
        f',"maxFeePerGas":"{transaction.max_fee:#x}"'
        f',"maxPriorityFeePerGas":"{transaction.priority_fee:#x}"'
        f',"accessList":[],"yParity":"{transaction.parity:#x}"'
    )


def _render_receipt(
    transaction: Transaction,
    outcome: TransactionOutcome,
    place: str,
    cumulative_gas: int,
    gas_price: int,
) -> str:
    """Render a receipt without the closing brace; the logs follow."""
    return (
        f'{{{place},"type":"{transaction.type:#x}"'
        f',"from":"0x{transaction.sender.hex()}"'
        f',"to":{_render_address(transaction.to)}'
        f',"contractAddress":{_render_address(outcome.created)}'
        f',"status":"{int(outcome.succeeded):#x}"'
        f',"gasUsed":"{outcome.gas_used:#x}"'
        f',"cumulativeGasUsed":"{cumulative_gas:#x}"'
        f',"effectiveGasPrice":"{gas_price:#x}"'
        f',"logsBloom":"0x{bloom.to_bytes(outcome.bloom()).hex()}"'
    )


def _render_log(log: Log, place: str, position: int) -> LogJson:
    address = "0x" + log.address.hex()
    topics = tuple(["0x" + topic.hex() for topic in log.topics])
    listed = ",".join([f'"{topic}"' for topic in topics])
    text = (
        f'{{"address":"{address}"'
        f',"topics":[{listed}]'
        f',"data":"0x{log.data.hex()}",{place}'
        f',"logIndex":"{position:#x}","removed":false}}'
    )
    return LogJson(address, topics, text.encode())


def _render_address(address: bytes | None) -> str:
    return f'"0x{address.hex()}"' if address else "null"
