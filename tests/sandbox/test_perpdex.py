"""The stand-in for the exchange: requests that the adapter never sends, and faults over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests

from sandbox.perpdex import ExchangeServer
from tests.support.exchange import running_exchange


@pytest.fixture
def exchange() -> Iterator[ExchangeServer]:
    with running_exchange() as server:
        yield server


def post(exchange: ExchangeServer, path: str, body: Any) -> requests.Response:
    return requests.post(exchange.url + path, json=body, timeout=20)


@pytest.mark.parametrize(
    "body", [{"type": "nope"}, {}, [], "x", {"type": "clearinghouseState"}, {"type": "userFills", "user": "0xAB"}]
)
def test_an_unknown_request_is_422_in_plain_text(exchange: ExchangeServer, body: Any) -> None:
    answer = post(exchange, "/info", body)
    assert answer.status_code == 422
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert answer.text == "Failed to deserialize the JSON body into the target type"


def test_an_unknown_coin_is_null_like_on_the_exchange(exchange: ExchangeServer) -> None:
    book = post(exchange, "/info", {"type": "l2Book", "coin": "NOPE"})
    assert (book.status_code, book.text) == (200, "null")
    history = post(exchange, "/info", {"type": "fundingHistory", "coin": "NOPE"})
    assert (history.status_code, history.text) == (500, "null")


def test_no_order_is_ever_accepted(exchange: ExchangeServer) -> None:
    answer = post(exchange, "/exchange", {"action": {"type": "order"}, "nonce": 1, "signature": None})
    assert answer.status_code == 200
    assert answer.json()["status"] == "err"


def test_faults_are_switched_on_and_off_over_http(exchange: ExchangeServer) -> None:
    mids = {"type": "allMids"}
    assert post(exchange, "/faults", {"type": "allMids", "status": 503, "times": 2}).status_code == 200
    assert post(exchange, "/info", {"type": "meta"}).status_code == 200
    assert post(exchange, "/info", mids).status_code == 503
    assert requests.delete(exchange.url + "/faults", timeout=20).status_code == 200
    assert post(exchange, "/info", mids).status_code == 200
    for wrong in ({"nope": 1}, {"status": "503"}, {"status": 99}, {"seconds": -1}, []):
        assert post(exchange, "/faults", wrong).status_code == 400


def test_exceeding_the_weight_of_a_minute_is_429(exchange: ExchangeServer) -> None:
    statuses = [post(exchange, "/info", {"type": "meta"}).status_code for _ in range(61)]
    assert statuses == [200] * 60 + [429]
    assert exchange.refused == 1
