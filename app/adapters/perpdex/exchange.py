"""The exchange over HTTP: one POST for each query; foreign failures are translated here only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from http import HTTPStatus
from pathlib import Path

from app.adapters.evm.contracts.dead_ends import dead_end
from app.adapters.http_client import HttpClient, HttpResponse
from app.adapters.jsonrpc.outage_log import OutageLog
from app.adapters.perpdex import payloads, responses
from app.adapters.perpdex.deployments import PerpdexDeployment
from app.ports.errors import Rejected, Unreachable
from app.ports.perpdex import Action, ActionPayload, BundledMarkets, Json, PerpdexQuery, PerpdexReply, PerpdexTopic

_CONNECT_SECONDS = 2.0
_TOTAL_SECONDS = 5.0
_MAX_BYTES = 2**23
"""Two thousand fills are less than a megabyte."""
_TYPES: Mapping[PerpdexTopic, str] = {
    PerpdexTopic.ACCOUNT: "clearinghouseState",
    PerpdexTopic.SPOT: "spotClearinghouseState",
    PerpdexTopic.ORDERS: "frontendOpenOrders",
    PerpdexTopic.FILLS: "userFills",
    PerpdexTopic.MARKETS: "meta",
    PerpdexTopic.FUNDING: "metaAndAssetCtxs",
    PerpdexTopic.MIDS: "allMids",
    PerpdexTopic.BOOK: "l2Book",
}
# "Rate limits": these weigh 2, every other query that is used here weighs 20.
_LIGHT = frozenset({PerpdexTopic.ACCOUNT, PerpdexTopic.SPOT, PerpdexTopic.MIDS, PerpdexTopic.BOOK})
_LIGHT_WEIGHT = 2
_HEAVY_WEIGHT = 20
_ROWS_PER_WEIGHT = 20
_BUNDLED = json.loads(Path(__file__).with_name("markets.json").read_text())


class HyperliquidExchange:
    """Sends `POST {url}/info`; usable from many threads."""

    parse_markets = staticmethod(responses.parse_markets)
    parse_orders = staticmethod(responses.parse_orders)
    dead_end = staticmethod(dead_end)

    def __init__(self, deployment: PerpdexDeployment, *, url: str = "") -> None:
        self._deployment = deployment
        self._info_url = f"{(url or deployment.url).rstrip('/')}/info"
        self._http = HttpClient(connect_seconds=_CONNECT_SECONDS, total_seconds=_TOTAL_SECONDS, max_bytes=_MAX_BYTES)
        self._outage = OutageLog("exchange", name="perpdex")

    def query_weight(self, query: PerpdexQuery) -> int:
        return _LIGHT_WEIGHT if query.topic in _LIGHT else _HEAVY_WEIGHT

    def fetch(self, query: PerpdexQuery) -> PerpdexReply:
        """Send a query. Raises: Rejected("refused"), Unreachable."""
        try:
            response = self._http.post(self._info_url, json.dumps(_body(query)).encode())
            document = _document(response)
            content = responses.read(query.topic, document)
        except Unreachable as failure:
            self._outage.begin(failure.reason)
            raise
        self._outage.end()
        # One more for every twenty fills.
        surplus = -(-len(document) // _ROWS_PER_WEIGHT) if query.topic is PerpdexTopic.FILLS else 0
        return PerpdexReply(content, surplus)

    def bundled_markets(self) -> BundledMarkets | None:
        """Return the markets that ship with the service, unless this network numbers its markets differently."""
        if _BUNDLED["numbering"] != self._deployment.asset_numbering:
            return None
        return BundledMarkets(date.fromisoformat(_BUNDLED["day"]), responses.parse_markets(_BUNDLED["document"]))

    def build_payload(self, action: Action, *, nonce: int) -> ActionPayload:
        return payloads.build_payload(action, nonce=nonce, deployment=self._deployment)


def _body(query: PerpdexQuery) -> dict[str, str]:
    # "Addresses should be lowercased."
    body = {"type": _TYPES[query.topic], "user": (query.address or "").lower(), "coin": query.symbol or ""}
    return {name: value for name, value in body.items() if value}


def _document(response: HttpResponse) -> Json:
    """Return the parsed response. Raises: Rejected, Unreachable.

    Statuses as the documentation ("Error responses") and users of the exchange report them: 422 is a body that it
    does not understand, 429 an address's weight used up, 500 with `null` a market unknown to some queries.
    """
    if response.status == HTTPStatus.OK:
        return responses.parse(response.body)
    if response.status == HTTPStatus.TOO_MANY_REQUESTS:
        raise Unreachable("rate_limited")
    if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise Unreachable("exchange_failed")
    if response.status >= HTTPStatus.BAD_REQUEST:
        raise Rejected("refused")
    raise responses.unexpected_answer()
