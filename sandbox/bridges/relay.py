"""Stand-ins for Relay and LI.FI: ether deposited on one chain under an order id is paid out on the other."""

import json
import secrets
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eth_utils.crypto import keccak

from app.adapters.bridges.deployments import DEPOSITORY, LIFI_DIAMOND
from sandbox.evm import roles
from sandbox.evm.abi import call_data, decode_result
from sandbox.evm.rpc import NodeClient

_DEPOSIT_TOPIC = "0x" + keccak(text="RelayNativeDeposit(address,uint256,bytes32)").hex()
_ZERO_ADDRESS = "0x" + "00" * 20
_FEE_BPS = 10
_FEE_WEI = 10**14
_LIFI_BRIDGE = (
    "startBridgeTokensViaRelayDepository("
    "(bytes32,string,string,address,address,address,uint256,uint256,bool,bool),(bytes32,address))"
)


class InvalidRequest(ValueError):
    """The request is invalid; the message is returned to the client."""


class Relay:
    """Quotes, orders and fills; an order is filled once, when its status is requested."""

    def __init__(self, urls: Mapping[str, str], *, state: Path | None = None) -> None:
        """`state` is the file of orders and fills."""
        self._nodes: dict[int, NodeClient] = {}
        for name, url in urls.items():
            if name != "solana":
                node = NodeClient(url)
                self._nodes[int(node.call("eth_chainId"), 16)] = node
        self._state = state
        self._orders: dict[str, dict[str, Any]] = {}
        if state is not None and state.exists():
            self._orders = json.loads(state.read_text())
        self._lock = threading.Lock()
        self.refunds = False
        """Whether deposits are refunded instead of filled."""
        self.is_stalled = False
        """Whether deposits are ignored."""

    def quote(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Answer POST /quote/v2 for native coins."""
        source, destination = int(body["originChainId"]), int(body["destinationChainId"])
        amount, output = self._offer(source, destination, str(body["amount"]))
        if {body["originCurrency"], body["destinationCurrency"]} != {_ZERO_ADDRESS}:
            raise InvalidRequest("native coins only")
        order_id = self._order(source, destination, body["recipient"], output, refund_to=body.get("refundTo"))
        deposit = {
            "from": body["user"], "to": DEPOSITORY.lower(),
            "data": call_data("depositNative(address,bytes32)", body["user"], bytes.fromhex(order_id[2:])),
            "value": str(amount), "chainId": source,
        }  # fmt: skip
        check = {"endpoint": f"/intents/status/v3?requestId={order_id}", "method": "GET"}
        return {
            "steps": [
                {
                    "id": "deposit", "kind": "transaction", "requestId": order_id,
                    "items": [{"status": "incomplete", "data": deposit, "check": check}],
                }
            ],
            "fees": {"relayer": {"amount": str(amount - output)}},
            "details": {
                "currencyIn": {"amount": str(amount)},
                "currencyOut": {"amount": str(output), "minimumAmount": str(output)},
                "timeEstimate": 12,
            },
        }  # fmt: skip

    def status(self, order_id: str) -> dict[str, Any] | None:
        """Answer GET /intents/status/v3, and fill the order if its deposit is there."""
        with self._lock:
            order = self._orders.get(order_id)
            if order is None:
                return None
            self._fill(order_id, order)
            return {
                "status": order["status"], "inTxHashes": order["in"], "txHashes": order["out"],
                "originChainId": order["source"], "destinationChainId": order["destination"],
            }  # fmt: skip

    def lifi_quote(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Answer GET /v1/quote."""
        source, destination = int(query["fromChain"]), int(query["toChain"])
        amount, output = self._offer(source, destination, query["fromAmount"])
        order_id = self._order(source, destination, query["toAddress"], output, refund_to=query["fromAddress"])
        bridge = (
            secrets.token_bytes(32), "relaydepository", "purser", _ZERO_ADDRESS, _ZERO_ADDRESS, query["toAddress"],
            amount, destination, False, False,
        )  # fmt: skip
        deposit = (bytes.fromhex(order_id[2:]), query["fromAddress"])
        return {
            "id": order_id,
            "type": "lifi",
            "tool": "relaydepository",
            "action": {"fromChainId": source, "toChainId": destination, "fromAmount": str(amount)},
            "estimate": {
                "toAmount": str(output), "toAmountMin": str(output), "fromAmount": str(amount),
                "approvalAddress": LIFI_DIAMOND, "executionDuration": 12,
            },
            "transactionRequest": {
                "to": LIFI_DIAMOND, "data": call_data(_LIFI_BRIDGE, bridge, deposit), "value": hex(amount),
                "chainId": source, "from": query["fromAddress"],
            },
        }  # fmt: skip

    def lifi_status(self, tx_hash: str) -> dict[str, Any]:
        """Answer GET /v1/status."""
        with self._lock:
            for order_id, order in self._orders.items():
                self._fill(order_id, order)
                if tx_hash in order["in"]:
                    return _as_lifi(order)
        return {"status": "NOT_FOUND"}

    def _offer(self, source: int, destination: int, amount: str) -> tuple[int, int]:
        if source not in self._nodes or destination not in self._nodes or source == destination:
            raise InvalidRequest("no such route")
        units = int(amount)
        output = units - units * _FEE_BPS // 10_000 - _FEE_WEI
        if output <= 0:
            raise InvalidRequest("AMOUNT_TOO_LOW")
        return units, output

    def _order(self, source: int, destination: int, recipient: str, output: int, *, refund_to: str | None) -> str:
        order_id = "0x" + secrets.token_hex(32)
        with self._lock:
            self._orders[order_id] = {
                "source": source, "destination": destination, "recipient": recipient, "output": str(output),
                "refund_to": refund_to, "status": "waiting", "in": [], "out": [],
            }  # fmt: skip
            self._save()
        return order_id

    def _fill(self, order_id: str, order: dict[str, Any]) -> None:
        if order["status"] != "waiting":
            return
        found = self._deposit(order["source"], order_id)
        if found is None:
            return
        amount, tx_hash = found
        order["in"] = [tx_hash]
        if self.is_stalled:
            return
        refund_to = order.get("refund_to")
        if self.refunds and refund_to is None:
            order["status"] = "failure"
            self._save()
            return
        # Recorded before it is paid: a second payment is worse than none.
        order["status"] = "refund" if self.refunds else "success"
        self._save()
        where, to, units = (
            (order["source"], refund_to, amount)
            if self.refunds
            else (order["destination"], order["recipient"], int(order["output"]))
        )
        node = self._nodes[where]
        relayer = node.call("eth_accounts")[roles.RELAYER]
        paid = node.call("eth_sendTransaction", {"from": relayer, "to": to, "value": hex(units)})
        order["out"] = [paid]
        self._save()

    def _deposit(self, chain_id: int, order_id: str) -> tuple[int, str] | None:
        logs = self._nodes[chain_id].call(
            "eth_getLogs", {"address": DEPOSITORY, "topics": [_DEPOSIT_TOPIC], "fromBlock": "0x0", "toBlock": "latest"}
        )
        for log in logs:
            _depositor, amount, named = decode_result("(address,uint256,bytes32)", log["data"])
            if "0x" + named.hex() == order_id:
                return amount, log["transactionHash"]
        return None

    def _save(self) -> None:
        if self._state is not None:
            self._state.write_text(json.dumps(self._orders))


def _as_lifi(order: Mapping[str, Any]) -> dict[str, Any]:
    states = {"success": ("DONE", "COMPLETED"), "refund": ("DONE", "REFUNDED")}
    status, substatus = states.get(order["status"], ("PENDING", "WAIT_DESTINATION_TRANSACTION"))
    receiving = {"txHash": order["out"][0]} if order["out"] else None
    return {
        "status": status, "substatus": substatus, "sending": {"txHash": order["in"][0]}, "receiving": receiving,
    }  # fmt: skip
