"""The search for the transaction that used a message's nonce, in the logs of a node."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from structlog.testing import capture_logs

from app.adapters.bridges.cctp import messages
from app.adapters.bridges.cctp.evm_chain import MintSearch
from app.adapters.bridges.deployments import DEPLOYMENTS
from app.adapters.evm.calls import EvmRpc
from app.core.chains import ChainName
from app.ports.bridges import ArrivalNotFound, BridgeArrival
from tests.support.loopback_http import Asked, Reply, serve
from tests.unit.test_cctp import BURN, message_of

_TRANSMITTER = DEPLOYMENTS["sandbox"].transmitter
_HEAD, _USED_AT = 200_000, 1_000
_LOG = {
    "blockNumber": hex(_USED_AT), "blockHash": "0x" + "cd" * 32, "transactionHash": "0x" + "ab" * 32,
    "address": _TRANSMITTER, "topics": ["0x" + "01" * 32], "data": "0x", "logIndex": "0x0",
}  # fmt: skip
_RECEIPT = {**_LOG, "status": "0x1", "gasUsed": "0x1", "effectiveGasPrice": "0x1", "logs": []}


def search(
    *, head: int = _HEAD, used_at: int | None = _USED_AT, log_range: int = 2_000, has_old_states: bool = True
) -> tuple[BridgeArrival | ArrivalNotFound, Counter[str]]:
    """Return what is found at a node, and how often each method was called."""
    asked: Counter[str] = Counter()

    def answer(request: Asked) -> Reply:
        sent = json.loads(request.body)
        return Reply(json.dumps([*map(reply, sent)] if isinstance(sent, list) else reply(sent)).encode())

    def reply(call: dict[str, Any]) -> dict[str, Any]:
        asked[call["method"]] += 1
        return {"jsonrpc": "2.0", "id": call["id"], **result_of(call)}

    def result_of(call: dict[str, Any]) -> dict[str, Any]:
        log = _LOG if used_at is None else {**_LOG, "blockNumber": hex(used_at)}
        if call["method"] == "eth_getLogs":
            first, last = (int(call["params"][0][end], 16) for end in ("fromBlock", "toBlock"))
            if last - first >= log_range:
                return {"error": {"code": -32600, "message": f"up to a {log_range} block range"}}
            return {"result": [log] if used_at is not None and first <= used_at <= last else []}
        if call["method"] == "eth_call":
            if not has_old_states:
                return {"error": {"code": -32000, "message": "missing trie node"}}
            is_used = used_at is not None and int(call["params"][1], 16) >= used_at
            return {"result": f"0x{int(is_used):064x}"}
        results = {
            "eth_chainId": hex(8453),
            "eth_blockNumber": hex(head),
            "eth_getTransactionReceipt": {**_RECEIPT, **log},
        }
        return {"result": results[call["method"]]}

    with serve(answer) as server, capture_logs():
        rpc = EvmRpc(ChainName.BASE, chain_id=8453, urls=[server.url])
        found = MintSearch(_TRANSMITTER, messages.read(message_of(BURN)), since=0).run(rpc, hint=None)
    return found, asked


def test_a_nonce_that_another_burn_has_used_is_not_looked_for_in_newer_blocks() -> None:
    found, asked = search()
    # Not "unreadable", for which an operator would add a node.
    assert (found, asked["eth_getLogs"]) == (ArrivalNotFound.NOT_FOUND, 1)


def test_the_search_ends_where_the_ranges_of_a_node_would_never() -> None:
    found, asked = search(head=10**7, used_at=None, has_old_states=False)
    assert (found, asked["eth_getLogs"]) == (ArrivalNotFound.UNREADABLE, 200)


def test_a_late_mint_is_found_by_old_states_where_a_node_gives_the_logs_of_few_blocks() -> None:
    found, asked = search(used_at=150_000, log_range=10)
    assert (found, asked["eth_getTransactionReceipt"]) == (ArrivalNotFound.NOT_FOUND, 1), "its transaction was read"
    assert asked["eth_call"] <= 18
    found, asked = search(used_at=150_000, log_range=10, has_old_states=False)
    assert (found, asked["eth_getTransactionReceipt"]) == (ArrivalNotFound.UNREADABLE, 0)
