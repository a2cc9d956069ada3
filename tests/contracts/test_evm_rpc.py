"""JSON-RPC of Ethereum and Base as nodes and providers document their errors and limits.

Read on 2026-11-23:
Alchemy https://www.alchemy.com/docs/reference/error-reference, https://www.alchemy.com/docs/deep-dive-into-eth_getlogs;
Infura https://docs.metamask.io/services/how-to/avoid-rate-limiting,
https://docs.metamask.io/developer-tools/dashboard/how-to/secure-an-api/set-rate-limits and
https://github.com/ethers-io/ethers.js/issues/4703 (log queries);
QuickNode https://www.quicknode.com/docs/ethereum/error-references, https://www.quicknode.com/docs/base/eth_getLogs;
geth https://github.com/ethereum/go-ethereum/blob/master/core/error.go, core/txpool/errors.go, eth/filters/api.go;
reth https://github.com/paradigmxyz/reth/blob/main/crates/rpc/rpc-eth-types/src/error/mod.rs;
erigon https://github.com/erigontech/erigon/blob/main/txnprovider/txpool/txpoolcfg/txpoolcfg.go (`DiscardReason`);
besu https://github.com/hyperledger/besu/blob/main/ethereum/api/src/main/java/org/hyperledger/besu/ethereum/api/jsonrpc/
internal/response/RpcErrorType.java.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.adapters.evm.calls import EvmRpc, head, read_logs
from app.adapters.evm.send.refusals import ALREADY_KNOWN, SEND_REFUSALS, is_revert
from app.adapters.jsonrpc.calls import RpcError, RpcErrorKind
from app.adapters.jsonrpc.endpoint import RpcEndpoint
from app.core.chains import ChainName
from app.ports.errors import Unreachable
from tests.support.loopback_http import Asked, Reply, serve

BATCH, CALL = RpcErrorKind.BATCH_LIMIT, RpcErrorKind.CALL
RATE_LIMIT, UNHEALTHY = RpcErrorKind.RATE_LIMIT, RpcErrorKind.UNHEALTHY
USDC = "0xA0b86991c6218b36c1d19D4a2e9Eb0cE3606eB48"


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        # Alchemy.
        (429, "Your app has exceeded its compute units per second capacity.", RATE_LIMIT),
        (429, "Your app has exceeded its concurrent requests capacity.", RATE_LIMIT),
        (429, "Monthly capacity limit exceeded.", RATE_LIMIT),
        (-32602, "Log response size exceeded. You can make eth_getLogs requests with up to a 2K block range", CALL),
        (-32600, "Under the Free tier plan, you can make eth_getLogs requests with up to a 10 block range.", CALL),
        # Infura.
        (429, "Too Many Requests", RATE_LIMIT),
        (-32005, "daily request count exceeded, request rate limited", RATE_LIMIT),
        (-32005, "project ID request rate exceeded", RATE_LIMIT),
        (-32005, "query returned more than 10000 results. Try with this block range [0xBDE5F8, 0x102DBCC].", CALL),
        (-32005, "query timeout exceeded", CALL),
        # QuickNode.
        (-32007, "50/second request limit reached - reduce calls per second or upgrade your account", RATE_LIMIT),
        (-32614, "eth_getLogs is limited to a 10,000 range", CALL),
        (-32614, "eth_getLogs is limited to a 5 range", CALL),
        # geth, reth: a node of a pool that lags behind the one that reported the head.
        (-32602, "block range extends beyond current head block", UNHEALTHY),
        (-32011, "no backend is currently healthy to serve traffic", UNHEALTHY),
        # Batches: geth, besu, Base's proxy.
        (-32600, "batch too large", BATCH),
        (-32003, "response too large", BATCH),
        (-32005, "Number of requests exceeds max batch size", BATCH),
        (-32014, "too many RPC calls in batch request", BATCH),
        # Besu has the code of a rate limit for these too.
        (-32005, "Requested range exceeds maximum RPC range limit", CALL),
        (-32005, "Transaction gas limit exceeds block gas limit", CALL),
        # States that a node no longer keeps.
        (-32000, "missing trie node 5c2a (path ) state 0x5c2a is not available", CALL),
        (-32000, "header not found", CALL),
        (-32000, "historical state 5c2a is not available", CALL),
        # Methods that a node or plan lacks.
        (-32601, "the method eth_simulateV1 does not exist/is not available", CALL),
        (-32600, "Unsupported method: eth_simulateV1", CALL),
    ],
)
def test_errors_are_about_the_endpoint_the_batch_or_the_call(code: int, message: str, kind: RpcErrorKind) -> None:
    assert RpcError(code, message).kind is kind


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        # geth and op-geth, reth, and the providers that return their messages.
        ("already known", ALREADY_KNOWN),
        ("nonce too low: address 0x70997970C51812dc3A010C7d01b50e0d17dc79C8, tx: 4 state: 5", "nonce_too_low"),
        ("nonce too low: next nonce 5, tx nonce 4", "nonce_too_low"),
        ("replacement transaction underpriced: new tx gas fee cap 1 <= 2 queued", "replacement_underpriced"),
        ("transaction underpriced: tip needed 1000000, tip permitted 1", "fee_too_low"),
        ("max fee per gas less than block base fee: address 0x7099, maxFeePerGas: 1, baseFee: 7", "fee_too_low"),
        ("insufficient funds for gas * price + value: balance 0, tx cost 21000, overshot 21000", "insufficient_funds"),
        ("intrinsic gas too low: gas 1, minimum needed 21000", "invalid_transaction"),
        ("transaction gas limit too high (cap: 16777216, tx: 30000000)", "invalid_transaction"),
        ("exceeds block gas limit", "invalid_transaction"),
        ("invalid chain id for signer: have 1 want 8453", "wrong_chain"),
        ("txpool is full", "pool_full"),
        # erigon.
        ("ALREADY_EXISTS: already known", ALREADY_KNOWN),
        ("INTERNAL_ERROR: existing tx with same hash", ALREADY_KNOWN),
        ("INTERNAL_ERROR: nonce too low", "nonce_too_low"),
        ("FEE_TOO_LOW: underpriced", "fee_too_low"),
        ("INTERNAL_ERROR: fee too low", "fee_too_low"),
        ("INTERNAL_ERROR: could not replace existing tx", "replacement_underpriced"),
        ("INTERNAL_ERROR: insufficient funds", "insufficient_funds"),
        ("INTERNAL_ERROR: baseFee sub-pool is full", "pool_full"),
        # besu.
        ("Known transaction", ALREADY_KNOWN),
        ("Nonce too low", "nonce_too_low"),
        ("Replacement transaction underpriced", "replacement_underpriced"),
        ("Gas price below configured minimum gas price", "fee_too_low"),
        ("Gas price below current base fee", "fee_too_low"),
        ("Upfront cost exceeds account balance", "insufficient_funds"),
        ("Max priority fee per gas exceeds max fee per gas", "invalid_transaction"),
        ("Transaction gas limit exceeds block gas limit", "invalid_transaction"),
        ("Wrong chainId", "wrong_chain"),
        # nethermind.
        ("AlreadyKnown", ALREADY_KNOWN),
        ("OldNonce", "nonce_too_low"),
        ("ReplacementNotAllowed", "replacement_underpriced"),
        ("FeeTooLow", "fee_too_low"),
        ("InsufficientFunds", "insufficient_funds"),
        # Whether it was accepted is unknown.
        ("Internal error", None),
        ("request timed out", None),
    ],
)
def test_a_refusal_has_the_same_reason_from_every_client(message: str, reason: str | None) -> None:
    assert RpcError(-32000, message).look_up(SEND_REFUSALS) == reason


@pytest.mark.parametrize(
    ("code", "message", "reverted"),
    [
        (3, "execution reverted: ERC20: transfer amount exceeds balance", True),
        (-32000, "execution reverted", True),
        (-32000, "gas required exceeds allowance (0)", True),
        (-32000, "insufficient funds for gas * price + value: address 0x7099 have 0 want 1", True),
        (-32015, "VM execution error.", True),
        (-32000, "header not found", False),
        (429, "Your app has exceeded its compute units per second capacity.", False),
    ],
)
def test_a_failed_estimate_is_distinguished_from_a_failing_node(code: int, message: str, *, reverted: bool) -> None:
    assert is_revert(RpcError(code, message)) is reverted


def _endpoint(url: str) -> RpcEndpoint:
    return EvmRpc(ChainName.BASE, chain_id=8453, urls=[url]).endpoints[0]


@pytest.mark.parametrize(
    ("status", "error", "headers", "reason"),
    [
        (402, {"code": 402, "event": -33000, "message": "Payment Required"}, {}, "http_402"),  # Infura: daily credits
        (429, {"code": 429, "event": -33300, "message": "Too Many Requests"}, {}, "http_429"),  # Infura
        (429, {"code": 429, "message": "exceeded its compute units"}, {"Retry-After": "1"}, "http_429"),  # Alchemy
        (429, {"code": -32007, "message": "50/second request limit reached"}, {}, "http_429"),  # QuickNode
        (401, {"code": -32600, "message": "Must be authenticated!"}, {}, "http_401"),  # Alchemy
        (403, {"code": -32002, "message": "rejected due to project ID settings"}, {}, "http_403"),  # Infura
        (503, {"code": -32011, "message": "no backend is currently healthy"}, {}, "http_503"),  # Base
        (200, {"code": 429, "message": "exceeded its compute units per second capacity"}, {}, "rate_limited"),
    ],
)
def test_a_refusing_provider_fails_over_and_certainly_sent_nothing(
    status: int, error: dict[str, Any], headers: dict[str, str], reason: str
) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 0, "error": error}).encode()

    def answer(asked: Asked) -> Reply:
        first = json.loads(asked.body)
        numbers = [call["id"] for call in (first if isinstance(first, list) else [first])]
        replies = [{"jsonrpc": "2.0", "id": number, "result": hex(8453)} for number in numbers]
        return Reply(json.dumps(replies if isinstance(first, list) else replies[0]).encode())

    with serve(lambda _asked: Reply(body, status, headers)) as over, serve(answer) as other, capture_logs() as logs:
        rpc = EvmRpc(ChainName.BASE, chain_id=8453, urls=[over.url, other.url])
        call = head()
        rpc.run(call)
        assert call.result == 8453
    assert logs[0]["reason"] == reason


@pytest.mark.parametrize(
    ("allowed", "status", "code", "message"),
    [
        (10, 400, -32600, "Under the Free tier plan, you can make eth_getLogs requests with up to a 10 block range."),
        (5, 413, -32614, "eth_getLogs is limited to a 5 range"),
        (1_000, 200, -32005, "query returned more than 10000 results. Try with this block range [0x1, 0x2]."),
    ],
)
def test_log_queries_shrink_to_the_documented_ranges(allowed: int, status: int, code: int, message: str) -> None:
    widths = []

    def answer(asked: Asked) -> Reply:
        calls = json.loads(asked.body)
        calls = calls if isinstance(calls, list) else [calls]
        call = calls[-1]
        if call["method"] == "eth_chainId":
            return Reply(json.dumps({"jsonrpc": "2.0", "id": 0, "result": hex(8453)}).encode())
        first, last = (int(call["params"][0][end], 16) for end in ("fromBlock", "toBlock"))
        if last - first + 1 > allowed:
            error = {"code": code, "message": message, "data": {"limit": allowed}}
            return Reply(json.dumps({"jsonrpc": "2.0", "id": 0, "error": error}).encode(), status)
        widths.append(last - first + 1)
        return Reply(json.dumps({"jsonrpc": "2.0", "id": 0, "result": []}).encode())

    with serve(answer) as server:
        endpoint = _endpoint(server.url)
        endpoint.identify()
        assert [until for until, _ in read_logs(endpoint, USDC, (), first=1, last=2_000)][-1] == 2_000
    assert sum(widths) == 2_000
    assert max(widths) > allowed // 2


def test_a_node_behind_the_head_does_not_shrink_log_queries() -> None:
    def answer(asked: Asked) -> Reply:
        call = json.loads(asked.body)
        reply: dict[str, Any] = {"result": hex(8453)}
        if call["method"] == "eth_getLogs":
            reply = {"error": {"code": -32602, "message": "block range extends beyond current head block"}}
        return Reply(json.dumps({"jsonrpc": "2.0", "id": 0, **reply}).encode())

    with serve(answer) as server, capture_logs():
        rpc = EvmRpc(ChainName.BASE, chain_id=8453, urls=[server.url])
        rpc.endpoints[0].identify()
        with pytest.raises(Unreachable):
            rpc.run_on_first(lambda endpoint: [*read_logs(endpoint, USDC, (), first=1, last=2_000)])
        assert rpc.endpoints[0].log_range.value == 2_000
