"""Hostile header values: each request is answered or refused with an error, never a crash."""

from __future__ import annotations

from flask.testing import FlaskClient
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.agents import register
from tests.support.logs import written_logs

# Servers accept no control characters except the tab.
_VALUES = st.text(
    st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f") | st.just("\t"), max_size=300
)
_NAMES = [
    "Idempotency-Key", "Prefer", "X-API-Key", "X-Master-Key", "Authorization", "X-Wallet-Id", "X-Session-Id",
    "X-Max-Price-Usd",
    "Cookie", "X-Payment", "X-Payment-Chain", "PAYMENT-SIGNATURE", "X-Payment-Signature", "Content-Type",
    "Content-Encoding", "Accept", "X-Forwarded-For", "X-Request-Id", "Sec-Fetch-Site", "If-None-Match", "Range",
    "Content-Range", "X-Gateway-Signature", "X-Upstream-Authorization", "X-Goog-Api-Key",
]  # fmt: skip


@given(headers=st.dictionaries(st.sampled_from(_NAMES), _VALUES, min_size=1, max_size=4))
@example({"Range": "bytes=0-0,-1,99999999999999999999-"})
@example({"Content-Type": "multipart/form-data; boundary=" + "x" * 300})
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_header_is_accepted_or_refused(client: FlaskClient, headers: dict[str, str]) -> None:
    key = {"X-API-Key": register(client).key}
    with written_logs() as lines:
        for method, path in (
            ("POST", "/v1/agents/claim-code"),
            ("POST", "/v1/wallets"),
            ("GET", "/v1/proxy/0/x"),
            ("POST", "/v1/gateway/openai/chat/completions"),
            ("GET", "/v1/platform/agents"),
            ("POST", "/v1/device/claim"),
            ("POST", "/device"),
            ("GET", "/static/purser.css"),
        ):
            answer = client.open(path, method=method, headers={**key, **headers}, data=b"{}")
            assert answer.status_code < 500 or answer.get_json()["code"] == "PROVIDER_NOT_CONFIGURED", answer.text
            answer.close()
        assert not [line for line in lines() if line["event"] in ("request_failed", "page_failed")]


@given(key=_VALUES)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_an_idempotency_key_replays_the_first_response_or_is_refused(client: FlaskClient, key: str) -> None:
    agent = register(client)
    first, again = (agent.post("/v1/wallets", {"name": "once"}, Idempotency_Key=key) for _ in range(2))
    assert first.status_code == again.status_code
    if first.status_code == 201:
        assert first.get_json() == again.get_json()
        assert key.strip(" \t").isascii()
    else:
        assert first.get_json()["code"] == "INVALID_INPUT"
