"""The exchange over HTTP: one POST for each question, every foreign failure translated in one place."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date
from http import HTTPStatus
from pathlib import Path

from app.adapters.http_client import Answer, HttpClient
from app.adapters.outage import Outage
from app.adapters.perpdex import documents, payloads
from app.adapters.perpdex.deployments import Deployment
from app.ports.errors import Rejected, Unreachable
from app.ports.perpdex import Action, BundledMarkets, Json, Market, Payload, Question, Reply, Topic

_CONNECT_SECONDS = 2.0
_TOTAL_SECONDS = 5.0
_MAX_BYTES = 2**23
"""Two thousand fills are less than a megabyte."""
_TYPES: Mapping[Topic, str] = {
    Topic.ACCOUNT: "clearinghouseState",
    Topic.SPOT: "spotClearinghouseState",
    Topic.ORDERS: "frontendOpenOrders",
    Topic.FILLS: "userFills",
    Topic.MARKETS: "meta",
    Topic.FUNDING: "metaAndAssetCtxs",
    Topic.MIDS: "allMids",
    Topic.BOOK: "l2Book",
}
# "Rate limits": these weigh 2, every other question that is asked here weighs 20.
_LIGHT = frozenset({Topic.ACCOUNT, Topic.SPOT, Topic.MIDS, Topic.BOOK})
_LIGHT_WEIGHT = 2
_HEAVY_WEIGHT = 20
_BUNDLED = json.loads(Path(__file__).with_name("markets.json").read_text())


class HyperliquidExchange:
    """Asks `POST {url}/info`; usable from many threads."""

    def __init__(self, deployment: Deployment, *, url: str = "") -> None:
        """Take the network's facts, and another address than its own where one is set."""
        self._deployment = deployment
        self._info_url = f"{(url or deployment.url).rstrip('/')}/info"
        self._http = HttpClient(
            connect_seconds=_CONNECT_SECONDS, total_seconds=_TOTAL_SECONDS, max_bytes=_MAX_BYTES
        )
        self._outage = Outage("exchange", name="perpdex")

    def weight_of(self, question: Question) -> int:
        """Return what a question weighs."""
        return _LIGHT_WEIGHT if question.topic in _LIGHT else _HEAVY_WEIGHT

    def ask(self, question: Question) -> Reply:
        """Ask. Raises: Rejected("refused"), Unreachable."""
        try:
            answer = self._http.post(self._info_url, json.dumps(_body(question)).encode())
            document = _document(answer)
            shown = documents.read(question.topic, document)
        except Unreachable as failure:
            self._outage.begin(failure.reason)
            raise
        self._outage.end()
        return Reply(shown, documents.surplus_weight(question.topic, document))

    def markets_in(self, document: Json) -> tuple[Market, ...]:
        """Read the markets in an answer that was checked."""
        return documents.markets_in(document)

    def bundled_markets(self) -> BundledMarkets | None:
        """Return the markets that ship with the service, unless this network numbers its markets otherwise."""
        if _BUNDLED["numbering"] != self._deployment.numbering:
            return None
        return BundledMarkets(date.fromisoformat(_BUNDLED["day"]), documents.markets_in(_BUNDLED["document"]))

    def orders_in(self, document: Json) -> Sequence[tuple[str, int]]:
        """Read symbol and number of each order in an answer that was checked."""
        return documents.orders_in(document)

    def payload(self, action: Action, *, nonce: int) -> Payload:
        """Build what would be sent."""
        return payloads.build(action, nonce=nonce, deployment=self._deployment)


def _body(question: Question) -> dict[str, str]:
    body = {"type": _TYPES[question.topic]}
    if question.address is not None:
        # "Addresses should be lowercased."
        body["user"] = question.address.lower()
    if question.symbol is not None:
        body["coin"] = question.symbol
    return body


def _document(answer: Answer) -> Json:
    """Return the parsed answer. Raises: Rejected, Unreachable.

    Statuses as the documentation ("Error responses") and users of the exchange report them: 422 is a body that it
    does not understand, 429 an address's weight used up, 500 with `null` a market unknown to some questions.
    """
    if answer.status == HTTPStatus.OK:
        return documents.parse(answer.body)
    if answer.status == HTTPStatus.TOO_MANY_REQUESTS:
        raise Unreachable("rate_limited")
    if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise Unreachable("exchange_failed")
    if answer.status >= HTTPStatus.BAD_REQUEST:
        raise Rejected("refused")
    raise documents.unexpected()
