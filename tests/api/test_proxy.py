"""Proxied calls: what is forwarded and relayed, what never is, and the charge of every outcome."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
import time_machine
from flask import Flask, g
from sqlalchemy import select
from werkzeug.test import TestResponse

from app.catalog import statistics
from app.catalog.proxy.metering import ServiceCall
from app.catalog.services import service as services
from app.core import clock
from app.credits.models import CreditHold
from app.db.unit_of_work import read_only_unit
from app.identity.service import find_principal
from app.ports.upstream import Headers, RelayOutcome, UpstreamRequest
from app.spending import audit as spending_audit
from app.usage import service as usage
from tests.support.agents import Agent, register
from tests.support.market import PRICE_NANOS, Market, market, sell
from tests.support.upstreams import Exchange, misbehaving_upstream

UNKNOWN_SESSION = "00000000-0000-4000-8000-000000000000"
CANARY = "canary-that-no-seller-may-see"


@pytest.fixture
def stage(build_app: Callable[..., Flask], sqlite_url: str) -> Iterator[Market]:
    with market(build_app, sqlite_url, upstream_read_timeout_seconds="2") as made:
        yield made


def test_every_method_is_forwarded_with_its_body_and_its_response_is_unchanged(stage: Market) -> None:
    def behave(exchange: Exchange) -> None:
        body = b"\x00\xff made" if exchange.asked.method != "HEAD" else b""
        exchange.answer(body, 203, ("Content-Type", "application/x-odd"), ("X-Own", "1"), ("ETag", '"a"'))

    stage.behave(behave)
    methods = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "TRACE", "PROPFIND", "QUERY"]
    for method in methods:
        answer = stage.call("/things/1", method, data=b"\x01body\xfe")
        assert answer.status_code == 203
        assert answer.get_data() == (b"" if method == "HEAD" else b"\x00\xff made")
        assert (answer.headers["X-Own"], answer.headers["ETag"]) == ("1", '"a"')
        assert answer.headers["Content-Type"] == "application/x-odd"
    assert [(asked.method, asked.target, asked.body) for asked in stage.upstream.asked] == [
        (method, "/api/things/1", b"\x01body\xfe") for method in methods
    ]
    stage.assert_charged(len(methods))


def test_a_page_of_a_seller_runs_no_script_at_the_address_of_this_service(stage: Market) -> None:
    page = b"<script>fetch('/owner')</script>"
    policy = ("Content-Security-Policy", "script-src *")
    stage.behave(lambda exchange: exchange.answer(page, 200, ("Content-Type", "text/html"), policy))
    answer = stage.call("/page")
    assert answer.headers.getlist("Content-Security-Policy") == ["sandbox; default-src 'none'"]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    stage.assert_charged(1)


def test_path_and_query_are_forwarded_byte_for_byte_without_the_wallet(stage: Market) -> None:
    for path in ("", "/a%2Cb;c=1/%C3%A9/@:!$&'()*+,=?wallet%5Fid={wallet}&a=1&a=2&b=%2F%20+&c"):
        assert stage.call(path.format(wallet=stage.buyer.wallet_id)).status_code == 200
    assert [asked.target for asked in stage.upstream.asked] == [
        "/api", "/api/a%2Cb;c=1/%C3%A9/@:!$&'()*+,=?a=1&a=2&b=%2F%20+&c",
    ]  # fmt: skip


def test_a_path_above_the_base_url_is_refused(stage: Market) -> None:
    answer = stage.call("/%2e%2e/admin")
    assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT")
    assert stage.upstream.asked == []
    stage.assert_charged(0)


def test_a_trailing_slash_of_the_base_url_is_ignored(stage: Market) -> None:
    for base in (stage.upstream.url, f"{stage.upstream.url}/"):
        stage.change(base_url=base)
        stage.call("/x?y=1")
        stage.call("")
    assert [asked.target for asked in stage.upstream.asked] == ["/x?y=1", "/"] * 2


def test_no_credential_of_a_client_reaches_a_service(stage: Market) -> None:
    key = stage.buyer.key
    sent = {
        name: f"{CANARY}-{name}"
        for name in (
            "Authorization", "Proxy-Authorization", "Cookie", "X-Master-Key", "X-Owner-Key", "X-Payment",
            "PAYMENT-SIGNATURE", "X-Payment-Chain", "X-Goog-Api-Key", "Api-Key", "X-Auth-Token",
            "X-Access-Token", "X-Forwarded-For", "Forwarded", "X-Real-Ip", "Cf-Connecting-Ip", "Origin", "Referer",
            "X-Gateway-Timestamp", "X-Gateway-Anything", "X-Secret-Of-Mine",
        )
    }  # fmt: skip
    stage.call(
        f"/x?wallet_id={stage.buyer.wallet_id}",
        headers={**sent, "X-Wallet-Id": stage.buyer.wallet_id, "Connection": "X-Secret-Of-Mine, close"},
    )
    (asked,) = stage.upstream.asked
    seen = str((asked.target, asked.headers))
    assert CANARY not in seen
    assert key not in seen
    assert stage.buyer.wallet_id not in seen
    assert stage.buyer.id not in seen
    assert stage.secret not in seen


def test_a_call_that_leaks_the_client_key_is_refused(stage: Market) -> None:
    key = stage.buyer.key
    sent: list[tuple[str, dict[str, Any]]] = [
        ("address", {"path": f"/x?token={key}"}),
        ("address", {"path": "/x/" + key.replace("_", "%5F")}),
        ("headers", {"headers": {"X-Upstream-Authorization": f"Bearer {key}"}}),
        ("headers", {"headers": {"X-Service-Key": key}}),
        ("body", {"method": "POST", "data": f'{{"api_key": "{key}"}}'}),
    ]
    for place, request in sent:
        answer = stage.call(**request)
        assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT")
        assert list(answer.get_json()["details"]["fields"]) == [place]
        assert key not in answer.get_data(as_text=True)
    assert stage.upstream.asked == []
    stage.assert_charged(0)


def test_headers_for_the_service_are_forwarded(stage: Market) -> None:
    stage.call(
        "/x",
        "POST",
        data=b"{}",
        headers={
            "X-Upstream-Authorization": "Bearer the-sellers-own",
            "Content-Type": "application/vnd.api+json",
            "Content-Encoding": "gzip",
            "Accept-Language": "de",
            "User-Agent": "agent/1",
            "X-Custom": "kept",
        },
    )
    (asked,) = stage.upstream.asked
    expected = {
        "authorization": "Bearer the-sellers-own", "content-type": "application/vnd.api+json",
        "content-encoding": "gzip", "accept-language": "de", "user-agent": "agent/1", "x-custom": "kept",
        "host": stage.upstream.url.removeprefix("http://"), "x-upstream-authorization": None,
    }  # fmt: skip
    assert {name: asked.header(name) for name in expected} == expected


def test_a_service_can_verify_the_signature_of_proxied_calls(stage: Market) -> None:
    stage.call("/x?a=%20b", "POST", data=b"body", headers={"X-Gateway-Signature-Old": "v1=forged"})
    (asked,) = stage.upstream.asked
    timestamp = asked.header("x-gateway-timestamp") or ""
    assert abs(int(timestamp) - clock.now().timestamp()) < 60
    message = "\n".join((timestamp, "POST", asked.target, hashlib.sha256(b"body").hexdigest()))
    expected = hmac.new(stage.secret.encode(), message.encode(), hashlib.sha256).hexdigest()
    assert asked.header("x-gateway-signature") == f"v1={expected}"
    assert asked.header("x-gateway-signature-old") is None


def test_idempotency_keys_are_distinct_per_caller(stage: Market) -> None:
    other_agent = register(stage.buyer.client)
    for agent in (stage.buyer, stage.buyer, other_agent):
        answer = stage.call("/x", headers={"X-API-Key": agent.key, "Idempotency-Key": "order-1"})
        assert answer.status_code == 200, answer.get_data(as_text=True)
    first, again, other = (asked.header("idempotency-key") for asked in stage.upstream.asked)
    assert first == again != other
    assert "order-1" not in f"{first}{other}"


def test_cookies_and_connection_headers_of_a_service_are_not_relayed(stage: Market) -> None:
    stage.behave(
        lambda exchange: exchange.json(
            {}, 200, ("Set-Cookie", "a=b"), ("Server", "x"), ("X-Gateway-Request-Id", "forged"),
            ("X-Cost-Usd", "0"), ("Clear-Site-Data", "*"), ("Access-Control-Allow-Origin", "*"),
        )
    )  # fmt: skip
    answer = stage.call()
    for name in ("Set-Cookie", "Clear-Site-Data", "Access-Control-Allow-Origin"):
        assert name not in answer.headers
    assert answer.headers["X-Cost-Usd"] == "0.25"
    assert answer.headers["X-Credits-Remaining"] == "9.75"
    assert answer.headers["X-Gateway-Request-Id"] != "forged"


@pytest.mark.parametrize("status", [204, 302, 402, 499])
def test_a_status_below_500_is_relayed_and_charged_once(stage: Market, status: int) -> None:
    stage.behave(
        lambda exchange: exchange.answer(
            b"" if status in {204, 304} else b"{}", status, ("Location", "http://10.0.0.1/")
        )
    )
    answer = stage.call()
    assert answer.status_code == status
    # Redirects are returned, never followed.
    assert answer.headers["Location"] == "http://10.0.0.1/"
    assert len(stage.upstream.asked) == 1
    stage.assert_charged(1)
    assert stage.stats()["last_24h"]["success_rate"] == 1


@pytest.mark.parametrize("status", [500, 599])
def test_a_status_of_500_or_more_is_relayed_and_free(stage: Market, status: int) -> None:
    stage.behave(lambda exchange: exchange.json({"own": "error"}, status))
    answer = stage.call()
    assert (answer.status_code, answer.get_json()) == (status, {"own": "error"})
    assert answer.headers["X-Cost-Usd"] == "0"
    stage.assert_charged(0)
    assert stage.stats()["last_24h"]["success_rate"] == 0


def _close_immediately(exchange: Exchange) -> None:
    exchange.hang_up()


def _send_garbage(exchange: Exchange) -> None:
    exchange.send(b"220 mail.example ESMTP\r\n")
    exchange.hang_up()


def _close_midway(exchange: Exchange) -> None:
    exchange.head(200, ("Content-Type", "application/json"), ("Content-Length", 100))
    exchange.send(b"{")
    exchange.hang_up()


def test_an_incomplete_response_is_free(stage: Market) -> None:
    for behave in (_close_immediately, _send_garbage, _close_midway, Exchange.reset):
        stage.behave(behave)
        answer = stage.call()
        assert (answer.status_code, answer.get_json()["code"]) == (502, "UPSTREAM_ERROR"), behave
    stage.assert_charged(0)
    assert stage.stats()["last_24h"]["success_rate"] == 0


def test_an_unusual_response_head_is_repaired_and_charged(stage: Market) -> None:
    lines: list[tuple[bytes, str, str | None]] = [
        (b"X-Odd: a\n b", "X-Odd", "a b"),
        (b"X-Odd: a\r b", "X-Odd", "a b"),
        (b"X-Odd: a\x01\x7fb", "X-Odd", "a b"),
        (b"X(Odd): a", "X(Odd)", None),
        (b"Content-Length: \xb2", "Content-Length", None),
        (b"Content-Length: " + b"9" * 5000, "Content-Length", None),
        (b"Location: /\xc3\xa9 x", "Location", "/%C3%A9%20x"),
        (b"Location: http://[x", "Location", "http://[x"),
    ]

    def behave(exchange: Exchange) -> None:
        line = lines[len(stage.upstream.asked) - 1][0]
        exchange.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-odd\r\n" + line + b"\r\n\r\n{}")
        exchange.hang_up()

    stage.behave(behave)
    for line, name, value in lines:
        answer = stage.call()
        assert (answer.status_code, answer.get_data(), answer.headers.get(name)) == (200, b"{}", value), line
    stage.assert_charged(len(lines))


def test_an_invalid_content_length_is_not_relayed_for_head(stage: Market) -> None:
    for head in (b"Content-Length: abc", b"Content-Length: -5", b"Content-Length: \xb2", b"X: y"):
        stage.behave(
            lambda exchange, head=head: exchange.send(  # type: ignore[misc]
                b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n"
            )
        )
        assert "Content-Length" not in stage.call(method="HEAD").headers
    stage.behave(lambda exchange: exchange.head(200, ("Content-Length", 1234)))
    assert stage.call(method="HEAD").headers["Content-Length"] == "1234"


def test_no_content_type_is_invented(stage: Market) -> None:
    """With an invented `text/html`, a browser would treat the response as a page of this service."""
    stage.behave(lambda exchange: exchange.answer(b"<b>bold</b>"))
    answer = stage.call()
    assert (answer.get_data(), answer.headers.get("Content-Type")) == (b"<b>bold</b>", None)
    stage.behave(lambda exchange: exchange.answer(b"", 204))
    assert "Content-Type" not in stage.call().headers


def test_a_silent_service_costs_nothing(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    with market(build_app, sqlite_url, read_seconds=Decimal("0.2")) as stage:
        stage.behave(lambda exchange: exchange.wait_for("never"))
        answer = stage.call()
        assert (answer.status_code, answer.get_json()["code"]) == (504, "UPSTREAM_TIMEOUT")
        stage.upstream.open_all()
        stage.assert_charged(0)


def test_an_unreachable_service_costs_nothing(stage: Market) -> None:
    with misbehaving_upstream() as gone:
        url = gone.url
    stage.change(base_url=url)
    answer = stage.call()
    assert (answer.status_code, answer.get_json()["code"]) == (502, "UPSTREAM_ERROR")
    assert url.rpartition(":")[2] not in answer.get_data(as_text=True)
    stage.assert_charged(0)


@pytest.mark.parametrize("kind", ["text/event-stream", "text/plain; charset=utf-8", "application/x-ndjson"])
def test_a_stream_is_relayed_immediately_and_charged_by_its_head(stage: Market, kind: str) -> None:
    def behave(exchange: Exchange) -> None:
        exchange.start_stream(kind)
        exchange.chunk(b"data: 1\n\n")
        exchange.wait_for("second")
        exchange.chunk(b"data: 2\n\n")
        exchange.end_stream()

    stage.behave(behave)
    answer = stage.call(buffered=False)
    pieces = iter(answer.response)
    assert next(pieces) == b"data: 1\n\n"
    assert answer.headers["X-Cost-Usd"] == "0.25"
    stage.assert_charged(1)
    stage.upstream.open("second")
    assert b"".join(pieces) == b"data: 2\n\n"
    answer.close()
    stage.assert_charged(1)


def test_a_stream_that_the_client_abandons_is_closed_and_charged_once(stage: Market) -> None:
    def behave(exchange: Exchange) -> None:
        exchange.start_stream()
        exchange.chunk(b"data: 1\n\n")
        exchange.await_hang_up()

    stage.behave(behave)
    answer = stage.call(buffered=False)
    next(iter(answer.response))
    answer.close()
    stage.upstream.await_hang_ups()
    stage.assert_charged(1)


def test_a_streamed_error_costs_nothing(stage: Market) -> None:
    def behave(exchange: Exchange) -> None:
        exchange.head(503, ("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked"))
        exchange.chunk(b"data: no\n\n")
        exchange.end_stream()

    stage.behave(behave)
    answer = stage.call()
    assert (answer.status_code, answer.get_data()) == (503, b"data: no\n\n")
    answer.close()
    stage.assert_charged(0)


def test_without_enough_credits_nothing_is_sent(stage: Market) -> None:
    stage.change(price_per_call_usd=4)
    assert [stage.call().status_code for _ in range(3)] == [200, 200, 402]
    refused = stage.call()
    assert refused.get_json()["code"] == "INSUFFICIENT_CREDITS"
    assert refused.get_json()["details"] == {"credits_usd": 2.0, "required_usd": 4.0}
    assert len(stage.upstream.asked) == 2


def test_a_free_service_is_logged_and_costs_nothing(stage: Market) -> None:
    stage.change(price_per_call_usd=0)
    assert stage.call("/weather/Berlin/now").headers["X-Cost-Usd"] == "0"
    (row,) = stage.buyer.get("/v1/usage").get_json()["logs"]
    assert (row["provider"], row["model"], row["cost_usd"]) == (f"service:{stage.id}", "/weather/Berlin", 0)
    assert stage.stats()["total_calls"] == 1


def test_a_free_service_requires_credits(stage: Market) -> None:
    stage.change(price_per_call_usd=10)
    assert stage.call().status_code == 200
    stage.change(price_per_call_usd=0)
    answer = stage.call()
    assert (answer.status_code, answer.get_json()["code"]) == (402, "INSUFFICIENT_CREDITS")
    assert len(stage.upstream.asked) == 1
    with read_only_unit() as session:
        assert session.scalars(select(CreditHold.state)).all() == ["settled"]


def test_owners_pay_for_their_own_calls(stage: Market) -> None:
    stage.call(headers={"X-API-Key": stage.seller.key})
    assert stage.seller.get("/v1/balance").get_json() == {"credits_usd": 9.75, "total_spent": 0.25, "owed_usd": 0.0}
    assert stage.stats()["total_revenue_usd"] == 0.25


def test_a_gateway_only_key_may_call_and_counts_in_totals_only(stage: Market) -> None:
    key = stage.buyer.client.post("/v1/keys", json={}).get_json()["api_key"]
    assert stage.call(headers={"X-API-Key": key}).status_code == 200
    assert stage.call(headers={"X-API-Key": key, "X-Wallet-Id": stage.buyer.wallet_id}).status_code == 404
    stats = stage.stats()
    assert (stats["total_calls"], stats["top_agents"]) == (1, [])


def test_a_call_is_counted_for_the_named_wallet_or_the_first(stage: Market) -> None:
    second = stage.buyer.post("/v1/wallets", {}).get_json()["id"]
    stage.call()
    stage.call(headers={"X-Wallet-Id": second})
    stage.call(f"/x?wallet_id={second}")
    assert stage.stats()["top_agents"] == [
        {"wallet_id": second, "total_calls": 2, "total_spent_usd": 0.5},
        {"wallet_id": stage.buyer.wallet_id, "total_calls": 1, "total_spent_usd": 0.25},
    ]


def test_a_foreign_wallet_is_not_found(stage: Market) -> None:
    for wallet in (stage.seller.wallet_id, "x"):
        for answer in (stage.call(headers={"X-Wallet-Id": wallet}), stage.call(f"/x?wallet_id={wallet}")):
            assert (answer.status_code, answer.get_json()["code"]) == (404, "NOT_FOUND")
    assert stage.upstream.asked == []


def test_an_agent_without_wallets_can_call(stage: Market) -> None:
    stage.buyer.delete(stage.buyer.wallet_url)
    assert stage.call().status_code == 200
    assert stage.stats()["top_agents"] == []


def test_a_wallets_domain_allowlist_applies_to_services(stage: Market) -> None:
    stage.buyer.controls(allowed_domains=["api.example.com"])
    for headers in ({}, {"X-Wallet-Id": stage.buyer.wallet_id}):
        answer = stage.call(headers=headers)
        assert (answer.status_code, answer.get_json()["code"]) == (403, "DOMAIN_NOT_ALLOWED")
        assert answer.get_json()["details"]["domain"] == "127.0.0.1"
    assert stage.upstream.asked == []
    stage.change(base_url=stage.upstream.url.replace("127.0.0.1", "localhost"))
    stage.buyer.controls(allowed_domains=["localhost"])
    assert stage.call().status_code == 200


def test_a_price_above_the_client_maximum_is_refused(stage: Market) -> None:
    for ceiling in ("0.25", "1"):
        assert stage.call(headers={"X-Max-Price-Usd": ceiling}).status_code == 200
    for ceiling in ("0.249999999", "0"):
        answer = stage.call(headers={"X-Max-Price-Usd": ceiling})
        assert (answer.status_code, answer.get_json()["details"]) == (
            403, {"rule": "X-Max-Price-Usd", "limit_usd": float(ceiling), "requested_usd": 0.25},
        )  # fmt: skip
    for ceiling in ("", "-1", "1e9", "NaN"):
        assert stage.call(headers={"X-Max-Price-Usd": ceiling}).status_code == 400
    stage.assert_charged(2)


def _session(stage: Market, max_usd: float, **changes: Any) -> str:
    body = {"max_usd": max_usd, "expires_at": clock.isoformat(clock.now() + timedelta(hours=1)), **changes}
    return str(stage.buyer.post(f"{stage.buyer.wallet_url}/sessions", body).get_json()["id"])


def _spent_of(stage: Market, session_id: str) -> float:
    spent: float = stage.buyer.get(f"{stage.buyer.wallet_url}/sessions/{session_id}").get_json()["spent_usd"]
    return spent


def test_a_call_counts_against_the_session_that_it_names_and_not_against_the_limits(stage: Market) -> None:
    session_id = _session(stage, 0.6)
    named = {"X-Session-Id": session_id}
    assert [stage.call(headers=named).status_code for _ in range(2)] == [200, 200]
    refused = stage.call(headers=named)
    assert (refused.status_code, refused.get_json()["code"]) == (403, "SESSION_LIMIT_EXCEEDED")
    assert refused.get_json()["details"]["remaining_usd"] == 0.1
    assert (_spent_of(stage, session_id), stage.buyer.spent_this_month()) == (0.5, 0.0)
    assert stage.call().status_code == 200
    assert all("x-session-id" not in dict(asked.headers) for asked in stage.upstream.asked)
    stage.assert_charged(3)
    with read_only_unit() as session:
        assert spending_audit.check(session) == []


def test_a_call_that_costs_nothing_does_not_count_against_its_session(stage: Market) -> None:
    session_id = _session(stage, 100)
    named = {"X-Session-Id": session_id}
    stage.behave(lambda exchange: exchange.answer(b"", 503))
    assert stage.call(headers=named).status_code == 503
    stage.behave(lambda exchange: exchange.hang_up())
    assert stage.call(headers=named).status_code == 502
    stage.change(price_per_call_usd=11)
    assert stage.call(headers=named).status_code == 402
    assert _spent_of(stage, session_id) == 0.0
    stage.assert_charged(0)
    with read_only_unit() as session:
        assert spending_audit.check(session) == []


def test_concurrent_calls_do_not_exceed_their_session(stage: Market) -> None:
    named = {"X-Session-Id": _session(stage, 0.5)}

    def call(_: int) -> int:
        return stage.call(headers=named).status_code

    with ThreadPoolExecutor(8) as threads:
        found = sorted(threads.map(call, range(16)))
    assert found == [200] * 2 + [403] * 14
    stage.assert_charged(2)


@pytest.mark.parametrize(
    ("changes", "status"), [({"domains": ["api.example.com"]}, 403), ({"domains": ["127.0.0.1"]}, 200)]
)
def test_a_session_permits_only_services_at_its_domains(stage: Market, changes: dict[str, Any], status: int) -> None:
    assert stage.call(headers={"X-Session-Id": _session(stage, 1, **changes)}).status_code == status


def test_a_session_of_another_wallet_is_refused(stage: Market) -> None:
    session_id = _session(stage, 1)
    second = stage.buyer.post("/v1/wallets", {}).get_json()["id"]
    for headers, status in (
        ({"X-Session-Id": session_id, "X-Wallet-Id": second}, 404),
        ({"X-Session-Id": UNKNOWN_SESSION}, 404),
        ({"X-Session-Id": "mine"}, 400),
        ({"X-Session-Id": session_id, "X-API-Key": register(stage.buyer.client).key}, 404),
    ):
        assert stage.call(headers=headers).status_code == status
    assert stage.upstream.asked == []
    stage.assert_charged(0)


def test_a_price_change_during_a_call_does_not_change_its_cost(stage: Market) -> None:
    def behave(exchange: Exchange) -> None:
        with stage.app.app_context():
            stage.change(price_per_call_usd=5, status="paused")
            stage.seller.delete(f"/v1/services/{stage.id}")
            stage.buyer.delete(stage.buyer.wallet_url)
        exchange.json({})

    stage.behave(behave)
    answer = stage.call(headers={"X-Max-Price-Usd": "0.25"})
    assert (answer.status_code, answer.headers["X-Cost-Usd"]) == (200, "0.25")
    assert stage.spent_nanos() == PRICE_NANOS
    with read_only_unit() as session:
        assert statistics.totals(session, stage.id) == statistics.ServiceTotals(1, PRICE_NANOS)


def test_a_paused_or_retired_service_is_not_found(stage: Market) -> None:
    stage.change(status="paused")
    assert stage.call().get_json()["code"] == "NOT_FOUND"
    stage.change(status="active")
    stage.seller.delete(f"/v1/services/{stage.id}")
    assert stage.call().status_code == 404
    assert stage.upstream.asked == []


def test_a_body_that_is_too_large_is_refused_before_it_is_charged(stage: Market) -> None:
    assert stage.call("/x", "POST", data=b"x" * (2 * 2**20)).status_code == 200
    answer = stage.call("/x", "POST", data=b"x" * (32 * 2**20 + 1))
    assert (answer.status_code, answer.get_json()["code"]) == (413, "PAYLOAD_TOO_LARGE")
    stage.assert_charged(1)


def test_a_request_sent_by_the_proxy_is_refused_on_every_route(stage: Market) -> None:
    for path in (f"/v1/proxy/{stage.id}/x", "/v1/wallets", "/v1/agents/register", "/v1/health"):
        answer = stage.buyer.client.get(path, headers={**stage.buyer.headers(), "X-Gateway-Signature": "v1=00"})
        assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT"), path
    assert stage.upstream.asked == []


def test_a_service_that_points_to_the_proxy_causes_no_loop(stage: Market) -> None:
    """A name that cannot be recognized as ours: the seller's server forwards every request to this service."""
    seen: list[int] = []

    def behave(exchange: Exchange) -> None:
        names = ("x-gateway-timestamp", "x-gateway-signature")
        headers = {name: exchange.asked.header(name) or "" for name in names}
        answer = stage.app.test_client().get(
            f"/v1/proxy/{stage.id}/again", headers={**headers, "X-API-Key": stage.buyer.key}
        )
        seen.append(answer.status_code)
        exchange.json({}, answer.status_code)

    stage.behave(behave)
    assert stage.call().status_code == 400
    assert seen == [400]


