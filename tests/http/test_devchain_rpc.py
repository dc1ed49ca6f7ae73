"""The development chain's JSON-RPC, over real HTTP."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from trace_etl.devtools.devchain import DevChain, RunningServer, start_server

TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
UNKNOWN_HASH = "0x" + "11" * 32
LENGTH = 300

Call = Callable[..., Any]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with start_server(DevChain(seed=7, length=LENGTH, initial=LENGTH)) as running:
        yield running


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=30) as http:
        yield http


@pytest.fixture
def call(server: RunningServer, client: httpx.Client) -> Call:
    return _caller(server, client)


@pytest.fixture
def moving(client: httpx.Client) -> Iterator[Call]:
    """A chain that the test may change."""
    with start_server(DevChain(seed=7, length=100, initial=100)) as running:
        yield _caller(running, client)


def _caller(server: RunningServer, client: httpx.Client) -> Call:
    def call(method: str, *params: Any, named: dict[str, Any] | None = None) -> Any:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": named or list(params)}
        answer = client.post(server.url, json=request).json()
        assert answer["jsonrpc"] == "2.0"
        assert answer["id"] == 1
        return answer["error"] if "error" in answer else answer["result"]

    return call


def _post(client: httpx.Client, server: RunningServer, body: Any) -> Any:
    return client.post(server.url, json=body).json()


def test_the_chain_reports_its_id_and_version(call: Call) -> None:
    assert call("eth_chainId") == "0x7a69"
    assert call("net_version") == "31337"
    assert call("web3_clientVersion").startswith("trace-devchain/")
    assert call("eth_syncing") is False
    assert call("eth_blockNumber") == hex(LENGTH - 1)


@pytest.mark.parametrize(
    ("tag", "number"),
    [
        ("earliest", 0),
        ("latest", 299),
        ("pending", 299),
        ("safe", 267),
        ("finalized", 235),
        ("0x0", 0),
        ("0x12b", 299),
    ],
)
def test_a_block_is_found_by_number_and_by_tag(call: Call, tag: str, number: int) -> None:
    assert call("eth_getBlockByNumber", tag, False)["number"] == hex(number)


def test_a_chain_that_is_complete_is_final_and_one_that_grows_is_final_at_some_depth(
    moving: Call,
) -> None:
    for initial, final in ((5, "0x0"), (None, "0x4")):
        chain = DevChain(seed=7, length=5, initial=initial)
        with start_server(chain) as running, httpx.Client() as http:
            block = _caller(running, http)("eth_getBlockByNumber", "finalized", False)
            assert block["number"] == final
    assert moving("eth_getBlockByNumber", "finalized", False)["number"] == hex(99 - 64)


def test_a_block_has_whole_transactions_or_their_hashes(call: Call) -> None:
    full = call("eth_getBlockByNumber", "0x10", True)
    light = call("eth_getBlockByNumber", "0x10", False)
    assert full["transactions"]
    assert light["transactions"] == [tx["hash"] for tx in full["transactions"]]
    assert {**full, "transactions": None} == {**light, "transactions": None}
    assert call("eth_getBlockByHash", full["hash"], True) == full
    assert call("eth_getBlockByHash", full["hash"], False) == light
    count = hex(len(full["transactions"]))
    assert call("eth_getBlockTransactionCountByNumber", "0x10") == count
    assert call("eth_getBlockTransactionCountByHash", full["hash"]) == count


def test_a_transaction_and_its_receipt_are_those_of_its_block(call: Call) -> None:
    block = call("eth_getBlockByNumber", "0x10", True)
    receipts = call("eth_getBlockReceipts", "0x10")
    hashes = [tx["hash"] for tx in block["transactions"]]
    assert [call("eth_getTransactionByHash", h) for h in hashes] == block["transactions"]
    assert [call("eth_getTransactionReceipt", h) for h in hashes] == receipts


def test_receipts_are_found_by_every_kind_of_reference(call: Call) -> None:
    block_hash = call("eth_getBlockByNumber", "0x10", False)["hash"]
    expected = call("eth_getBlockReceipts", "0x10")
    references = [block_hash, {"blockHash": block_hash}, {"blockNumber": "0x10"}]
    assert [call("eth_getBlockReceipts", r) for r in references] == [expected] * 3


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("eth_getBlockByNumber", [hex(LENGTH), True]),
        ("eth_getBlockByNumber", [hex(2**63 - 1), True]),
        ("eth_getBlockByHash", [UNKNOWN_HASH, True]),
        ("eth_getTransactionByHash", [UNKNOWN_HASH]),
        ("eth_getTransactionReceipt", [UNKNOWN_HASH]),
        ("eth_getBlockReceipts", [hex(LENGTH)]),
        ("eth_getBlockReceipts", [UNKNOWN_HASH]),
        ("eth_getBlockTransactionCountByNumber", [hex(LENGTH)]),
        ("eth_getBlockTransactionCountByHash", [UNKNOWN_HASH]),
    ],
)
def test_unknown_blocks_and_transactions_are_null(
    call: Call, method: str, params: list[Any]
) -> None:
    assert call(method, *params) is None


def test_logs_of_a_range_are_those_of_its_receipts_in_order(call: Call) -> None:
    numbers = range(40, 61)
    receipts = [r for n in numbers for r in call("eth_getBlockReceipts", hex(n))]
    expected = [log for receipt in receipts for log in receipt["logs"]]
    assert expected
    assert call("eth_getLogs", {"fromBlock": hex(40), "toBlock": hex(60)}) == expected


def test_logs_are_filtered_by_address_and_topics(call: Call) -> None:
    everything = call("eth_getLogs", {"fromBlock": "earliest", "toBlock": "latest"})
    token = next(log["address"] for log in everything if log["topics"][:1] == [TRANSFER])
    filter_ = {"address": [token], "topics": [TRANSFER], "fromBlock": "0x0", "toBlock": "latest"}
    expected = [
        log for log in everything if log["address"] == token and log["topics"][:1] == [TRANSFER]
    ]
    assert 0 < len(expected) < len(everything)
    assert call("eth_getLogs", filter_) == expected


def test_logs_of_one_block_are_found_by_its_hash(call: Call) -> None:
    block_hash = call("eth_getBlockByNumber", "0x10", False)["hash"]
    by_number = call("eth_getLogs", {"fromBlock": "0x10", "toBlock": "0x10"})
    assert call("eth_getLogs", {"blockHash": block_hash}) == by_number


@pytest.mark.parametrize(
    ("filter_", "code", "message"),
    [
        ({"fromBlock": "0x5", "toBlock": "0x4"}, -32602, "invalid block range params"),
        ({"fromBlock": "0x0", "toBlock": hex(LENGTH)}, -32602, "beyond current head"),
        ({"fromBlock": hex(LENGTH), "toBlock": hex(LENGTH)}, -32602, "beyond current head"),
        ({"blockHash": UNKNOWN_HASH}, -32000, "unknown block"),
        ({"topics": [1]}, -32602, "invalid argument 0"),
    ],
)
def test_a_log_query_that_cannot_be_answered_is_refused(
    call: Call, filter_: dict[str, Any], code: int, message: str
) -> None:
    error = call("eth_getLogs", filter_)
    assert error["code"] == code
    assert message in error["message"]


def test_a_log_query_over_too_many_blocks_or_results_is_refused(client: httpx.Client) -> None:
    chain = DevChain(seed=7, length=10_001, txs_per_block=0)
    with start_server(chain) as running:
        call = _caller(running, client)
        over = call("eth_getLogs", {"fromBlock": "0x0", "toBlock": hex(10_000)})
        assert over == {"code": -32602, "message": "query exceeds max block range 10000"}
    with start_server(DevChain(seed=7, length=200, txs_per_block=120)) as running:
        over = _caller(running, client)("eth_getLogs", {"fromBlock": "0x0", "toBlock": "latest"})
        assert over == {"code": -32005, "message": "query returned more than 20000 results"}


@pytest.mark.parametrize(
    ("method", "params", "message"),
    [
        ("eth_getBlockByNumber", ["0x1"], "missing value for required argument 1"),
        ("eth_getBlockByNumber", [], "missing value for required argument 0"),
        ("eth_getBlockByNumber", ["0x1", True, 1], "too many arguments, want at most 2"),
        ("eth_getBlockByNumber", ["1", True], "invalid argument 0"),
        ("eth_getBlockByNumber", [1, True], "invalid argument 0"),
        ("eth_getBlockByNumber", ["0x", True], "invalid argument 0"),
        ("eth_getBlockByNumber", ["0x01", True], "invalid argument 0"),
        ("eth_getBlockByNumber", ["-0x1", True], "invalid argument 0"),
        ("eth_getBlockByNumber", [hex(2**63), True], "larger than int64"),
        ("eth_getBlockByNumber", ["newest", True], "invalid argument 0"),
        ("eth_getBlockByNumber", [["latest"], True], "invalid argument 0"),
        ("eth_getBlockByNumber", ["0x1", "yes"], "invalid argument 1"),
        ("eth_getBlockByHash", ["0x12", True], "invalid argument 0"),
        (
            "eth_getBlockReceipts",
            [{"blockHash": UNKNOWN_HASH, "blockNumber": "0x1"}],
            "want one of",
        ),
        ("eth_getTransactionByHash", [None], "invalid argument 0"),
        ("eth_blockNumber", [1], "too many arguments, want at most 0"),
        ("eth_chainId", [1], "too many arguments, want at most 0"),
        ("devchain_mine", [0], "n must be between"),
        ("devchain_mine", [True], "invalid argument 0"),
        ("devchain_reorg", [65], "depth must be between"),
    ],
)
def test_wrong_arguments_are_invalid_params(
    call: Call, method: str, params: list[Any], message: str
) -> None:
    error = call(method, *params)
    assert error["code"] == -32602
    assert message in error["message"]


def test_named_arguments_are_refused_where_a_node_takes_a_list(call: Call) -> None:
    error = call("eth_getBlockByNumber", named={"block": "0x1"})
    assert error == {"code": -32602, "message": "non-array args"}


@pytest.mark.parametrize("method", ["trace_block", "eth_getBalance", "nonsense", ""])
def test_an_unknown_method_is_method_not_found(call: Call, method: str) -> None:
    error = call(method, "0x1")
    assert error["code"] == -32601
    assert method in error["message"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        (b"", -32700),
        (b'{"id": NaN}', -32700),
        (b"\xff\xfe", -32700),
        (b"[" * 3_000, -32700),
        (b"[]", -32600),
        (b"1", -32600),
        (b"null", -32600),
        (b'"eth_blockNumber"', -32600),
        (b"{}", -32600),
        (b'{"jsonrpc":"2.0"}', -32600),
        (b'{"id":1,"method":"eth_blockNumber"}', -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"eth_blockNumber"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":5}', -32600),
        (b'{"jsonrpc":"2.0","id":{},"method":"eth_blockNumber"}', -32600),
        (b'{"jsonrpc":"2.0","id":true,"method":"eth_blockNumber"}', -32600),
    ],
)
def test_a_body_that_is_not_a_call_is_refused_with_the_standard_code(
    server: RunningServer, client: httpx.Client, body: bytes, code: int
) -> None:
    answer = client.post(server.url, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200
    assert answer.json()["error"]["code"] == code


def test_the_id_is_returned_unchanged(server: RunningServer, client: httpx.Client) -> None:
    for sent in (0, -1, 2**53, "abc", 'a"b\\é', 1.5, None):
        request = {"jsonrpc": "2.0", "id": sent, "method": "eth_chainId"}
        assert _post(client, server, request)["id"] == sent


def test_a_batch_is_answered_in_order_with_an_error_for_each_bad_call(
    server: RunningServer, client: httpx.Client
) -> None:
    batch = [
        {"jsonrpc": "2.0", "id": "a", "method": "eth_blockNumber"},
        7,
        {"jsonrpc": "2.0", "id": "b", "method": "nonsense"},
        {"jsonrpc": "2.0", "method": "eth_blockNumber"},
        {"jsonrpc": "2.0", "id": "c", "method": "eth_getBlockByNumber", "params": ["0x1", False]},
    ]
    answers = _post(client, server, batch)
    assert [answer["id"] for answer in answers] == ["a", None, "b", "c"]
    assert [a.get("error", {}).get("code") for a in answers] == [None, -32600, -32601, None]
    assert answers[3]["result"]["number"] == "0x1"


def test_a_batch_of_many_blocks_is_answered_completely(
    server: RunningServer, client: httpx.Client
) -> None:
    batch = [
        {"jsonrpc": "2.0", "id": n, "method": "eth_getBlockByNumber", "params": [hex(n), True]}
        for n in range(LENGTH)
    ]
    answers = _post(client, server, batch)
    assert [answer["id"] for answer in answers] == list(range(LENGTH))
    assert [int(answer["result"]["number"], 16) for answer in answers] == list(range(LENGTH))


def test_a_batch_over_the_limit_is_refused(server: RunningServer, client: httpx.Client) -> None:
    calls = [{"jsonrpc": "2.0", "id": n, "method": "eth_chainId"} for n in range(5, 1_006)]
    error = {"code": -32600, "message": "batch too large"}
    assert _post(client, server, calls) == [{"jsonrpc": "2.0", "id": 5, "error": error}]
    assert len(_post(client, server, calls[:1_000])) == 1_000


def test_notifications_get_no_answer(server: RunningServer, client: httpx.Client) -> None:
    note = {"jsonrpc": "2.0", "method": "eth_blockNumber"}
    for body in (note, [note, note], {**note, "method": "nonsense"}):
        answer = client.post(server.url, json=body)
        assert (answer.status_code, answer.content) == (200, b"")


def test_mining_moves_the_head(moving: Call) -> None:
    assert moving("devchain_mine") == hex(100)
    assert moving("devchain_mine", 5) == hex(105)
    assert moving("devchain_mine", "0x5") == hex(110)
    assert moving("devchain_mine", named={"n": 1}) == hex(111)
    assert moving("eth_blockNumber") == hex(111)
    head = moving("eth_getBlockByNumber", "latest", False)
    before = moving("eth_getBlockByNumber", hex(110), False)
    assert head["parentHash"] == before["hash"]


def test_a_reorganisation_can_be_requested(moving: Call) -> None:
    old = [moving("eth_getBlockByNumber", hex(n), True) for n in range(95, 100)]
    assert moving("devchain_reorg", named={"depth": 3}) == hex(97)
    new = [moving("eth_getBlockByNumber", hex(n), True) for n in range(95, 100)]
    assert new[:2] == old[:2]
    assert all(new[i]["hash"] != old[i]["hash"] for i in (2, 3, 4))
    assert [block["parentHash"] for block in new[1:]] == [block["hash"] for block in new[:-1]]
    assert moving("eth_getBlockByHash", old[4]["hash"], True) == old[4]
    lost = {tx["hash"] for b in old for tx in b["transactions"]}
    lost -= {tx["hash"] for b in new for tx in b["transactions"]}
    assert lost
    assert all(moving("eth_getTransactionReceipt", tx) is None for tx in lost)


def test_a_reorganisation_of_the_genesis_is_refused(client: httpx.Client) -> None:
    with start_server(DevChain(seed=7, length=5)) as running:
        call = _caller(running, client)
        assert call("devchain_reorg", 5)["code"] == -32602
        assert call("devchain_reorg", 4) == "0x1"
