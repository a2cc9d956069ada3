"""An owner with a passkey who takes a wallet's keys out, or brings some in, as the scripts of the pages do."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import time_machine
from flask import Flask
from werkzeug.test import TestResponse

from app.core import clock, hpke
from tests.support.agents import Agent, register
from tests.support.authenticators import SoftwareAuthenticator, challenge_of
from tests.support.owners import Owner, forms_of, person

WAIT = timedelta(days=3, seconds=1)
_SEALED = re.compile(r'data-sealed="([^"]*)" data-info="([^"]*)"')
_SEAL_FOR = re.compile(r'data-seal-for="([^"]*)" data-typed="phrase" data-info="([^"]*)"')


@dataclass(slots=True)
class KeyOwner:
    """A person, their browser and device, and the agent that they own."""

    app: Flask
    agent: Agent
    browser: Owner
    device: SoftwareAuthenticator
    made: tuple[bytes, str] = field(default_factory=hpke.new_key)
    """The key pair that the browser makes."""

    @property
    def page(self) -> str:
        return f"/owner/agents/{self.agent.id}"

    @property
    def keys(self) -> str:
        return f"{self.page}/wallets/{self.agent.wallet_id}/keys"

    def ask(self) -> TestResponse:
        return self.confirm(self.browser.get(self.keys), self.keys)

    def cancel(self) -> TestResponse:
        return self.browser.send(self.browser.get(self.keys), f"{self.keys}/cancel")

    def confirm(self, shown: TestResponse, path: str, **fields: str) -> TestResponse:
        """Submit a form with what a passkey signs for it."""
        return self.browser.send(shown, path, **fields, passkey=self.sign(shown, path, **fields))

    def sign(self, shown: TestResponse, path: str, **fields: str) -> str:
        self.device.counter += 1
        return self.device.sign(challenge_of(shown, path, **fields))

    def take(self, **fields: str) -> TestResponse:
        path = f"{self.keys}/take"
        return self.confirm(self.browser.get(self.keys), path, **{"public_key": self.made[1], **fields})

    def opened(self, answer: TestResponse) -> str:
        """Return the words that an answer has for the browser's key."""
        assert answer.status_code == 200, answer.text
        found = _SEALED.search(answer.text)
        assert found, answer.text
        return hpke.unseal(found[1], self.made[0], html.unescape(found[2])).decode()

    @contextmanager
    def later(self, by: timedelta = WAIT) -> Iterator[None]:
        """Move the clock, by default to when keys that are asked for now can be taken, and sign in again."""
        with time_machine.travel(clock.now() + by):
            self.sign_in()
            yield

    def sign_in(self) -> None:
        """Sign in, unless the session has not ended."""
        if self.browser.get(self.keys).status_code != 200:
            assert self.browser.sign_in().status_code == 303

    def begin_import(self) -> TestResponse:
        return self.browser.send(self.browser.get(self.page), f"{self.page}/import")

    def finish_import(self, begun: TestResponse, words: str, **changed: Any) -> TestResponse:
        [path] = [each for each in forms_of(begun) if "/import/" in each]
        return self.confirm(begun, path, sealed=changed.get("sealed") or sealed_for(begun, words))

    def import_phrase(self, words: str) -> TestResponse:
        return self.finish_import(self.begin_import(), words)


def sealed_for(begun: TestResponse, words: str) -> str:
    """Seal words for the form of an import."""
    found = _SEAL_FOR.search(begun.text)
    assert found, begun.text
    return hpke.seal(words.encode(), hpke.point(found[1]), html.unescape(found[2]))


def key_owner(app: Flask, agent: Agent | None = None) -> KeyOwner:
    """Return the owner of an agent, with one passkey."""
    owned, browser = agent or register(app.test_client()), person(app)
    browser.claim(owned.post("/v1/agents/claim-code").get_json())
    found = KeyOwner(app, owned, browser, SoftwareAuthenticator("http://purser.test", "purser.test"))
    assert found.device.add_to(browser, found.page).status_code == 303
    return found
