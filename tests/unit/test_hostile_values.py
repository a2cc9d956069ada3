"""Hostile values are parsed exactly or refused with the error of their kind.

No other exception, and no more than linear time, which the tests' timeout enforces.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from flask import Flask
from hypothesis import example, given
from hypothesis import strategies as st
from marshmallow import ValidationError
from werkzeug.test import EnvironBuilder

from app.agents import claims
from app.core import identifiers
from app.core.chains import ETH, SOL, USDC, AddressError, Token, parse_any_address
from app.core.money import AmountError, nanos_from_usd, parse_amount, usd_from_nanos
from app.core.strict_json import JsonNumber, parse_json
from app.errors import InvalidInput, NotFound
from app.forwarding.call import target_under_prefix
from app.web import fields
from app.web.client_request import ClientRequest, wait_seconds
from app.web.schemas import page_query

# Including surrogates, which JSON may contain and databases do not store.
LETTERS = st.characters() | st.sampled_from("0123456789.-+eE_,٠١２٣−‐ \t\n\x00\u200b\u202e\ud800xX")
TEXTS = st.text(LETTERS, max_size=80)
NUMBERS = (
    st.integers()
    | st.integers(min_value=-(10**400), max_value=10**400)
    | st.decimals().map(lambda number: JsonNumber(str(number)))
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@given(TEXTS, st.sampled_from([ETH, SOL, USDC]))
def test_an_amount_round_trips_or_is_refused(text: str, token: Token) -> None:
    try:
        amount = parse_amount(text, token)
    except AmountError:
        return
    assert Decimal(str(amount)) == Decimal(text) > 0
    assert parse_amount(str(amount), token) == amount


@given(st.decimals() | st.integers().map(Decimal))
@example(Decimal("1E999999999"))
@example(Decimal("-1E-999999999"))
def test_dollars_are_exact_or_refused(usd: Decimal) -> None:
    try:
        nanos = nanos_from_usd(usd)
    except AmountError:
        return
    assert usd_from_nanos(nanos) == usd


_HEX = st.text("0123456789abcdefABCDEFgG０а", min_size=38, max_size=42).map(lambda text: f"0x{text}")
_BASE58 = st.text("123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz0OIl\u0131", min_size=30, max_size=46)


@given(TEXTS | _HEX | _BASE58)
@example("1" * 100_000)
@example("0x" + "0" * 100_000)
def test_a_canonical_address_is_a_fixed_point(text: str) -> None:
    try:
        family, canonical = parse_any_address(text)
    except AddressError:
        return
    assert parse_any_address(canonical) == (family, canonical)
    assert canonical.isascii()
    assert canonical.lower() == text.lower()


@given(TEXTS | st.text(st.sampled_from("ABCDabcdÀＡ１²1234-–—−_ .\u200b\u00ad\ufeff\u202e"), max_size=70))
def test_a_typed_code_is_normalized_or_refused(typed: str) -> None:
    code = claims.normalise_code(typed)
    if code is not None:
        assert claims.normalise_code(code) == code
        assert code.isascii()
        assert len(code) == 9


_FIELDS = [
    fields.Text(),
    fields.Name(),
    fields.Email(),
    fields.StrictBoolean(),
    fields.AmountField(),
    fields.Usd(),
    fields.QueryCount(),
    fields.WholeNumber(),
    fields.Address(),
    fields.DomainField(),
]
_HOSTS = st.text("abc.-_*[]:%@/\\ \u00e4ｅ\u3002\ud800", max_size=80)
_MAILS = st.builds("{}@{}".format, st.text(LETTERS, max_size=70), _HOSTS)


@pytest.mark.parametrize("field", _FIELDS, ids=lambda field: type(field).__name__)
@given(value=VALUES | _HOSTS | _MAILS)
@example(value=Decimal("NaN"))
def test_a_field_accepts_a_fixed_point_or_names_the_problem(field: Any, value: Any) -> None:
    try:
        taken = field.deserialize(value)
    except ValidationError:
        return
    if isinstance(taken, str):
        assert field.deserialize(taken) == taken
    # An amount is parsed later, with its token's decimals.
    if isinstance(taken, str) and not isinstance(field, fields.AmountField):
        taken.encode()
    json.dumps(taken, default=str)


@given(st.dictionaries(st.sampled_from(["limit", "offset"]), TEXTS | VALUES))
def test_a_page_is_within_its_bounds_or_refused(query: dict[str, Any]) -> None:
    try:
        page = page_query(default=50, maximum=200)().load(query)["page"]
    except ValidationError:
        return
    assert 1 <= page.limit <= 200
    assert 0 <= page.offset <= 10**18


@given(
    st.binary(max_size=200)
    | VALUES.map(lambda value: json.dumps(value, default=str).encode())
    | st.text('{}[]":,0123456789eE.-+\\u d8', max_size=200).map(str.encode)
)
@example(b"[" * 1_000_000)
@example(b'{"a":' * 200_000)
@example(b"1" * 5_000)
@example(b"-1e" + b"9" * 5_000)
@example(b'{"a": 1, "\\u0061": 2}')
@example(b'"\\ud800"')
def test_a_body_is_parsed_as_by_other_json_parsers_or_refused(body: bytes) -> None:
    try:
        value = parse_json(body)
    except InvalidInput:
        return
    assert value == json.loads(body, parse_float=JsonNumber)


@given(TEXTS)
def test_an_id_is_accepted_in_canonical_form_only(text: str) -> None:
    assert identifiers.parse_id(text) in (None, text)


_HEADERS = st.text(st.characters(max_codepoint=255, exclude_characters="\r\n\x00"), max_size=80)


@given(_HEADERS | st.text("wait=respond-async,;9 \t٣", max_size=80))
def test_a_preference_is_bounded_by_the_maximum_wait(value: str) -> None:
    environ = EnvironBuilder(headers={"Prefer": value.encode("latin-1", "replace").decode("latin-1")}).get_environ()
    with Flask("").request_context(environ):
        seconds = wait_seconds()
    assert seconds is None or 0 <= seconds <= 25


def target_of(line: str) -> Callable[[], Any]:
    environ = {**EnvironBuilder("/").get_environ(), "RAW_URI": line, "REQUEST_URI": line}
    environ["QUERY_STRING"] = line.partition("?")[2]

    return lambda: target_under_prefix(ClientRequest(environ), "v1", "gateway", "x")


@given(
    st.text(st.characters(max_codepoint=255), max_size=60)
    | st.text(st.sampled_from(list("/.%25eEfF0dDaA\\;#?&=\r\n \x00\xff")), max_size=60)
)
def test_no_path_escapes_its_base_or_injects_a_line(rest: str) -> None:
    try:
        target = target_of(f"/v1/gateway/x/{rest}")()
    except (InvalidInput, NotFound):
        return
    line = target.join_base("/base")
    assert line.startswith("/base")
    assert line.isascii()
    path = line.partition("?")[0]
    assert not {".", ".."} & set(path.split("/"))
    assert "\r" not in path
    assert "\n" not in path