def _begun(stage: Market) -> ServiceCall:
    """Begin a call in the way its request does."""
    caller = find_principal(stage.buyer.key)
    assert caller is not None
    g.request_id = "the request of this call"
    meter = ServiceCall(services.callable_service(stage.id), caller, wallet_id=stage.buyer.wallet_id, model="/x")
    meter.begin(UpstreamRequest("GET", "http://service.test", "/x", [], b""))
    return meter


def _open_hold() -> CreditHold:
    with read_only_unit() as session:
        (hold,) = session.scalars(select(CreditHold).where(CreditHold.state == "held")).all()
        return hold


def test_a_slow_response_keeps_its_hold(stage: Market) -> None:
    meter = _begun(stage)
    started = clock.now()
    meter.on_response_head(_BrokenResponse())
    for minute in range(1, 6):
        with time_machine.travel(started + timedelta(minutes=minute), tick=False):
            meter.feed(b"1")
            assert usage.charge_lapsed() == 0
    # But not for long after it: if the process dies, the hold is released soon.
    assert _open_hold().lease_until < started + timedelta(minutes=7)
    meter.end(RelayOutcome.COMPLETE)
    stage.assert_charged(1)


def test_the_hold_of_a_dead_process_is_released_without_a_charge(stage: Market) -> None:
    _begun(stage)
    hold = _open_hold()
    assert hold.amount_nanos == PRICE_NANOS
    assert usage.charge_lapsed() == 0
    with time_machine.travel(hold.lease_until + timedelta(seconds=1), tick=False):
        assert usage.charge_lapsed() == 1
    assert stage.buyer.get("/v1/balance").get_json() == {"credits_usd": 10.0, "total_spent": 0.0, "owed_usd": 0.0}
    stage.assert_charged(0)


