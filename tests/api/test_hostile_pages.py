"""Any form sent to the owner pages gets a page in response, never a crash."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.logs import written_logs
from tests.support.owners import forms_of

_TEXTS = st.text(st.characters(codec="utf-8") | st.sampled_from("\x00\r\n<>\"'&%\u202e-٣"), max_size=80)
_BYTES = st.binary(max_size=120)
_FIELDS = st.dictionaries(
    st.sampled_from(["code", "email", "owner_key", "csrf_token", "next", "daily_limit_usd", "allowed_addresses"]),
    _TEXTS | st.just("ABCD-1234"),
    max_size=4,
)
_COOKIES = st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters=";,"), max_size=60)


@pytest.mark.parametrize("path", ["/device", "/device/claim", "/owner/sign-in"])
@given(fields=_FIELDS, cookie=_COOKIES, raw=_BYTES, multipart=st.booleans())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_form_gets_a_page(
    app: Flask, path: str, fields: dict[str, str], cookie: str, raw: bytes, *, multipart: bool
) -> None:
    with written_logs() as lines:
        browser = app.test_client()
        token = next(iter(forms_of(browser.get("/device")).values()))
        answers: list[Any] = [
            browser.post(path, data={**token, **fields}),
            browser.post(path, data=fields, headers={"Cookie": f"purser_form={cookie}; purser_owner={cookie}"}),
            browser.post(
                path, data=raw,
                content_type="multipart/form-data; boundary=0" if multipart else "application/x-www-form-urlencoded",
            ),
            browser.get(path, query_string=fields),
        ]  # fmt: skip
        assert not [line for line in lines() if line["event"] in ("request_failed", "page_failed")]
    assert all(answer.status_code < 500 for answer in answers)
