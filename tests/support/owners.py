"""An owner's browser without scripts: forms are submitted as the page renders them."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from typing import Any

from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

_FORM = re.compile(r"<form\b[^>]*>.*?</form>", re.DOTALL)
_ACTION = re.compile(r'action="([^"]*)"')
_HIDDEN = re.compile(r'<input type="hidden" name="([^"]*)" value="([^"]*)"')
CODE = re.compile(r"\b(?:[0-9A-HJKMNP-TV-Z]{4}-){6}[0-9A-HJKMNP-TV-Z]{4}\b")
OWNER_KEY = re.compile(r"ok_[A-Za-z0-9_-]{43}")


def forms_of(page: TestResponse) -> dict[str, dict[str, str]]:
    """Return the hidden fields of each form of a page, by its action."""
    found: dict[str, dict[str, str]] = {}
    for form in _FORM.findall(page.text):
        action = _ACTION.search(form)
        assert action, form
        hidden = {html.unescape(name): html.unescape(value) for name, value in _HIDDEN.findall(form)}
        # Limits are shown in a form to save and in one to change them; the first has the values of the second.
        if len(hidden) >= len(found.get(action[1], {})):
            found[action[1]] = hidden
    return found


@dataclass(slots=True)
class Owner:
    """A person with a separate browser."""

    client: FlaskClient
    key: str = ""

    def get(self, path: str, **query: str) -> TestResponse:
        return self.client.get(path, query_string=query or None)

    def send(self, page: TestResponse, path: str, **fields: str) -> TestResponse:
        """Submit the form of a page with this action."""
        return self.client.post(path, data={**forms_of(page)[path], **fields})

    def forge(self, page: TestResponse, path: str, **fields: str) -> TestResponse:
        """Submit a form that the page need not have, with the token of the session."""
        token = next(iter(forms_of(page).values()))["csrf_token"]
        return self.client.post(path, data={"csrf_token": token, **fields})

    def claim(self, made: dict[str, Any], email: str = "") -> TestResponse:
        """Claim a registered agent, form by form; store the owner key."""
        looked = self.send(self.get("/device"), "/device", code=made["claimCode"])
        assert looked.status_code == 200, looked.text
        claimed = self.send(looked, "/device/claim", email=email)
        assert claimed.status_code == 200, claimed.text
        found = OWNER_KEY.search(claimed.text)
        assert found
        self.key = found[0]
        return claimed

    def sign_in(self, key: str | None = None, **fields: str) -> TestResponse:
        return self.send(
            self.get("/owner/sign-in"), "/owner/sign-in", owner_key=self.key if key is None else key, **fields
        )


def person(app: Flask) -> Owner:
    """Return a person with a new browser."""
    return Owner(app.test_client())
