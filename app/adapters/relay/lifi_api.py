"""LI.FI's API, of which only the way through Relay's depository is taken. It needs no key.

Source: docs.li.fi, `GET /quote` and `GET /status`; without a key 75 quotes in two hours.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import structlog

from app.adapters.http_client import HttpClient
from app.adapters.relay import calls
from app.adapters.relay.calls import Wanted
from app.adapters.relay.orders import Chains, Fate, Promise, Standing
from app.adapters.relay.relay_api import refuse_status
from app.core.addresses import ZERO_EVM_ADDRESS
from app.ports.bridges import Ask
from app.ports.chain import Terms
from app.ports.errors import Rejected, Unreachable

_CONNECT_SECONDS = 3.0
_TOTAL_SECONDS = 12.0
_BRIDGE = "relaydepository"
_log = structlog.get_logger(__name__)


class LifiOrders:
    """One base address of the API. Opens no connection before the first question."""

    name = "lifi"
    route = "LI.FI, Relay"

    def __init__(self, base_url: str) -> None:
        """Take the API's base."""
        self._url = base_url.rstrip("/")
        self._http = HttpClient(connect_seconds=_CONNECT_SECONDS, total_seconds=_TOTAL_SECONDS)

    def promise(self, ask: Ask, chains: Chains) -> Promise:
        """Ask for an order. Raises: Rejected."""
        query = {
            "fromChain": str(chains.source), "toChain": str(chains.destination),
            "fromToken": ZERO_EVM_ADDRESS, "toToken": ZERO_EVM_ADDRESS,
            "fromAmount": str(ask.amount.units), "fromAddress": ask.sender, "toAddress": ask.recipient,
            "slippage": "0.005", "order": "FASTEST", "allowBridges": _BRIDGE,
        }  # fmt: skip
        try:
            answer = self._http.get(f"{self._url}/quote", query=query)
            body = answer.json()
        except Unreachable as failure:
            _log.warning("lifi_unreachable", reason=failure.reason)
            raise Rejected("quote_unavailable") from None
        refuse_status(answer, body, name=self.name)
        try:
            return _read(body, ask, chains)
        except (LookupError, TypeError, ValueError, AttributeError):
            _log.warning("lifi_unreadable")
            raise Rejected("quote_unavailable") from None

    def standing(self, terms: Terms, source_hash: str, chains: Chains) -> Standing:  # noqa: ARG002 - the hash finds it
        """Ask how an order stands. Raises: Unreachable."""
        query = {
            "txHash": source_hash, "fromChain": str(chains.source), "toChain": str(chains.destination),
        }  # fmt: skip
        answer = self._http.get(f"{self._url}/status", query=query)
        body = answer.json()
        if answer.status not in (HTTPStatus.OK, HTTPStatus.NOT_FOUND):
            raise Unreachable("bridge_service")
        try:
            status, substatus = str(body.get("status")), str(body.get("substatus"))
            receiving = body.get("receiving") or {}
            tx_hash = calls.order_id(receiving["txHash"]) if receiving.get("txHash") else None
        except (LookupError, TypeError, ValueError, AttributeError):
            raise Unreachable("bridge_service") from None
        fate = Fate.OPEN
        if status == "DONE":
            # Only these two say what became of it; PARTIAL is another token than was asked for.
            fate = {"COMPLETED": Fate.PAID, "REFUNDED": Fate.REFUNDED}.get(substatus, Fate.OPEN)
        return Standing(
            fate, note=f"lifi_{substatus if substatus != 'None' else status}".lower()[:40], tx_hash=tx_hash
        )


def _read(body: Any, ask: Ask, chains: Chains) -> Promise:
    """Read a quote. Raises: Rejected; LookupError, TypeError, ValueError for another shape."""
    said = body["transactionRequest"]
    wanted = Wanted(
        str(said["to"]),
        int(str(said["value"]), 16),
        bytes.fromhex(str(said["data"])[2:]),
        int(said["chainId"]),
    )
    target = calls.deposit_by_lifi(wanted, ask, source_id=chains.source, destination_id=chains.destination)
    return Promise(
        target=target,
        minimum_units=int(body["estimate"]["toAmountMin"]),
        seconds=int(body["estimate"].get("executionDuration") or 0),
        terms={},
    )
