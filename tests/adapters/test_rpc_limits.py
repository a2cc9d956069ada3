"""Limits of JSON-RPC endpoints: learned, forgotten again, and distinguished; and their identity after an outage."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from solders.hash import Hash
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.rpc.requests import GetBlockTime
from solders.transaction import VersionedTransaction
from structlog.testing import capture_logs

from app.adapters.evm.calls import EvmRpc
from app.adapters.evm.chain import EvmChain
from app.adapters.evm.contracts.calls import AUTHORIZATION_USED_EVENT, TRANSFER_EVENT
from app.adapters.evm.contracts.deployments import DEPLOYMENTS
from app.adapters.evm.deposits import scanner
from app.adapters.evm.deposits.native import EvmScanState
from app.adapters.evm.x402.facilitator import EvmFacilitator
from app.adapters.jsonrpc.calls import RpcCall
from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.client.calls import SolanaRpc, SolanaRpcCall
from app.adapters.solana.client.wire import number
from app.adapters.solana.deployments import DEPLOYMENTS as SOLANA_DEPLOYMENTS
from app.core.chains import ChainName
from app.ports.chain import WatchedAddress
from app.ports.errors import OutcomeUnknown, Unreachable
from app.ports.facilitator import PaymentAuthorization
from tests.support.loopback_http import Asked, Reply, serve

CHAIN_ID = 900001
GENESIS_HASH = "4" * 44
USDC = "0xA0b86991c6218b36c1d19D4a2e9Eb0cE3606eB48"
WATCHED = "0x" + "1" * 40
Calls = list[dict[str, Any]]
RATE_LIMIT = {"code": 429, "message": "Your app has exceeded its compute units per second capacity."}


@dataclass(slots=True)
class StubNode:
    """A node that echoes a number; `refusal` may answer a request in its place, `refusals` single calls of it."""

    url: str
    requests: list[Calls] = field(default_factory=list)
    refusal: Callable[[Calls], Reply | None] = lambda _calls: None
    refusals: Callable[[Calls], dict[int, dict[str, Any]]] = lambda _calls: {}
    results: dict[str, Callable[[dict[str, Any]], object]] = field(default_factory=dict)
    chain_id: int = CHAIN_ID
    genesis_hash: str = GENESIS_HASH

    def sizes(self) -> list[int]:
        return [len(calls) for calls in self.requests]

    def echoed(self) -> list[int]:
        """Return the numbers that were requested, in order."""
        return [_number_of(call) for calls in self.requests for call in calls if call["method"] in ECHOES]

    def result_of(self, call: dict[str, Any]) -> object:
        if call["method"] in ECHOES:
            return ECHOES[call["method"]](_number_of(call))
        if call["method"] in self.results:
            return self.results[call["method"]](call)
        return {"eth_chainId": hex(self.chain_id), "getGenesisHash": self.genesis_hash, "eth_getLogs": []}[
            call["method"]
        ]


ECHOES: dict[str, Callable[[int], object]] = {"echo": hex, "getBlockTime": int}


def _number_of(call: dict[str, Any]) -> int:
    value = call["params"][0]
    return int(value, 16) if isinstance(value, str) else value


@contextmanager
def stub_node() -> Iterator[StubNode]:
    def answer(asked: Asked) -> Reply:
        body = json.loads(asked.body)
        calls = body if isinstance(body, list) else [body]
        node.requests.append(calls)
        early = node.refusal(calls)
        if early is not None:
            return early
        refused = node.refusals(calls)
        replies = [
            {"jsonrpc": "2.0", "id": call["id"]}
            | ({"error": refused[place]} if place in refused else {"result": node.result_of(call)})
            for place, call in enumerate(calls)
        ]
        return Reply(json.dumps(replies if isinstance(body, list) else replies[0]).encode())

    with serve(answer) as server:
        node = StubNode(server.url)
        yield node


class Evm:
    """Calls of an EVM chain."""

    @staticmethod
    def rpc(*urls: str) -> EvmRpc:
        return EvmRpc(ChainName.BASE, chain_id=CHAIN_ID, urls=urls)

    @staticmethod
    def echo(value: int) -> RpcCall[int]:
        return RpcCall("echo", (hex(value),), read=lambda result: int(str(result), 16))


class Solana:
    """Calls of Solana."""

    @staticmethod
    def rpc(*urls: str) -> SolanaRpc:
        return SolanaRpc(urls, accepts=lambda genesis_hash: genesis_hash == GENESIS_HASH)

    @staticmethod
    def echo(value: int) -> SolanaRpcCall[int]:
        return SolanaRpcCall(GetBlockTime(value), number)


@pytest.fixture(params=[Evm, Solana])
def family(request: pytest.FixtureRequest) -> Any:
    return request.param


def run(family: Any, rpc: Any, values: Sequence[int]) -> None:
    calls = [family.echo(value) for value in values]
    rpc.run(*calls)
    assert [call.result for call in calls] == list(values)


@contextmanager
def known_node(family: Any) -> Iterator[tuple[StubNode, Any]]:
    """Run a node that was identified, and has recorded no request since."""
    with stub_node() as node:
        rpc = family.rpc(node.url)
        run(family, rpc, [0])
        node.requests.clear()
        yield node, rpc


def refused(error: dict[str, Any], *, status: int = 200) -> Reply:
    return Reply(json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode(), status=status)


def test_a_batch_that_is_refused_once_does_not_leave_single_calls_forever(family: Any) -> None:
    with stub_node() as node:
        rpc = family.rpc(node.url)
        run(family, rpc, [1, 2])
        node.refusal = lambda calls: refused({"code": -32000, "message": "unexpected EOF"}) if len(calls) > 1 else None
        run(family, rpc, [1, 2])
        node.refusal = lambda _calls: None
        for _ in range(25):
            run(family, rpc, range(16))
        node.requests.clear()
        run(family, rpc, range(16))

        assert node.sizes() == [16]


def test_the_refusal_of_a_single_call_leaves_the_batch_limit(family: Any) -> None:
    with known_node(family) as (node, rpc):
        node.refusal = lambda _calls: Reply(b"", status=413)
        with pytest.raises(Unreachable):
            run(family, rpc, [1])
        node.refusal = lambda _calls: None
        node.requests.clear()
        run(family, rpc, range(40))

        assert len(node.requests) == 1


@pytest.mark.parametrize(
    "refusal",
    [
        [{"jsonrpc": "2.0", "id": 0, "error": {"code": -32600, "message": "batch too large"}}],  # geth
        {"jsonrpc": "2.0", "error": {"code": -32005, "message": "Batch size limit exceeded"}},  # nethermind
        {"jsonrpc": "2.0", "error": {"code": -32000, "message": "batch limit 4 exceeded: 50 requests given"}},
        {"jsonrpc": "2.0", "error": {"code": -32014, "message": "maximum 4 calls in 1 batch"}},
    ],
    ids=["geth", "nethermind", "erigon", "op-node proxy"],
)
def test_a_batch_that_is_too_long_is_divided_whatever_the_form_of_the_refusal(family: Any, refusal: object) -> None:
    with stub_node() as node:
        node.refusal = lambda calls: Reply(json.dumps(refusal).encode()) if len(calls) > 4 else None
        run(family, family.rpc(node.url), range(50))

        assert [size for size in node.sizes()[-10:] if size > 4] == []


@pytest.mark.parametrize("error", [RATE_LIMIT, {"code": -32003, "message": "response too large"}])
def test_refused_elements_of_a_batch_are_requested_again_without_the_others(family: Any, error: dict[str, Any]) -> None:
    with known_node(family) as (node, rpc):
        node.refusals = lambda calls: dict.fromkeys(range(10, len(calls)), error)
        run(family, rpc, range(40))

        assert sorted(set(node.echoed())) == list(range(40))
        assert all(node.echoed().count(value) == 1 for value in range(10)), "an answer is not requested again"


def test_no_result_is_older_than_one_that_was_requested_before_it(family: Any) -> None:
    # A transaction count that is read before receipts proves nothing when it was read again after them.
    with known_node(family) as (node, rpc):
        node.refusals = lambda calls: {3: RATE_LIMIT} if len(calls) > 3 else {}
        run(family, rpc, range(8))

        answered_last = [len(node.echoed()) - node.echoed()[::-1].index(value) for value in range(8)]
        assert answered_last == sorted(answered_last)


def test_an_endpoint_over_its_rate_limit_fails_without_hammering(family: Any) -> None:
    with stub_node() as node, stub_node() as other:
        rpc = family.rpc(node.url, other.url)
        run(family, rpc, [0])
        node.requests.clear()
        node.refusals = lambda calls: dict.fromkeys(range(len(calls)), RATE_LIMIT)
        with capture_logs():
            run(family, rpc, range(30))
            run(family, rpc, range(30))

        assert len(node.requests) == 1
        assert len(other.requests) == 2


@pytest.mark.parametrize("headers", [{"Retry-After": "30"}, {"Retry-After": "Fri, 31 Dec 2027 23:59:59 GMT"}])
def test_retry_after_closes_an_endpoint(family: Any, headers: dict[str, str]) -> None:
    with known_node(family) as (node, rpc):
        node.refusal = lambda _calls: Reply(b"", status=429, headers=headers)
        with capture_logs():
            for _ in range(5):
                with pytest.raises(Unreachable):
                    run(family, rpc, [1])

        assert len(node.requests) == 1


@pytest.mark.parametrize(
    "value", ["-5", "1e9", "Fri, 31 Feb 2027 23:59:59 GMT", "Fri, 31 Dec 1999 23:59:59 GMT", "9" * 5_000, "\xb2", ""]
)
def test_an_unusable_retry_after_closes_nothing(family: Any, value: str) -> None:
    with known_node(family) as (node, rpc):
        node.refusal = lambda _calls: Reply(b"", status=503, headers={"Retry-After": value})
        with capture_logs(), pytest.raises(Unreachable):
            run(family, rpc, [1])
        node.refusal = lambda _calls: None
        run(family, rpc, [2])


@pytest.mark.parametrize(
    "distort",
    [
        lambda replies: replies[:-1],
        lambda replies: [*replies, replies[0]],
        lambda replies: [replies[0], *replies[:-1]],
        lambda replies: [{**reply, "id": str(reply["id"])} for reply in replies],
        lambda replies: [{**reply, "id": bool(reply["id"])} for reply in replies],
        lambda replies: [{**reply, "id": reply["id"] + 1} for reply in replies],
        lambda replies: [None, *replies[1:]],
        lambda replies: dict(enumerate(replies)),
    ],
    ids=["missing", "additional", "duplicate", "text", "truth value", "shifted", "null", "object"],
)
def test_a_batch_with_distorted_replies_is_never_used(
    family: Any, distort: Callable[[list[dict[str, Any]]], object]
) -> None:
    with stub_node() as node, stub_node() as honest:
        rpc = family.rpc(node.url, honest.url)
        run(family, rpc, [0])
        node.refusal = lambda calls: Reply(
            json.dumps(
                distort([{"jsonrpc": "2.0", "id": call["id"], "result": node.result_of(call)} for call in calls])
            ).encode()
        )
        with capture_logs():
            run(family, rpc, [1, 2, 3])

        assert honest.echoed() == [1, 2, 3]


def test_a_send_with_too_large_a_response_is_not_reported_as_refused() -> None:
    payer = Keypair()
    message = MessageV0.try_compile(payer.pubkey(), [], [], Hash.default())
    with stub_node() as node:
        chain = SolanaChain(SOLANA_DEPLOYMENTS["sandbox"], rpc_urls=[node.url])
        error = {"code": -32003, "message": "response too large"}
        node.refusals = lambda calls: {
            place: error for place, call in enumerate(calls) if call["method"] == "sendTransaction"
        }
        with capture_logs(), pytest.raises(OutcomeUnknown):
            chain.broadcast(bytes(VersionedTransaction(message, [payer])))


def test_an_endpoint_is_identified_again_after_an_outage(family: Any) -> None:
    with known_node(family) as (node, rpc):
        node.refusal = lambda _calls: Reply(b"", status=503)
        with capture_logs(), pytest.raises(Unreachable):
            run(family, rpc, [1])
        node.refusal = lambda _calls: None
        node.chain_id, node.genesis_hash = 1, "5" * 44
        with capture_logs() as logs, pytest.raises(Unreachable):
            run(family, rpc, [1])
        node.chain_id, node.genesis_hash = CHAIN_ID, GENESIS_HASH
        run(family, rpc, [1])

        assert node.requests[-1][0]["method"] in {"eth_chainId", "getGenesisHash"}
        assert [entry["event"] for entry in logs] in ([], ["rpc_endpoint_failed"])


def read_logs(rpc: EvmRpc, blocks: int, *, at_least: int = 0) -> int:
    """Return the block up to which the logs were read."""
    terms = EvmScanState(0, 0, 0, 0, is_unscanned=True).as_terms()
    watched = [WatchedAddress(WATCHED, terms)]
    return rpc.run_on_first(
        lambda endpoint: scanner.find_deposits(
            endpoint, USDC, watched, start_blocks={WATCHED: 0}, last=blocks, at_least=at_least
        )
    )[1]


def block_count(calls: Calls) -> int:
    (query,) = calls[-1]["params"]
    return int(query["toBlock"], 16) - int(query["fromBlock"], 16) + 1


@pytest.mark.parametrize(
    ("code", "message", "status"),
    [
        (-32005, "query returned more than 10000 results", 200),  # Infura
        (-32602, "range 2000 exceeds limit of 500", 200),  # Infura
        (-32600, "You can make eth_getLogs requests with up to a 500 block range.", 400),  # Alchemy
        (-32602, "Log response size exceeded. Reduce the block range.", 200),  # Alchemy
        (-32614, "eth_getLogs is limited to a 500 range", 413),  # QuickNode
        (-32005, "block range limit exceeded", 200),
        (-32005, "query timeout exceeded", 200),  # Infura
        (-32000, "query exceeds max results 20000, retry with the range 1-500", 200),  # reth
        (-32701, "exceed maximum block range: 500", 200),  # PublicNode
        (35, "ranges over 500 blocks are not supported on freetier", 200),  # dRPC
        (-32999, "a message of no known provider", 200),
    ],
)
def test_a_log_query_that_is_too_wide_is_narrowed(code: int, message: str, status: int) -> None:
    with known_node(Evm) as (node, rpc):
        error = {"code": code, "message": message}
        node.refusal = lambda calls: (
            Reply(json.dumps({"jsonrpc": "2.0", "id": 0, "error": error}).encode(), status=status)
            if block_count(calls) > 500
            else None
        )
        read_logs(rpc, 2_000)

        assert [block_count(calls) for calls in node.requests] == [2000, 1000, 500, 500, 500, 500]


def test_a_narrowed_log_range_widens_again() -> None:
    with known_node(Evm) as (node, rpc):
        error = {"code": -32000, "message": "internal error"}
        node.refusal = lambda calls: (
            Reply(json.dumps({"jsonrpc": "2.0", "id": 0, "error": error}).encode())
            if block_count(calls) > 500
            else None
        )
        read_logs(rpc, 2_000)
        node.refusal = lambda _calls: None
        read_logs(rpc, 40_000)
        node.requests.clear()
        read_logs(rpc, 4_000)

        assert len(node.requests) == 2


def only_ranges_up_to(most: int) -> Callable[[Calls], Reply | None]:
    error = {"code": -32600, "message": f"eth_getLogs requests with up to a {most} block range"}
    return lambda calls: refused(error) if calls[-1]["method"] == "eth_getLogs" and block_count(calls) > most else None


def test_a_long_pause_is_caught_up_in_portions_where_only_single_blocks_may_be_queried() -> None:
    with stub_node() as node:
        node.refusal = only_ranges_up_to(1)
        rpc = Evm.rpc(node.url)

        reached = read_logs(rpc, 50_000)
        assert 0 < reached < 2_000
        assert len(node.requests) < 100, "the pass ends within the time limit of its job"
        assert read_logs(rpc, 50_000, at_least=reached + 200) >= reached + 200


def test_a_settlement_by_a_third_party_is_found_where_logs_of_few_blocks_may_be_queried() -> None:
    deployment = replace(DEPLOYMENTS["sandbox", "base"], chain_id=CHAIN_ID)
    nonce, payer, recipient, tx_hash = "0x" + "5" * 64, "0x" + "6" * 40, "0x" + "7" * 40, "0x" + "8" * 64
    place = {"transactionHash": tx_hash, "blockNumber": hex(9_400), "blockHash": "0x" + "9" * 64}

    def log(index: int, topics: Sequence[object], data: str) -> dict[str, Any]:
        return {"address": deployment.usdc, "topics": topics, "data": data, "logIndex": hex(index), **place}

    used = AUTHORIZATION_USED_EVENT.topics(payer, bytes.fromhex(nonce[2:]))
    logs = [log(0, used, "0x"), log(1, TRANSFER_EVENT.topics(payer, recipient), f"0x{7:064x}")]
    with stub_node() as node:
        node.refusal = only_ranges_up_to(500)
        node.results["eth_blockNumber"] = lambda _call: hex(9_999)
        node.results["eth_getTransactionReceipt"] = lambda _call: {
            **place, "status": "0x1", "gasUsed": "0x1", "effectiveGasPrice": "0x1", "logs": logs,
        }  # fmt: skip
        node.results["eth_getLogs"] = lambda call: (
            logs[:1] if 9_400 in range(*(int(call["params"][0][end], 16) for end in ("fromBlock", "toBlock"))) else []
        )
        chain = EvmChain(ChainName.BASE, deployment, rpc_urls=[node.url], deposit_confirmations=1)
        facilitator = EvmFacilitator(chain, confirmations=1)
        terms = {"from": payer, "nonce": nonce}
        payer_claim = PaymentAuthorization(f"auth:base:{payer}:{nonce}", payer, recipient, 7, terms)

        assert facilitator.find_settlement(payer_claim) == tx_hash
        assert facilitator.find_settlement(replace(payer_claim, units=8)) is None


@pytest.mark.parametrize(
    "error",
    [
        {"code": -32005, "message": "daily request count exceeded, request rate limited"},  # Infura
        RATE_LIMIT,  # Alchemy
        {"code": -32007, "message": "50/second request limit reached - reduce calls per second"},  # QuickNode
        {"code": -32029, "message": "Too Many Requests"},
        {"code": -32005, "message": "limit exceeded"},
    ],
    ids=lambda error: error["message"],
)
def test_a_rate_limit_is_not_taken_for_a_log_query_that_is_too_wide(error: dict[str, Any]) -> None:
    with known_node(Evm) as (node, rpc):
        node.refusals = lambda _calls: {0: error}
        with capture_logs(), pytest.raises(Unreachable):
            read_logs(rpc, 2_000)
        assert len(node.requests) == 1
        node.refusals = lambda _calls: {}
        read_logs(rpc, 2_000)

        assert len(node.requests) == 2
