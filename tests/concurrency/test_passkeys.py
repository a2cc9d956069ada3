"""Races of passkeys on PostgreSQL: one signature used several times, and copies of one authenticator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from flask import Flask

from tests.support.authenticators import SoftwareAuthenticator, prompt_of
from tests.support.operators import entries
from tests.support.owners import Owner, forms_of, person
from tests.support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.postgres

_CONCURRENT = 8
_PATH = "/owner/sign-in/passkey"


@pytest.fixture
def postgres_app(postgres_url: str, build_app: Callable[..., Flask]) -> Flask:
    """Build an application with a connection for each thread."""
    return build_app(postgres_url, settings={"database_pool_size": _CONCURRENT})


@pytest.fixture
def device(postgres_app: Flask) -> SoftwareAuthenticator:
    """A device with the passkey of an agent's owner."""
    made = postgres_app.test_client().post("/v1/agents/register", json={}).get_json()
    owner, device = person(postgres_app), SoftwareAuthenticator("http://purser.test", "purser.test")
    owner.claim(made)
    assert device.add_to(owner, f"/owner/agents/{made['agentId']}").status_code == 303
    device.counter = 1
    return device


def _send_concurrently(forms: list[tuple[Owner, dict[str, str]]]) -> Counter[int]:
    start = Barrier(len(forms))

    def send(form: tuple[Owner, dict[str, str]]) -> int:
        browser, fields = form
        start.wait(PATIENCE_SECONDS)
        return browser.client.post(_PATH, data=fields).status_code

    with ThreadPoolExecutor(len(forms)) as threads:
        return Counter(threads.map(send, forms))


def test_one_signature_signs_in_once(postgres_app: Flask, device: SoftwareAuthenticator) -> None:
    page = person(postgres_app).get("/owner/sign-in")
    signed = device.sign(prompt_of(page, _PATH)["challenge"])
    token = forms_of(page)[_PATH]["passkey_token"]
    forms = []
    for _ in range(_CONCURRENT):
        browser = person(postgres_app)
        form = forms_of(browser.get("/owner/sign-in"))[_PATH]
        forms.append((browser, {**form, "passkey": signed, "passkey_token": token}))
    assert _send_concurrently(forms) == {303: 1, 403: _CONCURRENT - 1}


def test_of_copies_with_one_counter_one_signs_in_and_the_others_are_recorded(
    postgres_app: Flask, device: SoftwareAuthenticator
) -> None:
    forms = []
    for _ in range(_CONCURRENT):
        browser = person(postgres_app)
        page = browser.get("/owner/sign-in")
        signed = device.sign(prompt_of(page, _PATH)["challenge"])
        forms.append((browser, {**forms_of(page)[_PATH], "passkey": signed}))
    assert _send_concurrently(forms) == {303: 1, 403: _CONCURRENT - 1}
    with postgres_app.app_context():
        acts = Counter(each.action for each in entries())
    assert acts["agent.passkey_refused"] == _CONCURRENT - 1
