"""Errors of providers: which concern the operator's account, and what a client may see of the others."""

from __future__ import annotations

import json

import pytest

from app.gateway.operator_errors import _words_sent, hide_keys, operator_concern

KEY = "sk-proj-operatorsecret0123456789abcdef9911"
OPERATOR = [
    (401, {"error": {"message": "Incorrect API key provided: sk-proj-****9911.", "code": "invalid_api_key"}}),
    (401, {"jsonrpc": "2.0", "id": 1, "error": {"code": -32600, "message": "Must be authenticated!"}}),
    (401, {"type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}}),
    (401, "<html>Unauthorized</html>"),
    (402, {"error": {"message": "This request requires more credits", "code": 402}}),
    (402, {"error": "You have run out of credits", "tag": "NO_MORE_CREDITS"}),
    (403, {"type": "error", "error": {"type": "permission_error", "message": "Your API key lacks permission"}}),
    (403, {"error": {"code": 403, "status": "PERMISSION_DENIED", "message": "Consumer 'api_key:AI' suspended."}}),
    (403, "<html>Sorry, you have been blocked</html>"),
    (403, ""),
    (429, {"error": {"message": "You exceeded your current quota, please check", "code": "insufficient_quota"}}),
    (429, {"error": {"message": "Monthly capacity limit exceeded. Visit the dashboard to upgrade"}}),
    (429, {"error": {"code": "QUOTA_LIMITED", "meta": {"plan": "Free"}}}),
    (429, {"status": {"error_code": 10006, "error_message": "You've reached your monthly call limit"}}),
    (432, {"detail": {"error": "This request exceeds your plan's set usage limit. Please upgrade your plan"}}),
    (400, {"error": {"type": "invalid_request_error", "message": "Your credit balance is too low to access"}}),
    (400, {"error": {"message": "You have reached your specified API usage limits."}}),
    (400, {"error": {"code": 400, "message": "API key not valid.", "details": [{"reason": "API_KEY_INVALID"}]}}),
    (400, [{"error": {"code": 400, "message": "API key expired. Please renew the API key."}}]),
    (400, {"error": {"message": "Billing hard limit has been reached", "code": "billing_hard_limit_reached"}}),
    (422, {"error": {"code": "SUBSCRIPTION_TOKEN_INVALID", "detail": "The token is invalid."}}),
]  # fmt: skip
CLIENT = [
    (400, {"error": {"message": "max_tokens is too large: 999999", "code": "invalid_value"}}),
    (400, {"error": {"message": "Your request was rejected by our safety system", "code": "moderation_blocked"}}),
    (403, {"error": {"message": "Your input was flagged", "metadata": {"flagged_input": "x"}, "code": 403}}),
    (403, {"error": {"message": "Project `p` does not have access to model `gpt-9`", "code": "model_not_found"}}),
    (403, {"error": {"message": "The model x is blocked", "code": "model_permission_blocked_org"}}),
    (404, {"error": {"message": "The model `x` does not exist or you do not have access to it."}}),
    (422, {"detail": [{"msg": "Extra inputs are not permitted"}]}),
    (429, {"error": {"message": "Rate limit reached for gpt-5", "code": "rate_limit_exceeded"}}),
    (429, {"error": {"code": "RATE_LIMITED", "detail": "Request rate limit exceeded for plan."}}),
    (429, {"error": {"message": "Need more tokens? upgrade to the Dev plan", "code": "rate_limit_exceeded"}}),
    (429, {"error": {"status": "RESOURCE_EXHAUSTED", "message": "You exceeded your current quota, check your plan and"
     " billing details", "details": [{"retryDelay": "34s"}]}}),
    (500, {"error": {"message": "invalid api key"}}),
    (400, {"jsonrpc": "2.0", "error": {"code": -32000, "message": "insufficient funds for gas * price + value"}}),
]  # fmt: skip


def as_body(document: object) -> bytes:
    return document.encode() if isinstance(document, str) else json.dumps(document).encode()


@pytest.mark.parametrize(
    ("target", "sent"),
    [
        ("/v1/x", b'{"model": "Incorrect\\u0020API\\nkey"}'),
        ("/v1/incorrect%20API+key", b""),
        ("/v1/x", b"--b\r\n\r\nincorrect api key\r\n"),
    ],
    ids=["json", "target", "form"],
)  # fmt: skip
def test_a_text_of_the_request_is_only_quoted(target: str, sent: bytes) -> None:
    quoted = as_body({"error": {"message": "There is no model Incorrect API key."}})
    assert operator_concern(400, {}, quoted) is not None
    assert operator_concern(400, {}, quoted, lambda: _words_sent(target, sent)) is None
    both = as_body({"error": {"message": "No model Incorrect API key. Your credit balance is too low."}})
    assert operator_concern(400, {}, both, lambda: _words_sent(target, sent)) == "credit balance is too low"


@pytest.mark.parametrize(("status", "document"), OPERATOR)
def test_an_error_about_the_operators_account_is_recognised(status: int, document: object) -> None:
    assert operator_concern(status, {}, as_body(document)) is not None


@pytest.mark.parametrize(("status", "document"), CLIENT)
def test_an_error_about_the_request_is_left_to_the_client(status: int, document: object) -> None:
    assert operator_concern(status, {}, as_body(document)) is None


def test_a_rate_limit_that_says_when_to_retry_is_none_of_the_account() -> None:
    body = as_body({"error": "Subscribe to our API plans for higher rate limits"})
    assert operator_concern(429, {}, body) is not None
    assert operator_concern(429, {"retry-after": "60"}, body) is None
    exhausted = as_body({"error": {"code": "insufficient_quota"}})
    assert operator_concern(429, {"retry-after": "60"}, exhausted) is not None


@pytest.mark.parametrize(
    "shown",
    ["sk-proj-****9911", "sk-up-op********9911", "****9911", "sk-proj-oper...9911", "sk-proj…", "sk-pro\\u2026911",
     "AIza••••wxyz", "…f9911", "sk-projXXXXXXXX9911"],
)  # fmt: skip
def test_no_part_of_a_masked_key_is_left(shown: str) -> None:
    text = hide_keys(f'{{"message":"Wrong key {shown}, org-AbCdEfGh12345"}}'.encode(), KEY).decode()
    assert text == '{"message":"Wrong key …, …"}'


@pytest.mark.parametrize(
    "text", ["wait...and retry", "see sections 1...9", "a *** b", "**bold**", "the foxxxx", "user-12345678901", "…"]
)
def test_other_texts_are_relayed_as_they_are(text: str) -> None:
    assert hide_keys(text.encode(), KEY) == text.encode()
    assert hide_keys(text.encode(), "") == text.encode()


def test_a_long_text_is_searched_in_linear_time() -> None:
    long = b"a" * 2**20
    assert hide_keys(long, KEY) == long
    assert hide_keys((b"a" * 61 + b"***") * 10_000, KEY).count("…".encode()) >= 5_000


def test_the_key_itself_is_hidden_too() -> None:
    assert hide_keys(f"code {KEY}".encode(), KEY).decode() == "code …"
