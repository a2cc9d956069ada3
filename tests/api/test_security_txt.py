"""Where to report a vulnerability: `/.well-known/security.txt`, as RFC 9116 has it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from flask import Flask
from pydantic import ValidationError

_PATH = "/.well-known/security.txt"


@pytest.mark.parametrize("contact", ["mailto:security@purser.example", "https://purser.example/report?from=txt"])
def test_the_contact_is_valid_for_less_than_a_year(
    build_app: Callable[..., Flask], sqlite_url: str, contact: str
) -> None:
    app = build_app(sqlite_url, settings={"security_contact": contact, "base_url": "https://purser.example"})
    response = app.test_client().get(_PATH)
    assert response.content_type == "text/plain; charset=utf-8"
    fields = dict(line.split(": ", 1) for line in response.text.splitlines())
    expires = datetime.fromisoformat(fields.pop("Expires"))
    assert timedelta(days=30) < expires - datetime.now(UTC) < timedelta(days=365)
    assert fields == {
        "Contact": contact, "Preferred-Languages": "en", "Canonical": f"https://purser.example{_PATH}"
    }  # fmt: skip


def test_without_a_contact_there_is_no_file(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    response = build_app(sqlite_url).test_client().get(_PATH)
    assert (response.status_code, response.get_json()["code"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize("contact", ["security@purser.example", "mailto:a@b.example\nContact: mailto:c@d.example"])
def test_a_contact_that_is_no_single_uri_is_refused(
    build_app: Callable[..., Flask], sqlite_url: str, contact: str
) -> None:
    with pytest.raises(ValidationError, match="security_contact"):
        build_app(sqlite_url, settings={"security_contact": contact})
