"""Redaction hides what a page echoes, spells out no secret, and leaves our own sentences alone."""

from __future__ import annotations

import pytest

from app.core.redaction import redaction
from shopper.process.redaction import CredentialRedactor

_OWN = "The shop's page could not be loaded."


@pytest.mark.parametrize(
    "secrets",
    [("a", "b"), ("page", "loaded"), ("shop", "not"), ("the", "be"), ("could not", "s page"), (".", "'"), ("o", "…")],
)
def test_a_sentence_of_ours_is_never_changed(secrets: tuple[str, str]) -> None:
    assert CredentialRedactor(*secrets).redact_message(_OWN, []) == _OWN


@pytest.mark.parametrize("secrets", [("a", "b"), ("e", "o"), ("is", "the"), ("ong", "ssw"), ("wor", "cor")])
def test_a_short_secret_leaves_no_gap_that_spells_it(secrets: tuple[str, str]) -> None:
    """Gaps inside of words, or for ordinary words, could be filled in by any reader."""
    text = "This is a wrong password; enter the correct one and be careful."
    assert CredentialRedactor(*secrets).redact(text) == text


@pytest.mark.parametrize("secret", ["b7x", "b", "1234", "tulip", "tulip-harbour", "Summer2026"])
def test_an_echoed_secret_is_hidden_as_a_word_of_its_own(secret: str) -> None:
    redactor = CredentialRedactor("ada@example.com", secret)
    for text in (f"Wrong: {secret}!", f"password={secret}&x", f'"{secret.upper()}" is wrong', f"({secret})"):
        assert secret.lower() not in redactor.redact(text).lower().split("is wrong")[0].replace("password", "")
    assert secret not in redactor.redact(secret)


def test_only_the_quoted_part_of_a_message_is_searched() -> None:
    redactor = CredentialRedactor("loaded", "tulip-harbour-42")
    said = "loaded is locked, tulip-harbour-42"
    message = f"The shop refused the sign-in, and nothing was loaded: {said}. Check username and password."
    assert redactor.redact_message(message, [said]) == (
        "The shop refused the sign-in, and nothing was loaded: … is locked, …. Check username and password."
    )


def test_a_process_that_lies_about_what_it_quoted_gets_no_password_through() -> None:
    redactor = CredentialRedactor("ada@example.com", "tulip-harbour-42")
    hidden = redactor.redact_message("It is tulip-harbour-42 of ada@example.com.", ["nothing", ""])
    assert hidden == "It is … of …."


def test_a_short_secret_of_the_operator_does_not_destroy_remarks() -> None:
    redact = redaction(["a", "purser", "db"])
    assert redact("a database is not reachable at purser:purser@db") == "a database is not reachable at …:…@…"
