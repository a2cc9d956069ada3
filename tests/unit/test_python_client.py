"""The hand-written part of the Python client: retries, errors, waiting, and webhooks."""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from standardwebhooks import Webhook

from purser import (
    ApprovalDenied,
    AsyncPurser,
    AuthenticationError,
    Conflict,
    ConnectionFailed,
    LimitExceeded,
    MovementFailed,
    NotFound,
    PaymentRequired,
    PermissionDenied,
    Purser,
    PurserError,
    RateLimited,
    ServerError,
    UpstreamError,
    ValidationError,
    WaitTimeout,
    WebhookVerificationError,
    verify_webhook,
)

Answer = httpx.Response | Exception
PAYMENT: Any = {"chain": "base", "currency": "USDC", "amount": "1", "to": "0xaa", "wallet_id": "w"}
DONE = httpx.Response(200, json={"status": "confirmed", "transaction_id": "t"})
LOST = httpx.ReadError("reset")


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of the client, which pass at once."""
    made: list[float] = []
    monkeypatch.setattr("purser._client.time.sleep", made.append)
    return made


class Service:
    """Answers in turn, and records what it was asked."""

    def __init__(self, *answers: Answer) -> None:
        self._answers: Iterator[Answer] = iter(answers)
        self.asked: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)

    def client(self, **options: Any) -> Purser:
        http = httpx.Client(transport=httpx.MockTransport(self))
        return Purser(base_url="http://purser.test/", api_key="ak_x", http_client=http, **options)

    @property
    def keys(self) -> set[str | None]:
        return {request.headers.get("Idempotency-Key") for request in self.asked}


def error(status: int, code: str = "", retry_after: str = "", **details: Any) -> httpx.Response:
    headers = {"Retry-After": retry_after} if retry_after else {}
    body = {"error": "why", "code": code, "details": details, "request_id": "r"}
    return httpx.Response(status, json=body, headers=headers) if code else httpx.Response(status, text="<html>")


REPEATED: dict[str, Answer] = {
    "a lost response": LOST,
    "a refused connection": httpx.ConnectError("refused"),
    "too many requests": error(429, "RATE_LIMITED", "2"),
    "a busy service": error(503, "OVERLOADED", "2"),
    "a proxy without a service": error(502),
    "a first request that still runs": error(409, "IDEMPOTENCY_CONFLICT", "2"),
    "gas that has not arrived": error(503, "GAS_PENDING", "2"),
}


@pytest.mark.parametrize("answer", REPEATED.values(), ids=REPEATED)
def test_a_payment_is_repeated_under_one_key(answer: Answer, pauses: list[float]) -> None:
    service = Service(answer, answer, DONE)
    assert service.client().transfer(**PAYMENT)["status"] == "confirmed"
    assert len(service.asked) == 3
    assert len(service.keys) == 1
    assert None not in service.keys
    stated = isinstance(answer, httpx.Response) and "Retry-After" in answer.headers
    assert len(pauses) == 2
    assert not stated or pauses == [2.0, 2.0]


@pytest.mark.parametrize(
    "answer",
    [
        error(403, "DAILY_LIMIT_EXCEEDED"), error(409, "IDEMPOTENCY_CONFLICT"), error(503, "PROVIDER_NOT_CONFIGURED"),
        error(500, "TRANSFER_FAILED"), error(429, "RATE_LIMITED", "3600"), error(400, "INVALID_INPUT"),
    ],
    ids=lambda answer: answer.json()["code"],
)  # fmt: skip
def test_what_another_attempt_cannot_change_is_not_repeated(answer: httpx.Response) -> None:
    service = Service(answer)
    with pytest.raises(PurserError):
        service.client().transfer(**PAYMENT)


CALLS: dict[str, Callable[[Purser], Any]] = {
    "a new agent": lambda client: client.register(name="a"),
    "a charged call": lambda client: client.forward_post("alchemy", "base", body={}),
    "a charged read": lambda client: client.forward_get("coingecko", "api/v3/ping"),
    "a new secret": lambda client: client.rotate_webhook_secret("w"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("answer", [LOST, error(503), error(503, "GAS_PENDING", "1")], ids=["lost", "proxy", "busy"])
def test_what_has_no_key_and_an_effect_is_not_repeated(answer: Answer, call: Callable[[Purser], Any]) -> None:
    service = Service(answer)
    with pytest.raises((ConnectionFailed, ServerError)):
        call(service.client())


@pytest.mark.parametrize("answer", [httpx.ConnectError("refused"), error(429, "RATE_LIMITED", "1")])
def test_what_the_service_certainly_did_not_do_is_repeated(answer: Answer) -> None:
    service = Service(answer, httpx.Response(200, json={"result": "0x1"}))
    assert service.client().forward_post("alchemy", "base", body={})["result"] == "0x1"


def test_the_last_failure_names_the_key_to_repeat_it_with() -> None:
    service = Service(LOST, LOST, LOST)
    with pytest.raises(ConnectionFailed) as failure:
        service.client(max_retries=2).transfer(**PAYMENT, idempotency_key="invoice-7")
    assert failure.value.idempotency_key == "invoice-7"
    assert service.keys == {"invoice-7"}


def test_a_request_has_what_was_given_and_nothing_else() -> None:
    service = Service(DONE, httpx.Response(200, json={"events": [], "next_after": 0, "has_more": False}))
    client = service.client()
    client.transfer(**PAYMENT, approval_note=None, prefer="respond-async")
    client.list_events(after=3)
    sent, read = service.asked
    assert json.loads(sent.content) == {
        "chain": "base", "currency": "USDC", "amount": "1", "to": "0xaa", "approval_note": None,
    }  # fmt: skip
    assert (sent.method, sent.url.path) == ("POST", "/v1/wallets/w/transfer")
    assert (sent.headers["X-API-Key"], sent.headers["Prefer"]) == ("ak_x", "respond-async")
    assert str(read.url) == "http://purser.test/v1/events?after=3"
    assert "Prefer" not in read.headers


def test_ids_cannot_leave_their_place_in_the_path() -> None:
    service = Service(
        httpx.Response(200, json={}), httpx.Response(200, text="[]", headers={"Content-Type": "text/csv"})
    )
    client = service.client()
    client.get_approval("../keys?x=1#y")
    assert client.forward_get("coingecko", "api/v3/coins list", query={"a": "b"}) == "[]"
    assert [request.url.raw_path for request in service.asked] == [
        b"/v1/approvals/..%2Fkeys%3Fx%3D1%23y",
        b"/v1/gateway/coingecko/api/v3/coins%20list?a=b",
    ]


def test_the_oldest_wallet_is_used_where_none_is_named() -> None:
    wallets = [{"id": "new", "created_at": "2030-01-02"}, {"id": "first", "created_at": "2030-01-01"}]
    service = Service(httpx.Response(200, json={"wallets": wallets}), httpx.Response(200, json={}), DONE)
    client = service.client()
    client.get_balances()
    client.transfer(**{**PAYMENT, "wallet_id": None})
    assert [request.url.path for request in service.asked] == [
        "/v1/wallets", "/v1/wallets/first/balances", "/v1/wallets/first/transfer",
    ]  # fmt: skip


def test_a_registered_client_acts_as_its_agent() -> None:
    made = {"agentId": "a", "apiKey": "ak_new", "wallet": {"id": "w1"}}
    service = Service(httpx.Response(201, json=made), httpx.Response(200, json={}))
    client = service.client()
    client.register(name="walker")
    client.get_balances()
    assert json.loads(service.asked[0].content) == {"name": "walker"}
    assert (service.asked[1].headers["X-API-Key"], service.asked[1].url.path) == ("ak_new", "/v1/wallets/w1/balances")


FAMILIES = {
    (400, "INVALID_INPUT"): ValidationError, (401, "UNAUTHORIZED"): AuthenticationError,
    (402, "INSUFFICIENT_CREDITS"): PaymentRequired, (403, "WALLET_FROZEN"): PermissionDenied,
    (403, "SESSION_LIMIT_EXCEEDED"): LimitExceeded, (404, "NOT_FOUND"): NotFound, (409, "LIMIT_REACHED"): Conflict,
    (413, "PAYLOAD_TOO_LARGE"): ValidationError, (429, "RATE_LIMITED"): RateLimited,
    (500, "INTERNAL_ERROR"): ServerError, (500, "SWAP_FAILED"): MovementFailed, (501, "NOT_IMPLEMENTED"): ServerError,
    (502, "PERPDEX_ERROR"): UpstreamError, (503, "PROVIDER_NOT_CONFIGURED"): ServerError, (504, ""): UpstreamError,
}  # fmt: skip


@pytest.mark.parametrize(("status", "code"), FAMILIES)
def test_each_code_has_its_family(status: int, code: str) -> None:
    service = Service(error(status, code, "7", remaining_usd=4.5, fields={"to": ["x"]}, reason="no_liquidity"))
    with pytest.raises(FAMILIES[status, code]) as failure:
        service.client(max_retries=0).get_balance()
    assert type(failure.value) is FAMILIES[status, code]
    assert (failure.value.code, failure.value.status) == (code, status)
    if isinstance(failure.value, LimitExceeded):
        assert failure.value.remaining_usd == 4.5
    if isinstance(failure.value, RateLimited):
        assert failure.value.retry_after == 7.0


def transaction(status: str) -> httpx.Response:
    return httpx.Response(200, json={"id": "t", "status": status})


def approval(status: str, **members: Any) -> httpx.Response:
    return httpx.Response(200, json={"id": "p", "status": status, "answer": "no", **members})


def test_waiting_ends_with_the_transaction() -> None:
    for found in ({"transaction_id": "t"}, {"funding_request_id": "t", "wallet_id": "w"}, "t"):
        service = Service(transaction("pending"), transaction("pending"), transaction("failed"))
        assert service.client(wallet_id="w").wait(found)["status"] == "failed"
        assert {request.url.path for request in service.asked} == {"/v1/wallets/w/transactions/t"}


def test_waiting_follows_an_approval_to_its_transaction() -> None:
    waiting = {"status": "awaiting_approval", "approval": {"id": "p"}}
    executed = approval("executed", wallet_id="w", transaction_id="t")
    service = Service(approval("awaiting"), approval("approved"), executed, transaction("confirmed"))
    assert service.client().wait(waiting)["status"] == "confirmed"
    with pytest.raises(ApprovalDenied) as failure:
        Service(approval("rejected")).client().wait(waiting)
    assert failure.value.code == "APPROVAL_REJECTED"


def test_waiting_ends_in_time(pauses: list[float]) -> None:
    service = Service(*[transaction("pending") for _ in range(9)])
    with pytest.raises(WaitTimeout):
        service.client(wallet_id="w").wait("t", timeout=10)
    assert sum(pauses) < 15


SECRET = "whsec_" + base64.b64encode(b"k" * 24).decode()
EVENT = json.dumps({"id": "e", "type": "webhook.test"})


def delivered(at: datetime) -> dict[str, str]:
    signed = Webhook(SECRET).sign("msg_1", at, EVENT)
    return {"Webhook-Id": "msg_1", "Webhook-Timestamp": str(int(at.timestamp())), "Webhook-Signature": signed}


def test_a_delivery_is_verified_like_by_the_reference_library() -> None:
    now = datetime.now(UTC)
    headers = delivered(now)
    assert verify_webhook(EVENT.encode(), headers, SECRET)["type"] == "webhook.test"
    rotated = {**headers, "Webhook-Signature": f"v1,b3RoZXI= {headers['Webhook-Signature']}"}
    assert Purser.verify_webhook(EVENT, rotated, SECRET)["id"] == "e"
    other = "whsec_" + base64.b64encode(b"o" * 24).decode()
    forged: list[tuple[str, dict[str, str], str]] = [
        (EVENT + " ", headers, SECRET), (EVENT, headers, other), (EVENT, {**headers, "Webhook-Id": "msg_2"}, SECRET),
        (EVENT, {**headers, "Webhook-Signature": "v1,"}, SECRET), (EVENT, {}, SECRET),
        (EVENT, delivered(now - timedelta(minutes=6)), SECRET), (EVENT, delivered(now + timedelta(minutes=6)), SECRET),
    ]  # fmt: skip
    for body, given, secret in forged:
        with pytest.raises(WebhookVerificationError):
            verify_webhook(body, given, secret)


def test_both_clients_have_the_same_methods() -> None:
    def methods(kind: type[Any]) -> dict[str, list[str]]:
        found = [each for each in inspect.getmembers(kind, callable) if not each[0].startswith("_")]
        return {name.replace("aclose", "close"): list(inspect.signature(each).parameters) for name, each in found}

    synchronous, asynchronous = methods(Purser), methods(AsyncPurser)
    assert synchronous == asynchronous
    assert {"transfer", "withdraw", "swap", "bridge", "fund", "wait", "pay", "register"} <= set(synchronous)


def test_the_asynchronous_client_repeats_as_well() -> None:
    service = Service(LOST, DONE)

    async def pay() -> str:
        http = httpx.AsyncClient(transport=httpx.MockTransport(service))
        async with AsyncPurser(base_url="http://purser.test", api_key="ak_x", http_client=http) as client:
            return (await client.transfer(**PAYMENT))["status"]

    # In a thread of its own: that of the tests may have the loop of a browser.
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: asyncio.run(pay())).result() == "confirmed"
    assert len(service.keys) == 1


def test_the_environment_names_the_service_and_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PURSER_BASE_URL", "https://purser.example.com/")
    monkeypatch.setenv("PURSER_API_KEY", "ak_env")
    with Purser() as client:
        assert (client.base_url, client.api_key) == ("https://purser.example.com", "ak_env")
    with Purser(base_url="http://other.test", api_key="ak_other") as client:
        assert (client.base_url, client.api_key) == ("http://other.test", "ak_other")