def test_a_response_after_the_end_of_its_lease_is_charged_once(stage: Market) -> None:
    def behave(exchange: Exchange) -> None:
        with stage.app.app_context():
            with read_only_unit() as session:
                (hold,) = session.scalars(select(CreditHold).where(CreditHold.state == "held")).all()
            with time_machine.travel(hold.lease_until + timedelta(seconds=1), tick=False):
                assert usage.charge_lapsed() == 1
        exchange.json({})

    stage.behave(behave)
    assert stage.call().status_code == 200
    stage.assert_charged(1)


def test_a_hanging_service_and_its_callers_leave_permits_to_others(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    """Of 16 permits a service has 4, a caller 4, all services 8; the others are for the gateway."""

    def hang(exchange: Exchange) -> None:
        exchange.start_stream()
        exchange.chunk(b"data: 1\n\n")
        exchange.await_hang_up()

    with market(build_app, sqlite_url, web_threads=32) as stage:
        stage.behave(hang)
        others = [sell(stage.seller, base_url=stage.upstream.url)["id"] for _ in range(3)]
        callers = [register(stage.buyer.client) for _ in range(3)]
        open_calls: list[TestResponse] = []

        def call(service_id: str, agent: Agent) -> str:
            answer = agent.client.get(f"/v1/proxy/{service_id}/x", headers=agent.headers(), buffered=False)
            if answer.status_code == 200:
                open_calls.append(answer)
                return ""
            assert answer.status_code == 503, answer.get_data()
            assert answer.headers["Retry-After"]
            said: str = answer.get_json()["error"]
            return said

        assert [call(stage.id, callers[0]) for _ in range(4)] == [""] * 4
        assert "to this service" in call(stage.id, callers[1])
        assert "from your account" in call(others[0], callers[0])
        assert [call(service_id, callers[1]) for service_id in others[:2] * 2] == [""] * 4
        assert "to services" in call(others[2], callers[2])
        for answer in open_calls:
            answer.close()
        assert call(others[2], callers[2]) == ""
        open_calls[-1].close()


class _BrokenResponse:
    """A response that breaks the forwarding code."""

    status = 200
    closed = 0

    @property
    def headers(self) -> Headers:
        raise ArithmeticError

    def read(self) -> bytes:
        return b""

    def abort(self) -> None:
        return None

    def close(self) -> None:
        self.closed += 1


class _BrokenUpstream:
    def __init__(self, answer: _BrokenResponse) -> None:
        self._answer = answer

    def send(self, request: UpstreamRequest) -> _BrokenResponse:
        del request
        return self._answer

    def close(self) -> None:
        """Do nothing: no connection is open."""


def test_an_internal_error_releases_the_hold_immediately(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    answer = _BrokenResponse()
    app = build_app(sqlite_url, public_upstream=_BrokenUpstream(answer))
    with app.app_context():
        client = app.test_client()
        seller, buyer = register(client), register(client)
        service = sell(seller)
        assert client.get(f"/v1/proxy/{service['id']}/x", headers=buyer.headers()).status_code == 500
        assert buyer.get("/v1/balance").get_json() == {"credits_usd": 10.0, "total_spent": 0.0, "owed_usd": 0.0}
        with read_only_unit() as session:
            assert session.scalars(select(CreditHold.state)).all() == ["released"]
        assert answer.closed == 1
        stats = seller.get(f"/v1/services/{service['id']}/stats").get_json()
        assert stats["last_24h"]["success_rate"] is None


def test_services_are_counted_separately(stage: Market) -> None:
    other = sell(stage.seller, base_url=stage.upstream.url)
    stage.call()
    stats = stage.seller.get(f"/v1/services/{other['id']}/stats").get_json()
    assert (stats["total_calls"], stats["last_24h"]["success_rate"]) == (0, None)
