"""Relay's API: a quote with the deposit that it takes, and how an order stands. It needs no key.

Source: docs.relay.link, `POST /quote/v2` and `GET /intents/status/v3`; without a key 50 quotes a minute.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

import structlog

from app.adapters.http_client import Answer, HttpClient
from app.adapters.relay import calls
from app.adapters.relay.calls import Wanted
from app.adapters.relay.orders import Chains, Fate, Promise, Standing
from app.core.addresses import ZERO_EVM_ADDRESS
from app.ports.bridges import Ask
from app.ports.chain import Terms
from app.ports.errors import Rejected, Unreachable

_CONNECT_SECONDS = 3.0
_TOTAL_SECONDS = 10.0
_FATES = {"success": Fate.PAID, "refund": Fate.REFUNDED}
_log = structlog.get_logger(__name__)


class RelayOrders:
    """One base address of the API. Opens no connection before the first question."""

    name = "relay"
    route = "Relay"

    def __init__(self, base_url: str) -> None:
        """Take the API's base."""
        self._url = base_url.rstrip("/")
        self._http = HttpClient(connect_seconds=_CONNECT_SECONDS, total_seconds=_TOTAL_SECONDS)

    def promise(self, ask: Ask, chains: Chains) -> Promise:
        """Ask for an order. Raises: Rejected."""
        asked = {
            "user": ask.sender, "recipient": ask.recipient,
            "originChainId": chains.source, "destinationChainId": chains.destination,
            "originCurrency": ZERO_EVM_ADDRESS, "destinationCurrency": ZERO_EVM_ADDRESS,
            "amount": str(ask.amount.units), "tradeType": "EXACT_INPUT",
        }  # fmt: skip
        try:
            answer = self._http.post(f"{self._url}/quote/v2", json.dumps(asked).encode())
            body = answer.json()
        except Unreachable as failure:
            _log.warning("relay_unreachable", reason=failure.reason)
            raise Rejected("quote_unavailable") from None
        refuse_status(answer, body, name=self.name)
        try:
            return _read(body, ask, chains)
        except (LookupError, TypeError, ValueError, AttributeError):
            _log.warning("relay_unreadable")
            raise Rejected("quote_unavailable") from None

    def standing(self, terms: Terms, source_hash: str, chains: Chains) -> Standing:  # noqa: ARG002 - its id finds it
        """Ask how an order stands. Raises: Unreachable."""
        answer = self._http.get(
            f"{self._url}/intents/status/v3", query={"requestId": str(terms["request_id"])}
        )
        if answer.status == HTTPStatus.NOT_FOUND:
            return Standing(Fate.OPEN, note="relay_unknown")
        body = answer.json()
        if answer.status != HTTPStatus.OK:
            raise Unreachable("bridge_service")
        try:
            status = str(body["status"])
            hashes = [calls.order_id(tx_hash) for tx_hash in body.get("txHashes") or []]
        except (LookupError, TypeError, ValueError, AttributeError):
            raise Unreachable("bridge_service") from None
        return Standing(
            _FATES.get(status, Fate.OPEN), note=f"relay_{status}"[:40], tx_hash=hashes[-1] if hashes else None
        )


def refuse_status(answer: Answer, body: object, *, name: str) -> None:
    """Refuse an answer that is no quote. Raises: Rejected("amount_too_small", "quote_unavailable")."""
    if answer.status == HTTPStatus.OK:
        return
    words = str(body).lower()
    is_small = answer.status < HTTPStatus.INTERNAL_SERVER_ERROR and (
        "too_low" in words or "too low" in words or "too small" in words
    )
    _log.warning("bridge_quote_refused", service=name, status=answer.status)
    raise Rejected("amount_too_small" if is_small else "quote_unavailable")


def _read(body: Any, ask: Ask, chains: Chains) -> Promise:
    """Read a quote of exactly one deposit. Raises: Rejected; LookupError, TypeError, ValueError for another shape."""
    if [step["kind"] for step in body["steps"]] != ["transaction"] or len(body["steps"][0]["items"]) != 1:
        raise Rejected("unsafe_instructions")
    (step,) = body["steps"]
    (item,) = step["items"]
    said = item["data"]
    wanted = Wanted(
        str(said["to"]), int(said["value"]), bytes.fromhex(str(said["data"])[2:]), int(said["chainId"])
    )
    out = body["details"]["currencyOut"]
    return Promise(
        target=calls.deposit(wanted, ask, source_id=chains.source),
        minimum_units=int(out.get("minimumAmount") or out["amount"]),
        seconds=int(body["details"].get("timeEstimate") or 0),
        terms={"request_id": calls.order_id(step["requestId"])},
    )
