"""An owner without scripts, for clients that open a browser to sign in: claims an agent, and consents by the forms."""

from __future__ import annotations

import html
import json
import re
import sys
import time
import webbrowser
from contextlib import suppress
from http.cookiejar import CookieJar
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit
from urllib.request import HTTPCookieProcessor, HTTPRedirectHandler, OpenerDirector, Request, build_opener

_FIELD = re.compile(r'<input[^>]* name="([^"]*)"[^>]* value="([^"]*)"')
_INPUT = re.compile(r'<input type="hidden" name="([^"]*)" value="([^"]*)"')


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_request: Any) -> None:
        return None


class DefaultBrowser(webbrowser.BaseBrowser):
    """The browser that clients find on the computer of an owner."""

    def __init__(self, url: str) -> None:
        super().__init__("owner")
        self.owner, self.opened = OwnerBrowser(url), 0
        webbrowser.register("owner", None, self, preferred=True)

    def open(self, url: str, *_options: object) -> bool:
        self.opened += 1
        Thread(target=self.owner.follow, args=[url], daemon=True).start()
        return True


class OwnerBrowser:
    """A person who owns a new agent."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._opener: OpenerDirector = build_opener(HTTPCookieProcessor(CookieJar()), _NoRedirect)
        made = self._json("/v1/agents/register", {"name": "For an application"})
        self._key = self._json("/v1/device/claim", {"code": made["claimCode"]})["ownerKey"]
        self._account = f"{made['agentId']} {made['wallet']['id']}"

    def consent(self, address: str, **choices: Any) -> dict[str, str]:
        """Open what a client opens, sign in, allow everything, and return the parameters of the redirect back."""
        back = urlsplit(self._redirect(address, **choices))
        return {name: value for name, [value] in parse_qs(back.query).items()}

    def follow(self, address: str) -> None:
        """Consent, and follow the redirect to the client, once it listens."""
        back = self._redirect(address)
        for _ in range(200):
            with suppress(OSError):
                self._get(back)
                return
            time.sleep(0.05)

    def enter_code(self, address: str) -> str:
        """Open the page that a program names, check its code, sign in, allow everything; return the wallet's id."""
        fields = dict(_FIELD.findall(self._get(address)))
        page = urljoin(self.url, urlsplit(address).path)
        status, _, start = self._open(page, urlencode(fields).encode())
        assert status == 200, start
        status, _, end = self._allow(start, {})
        assert status == 200, end
        return self._account.split()[1]

    def _redirect(self, address: str, **choices: Any) -> str:
        status, headers, text = self._allow(self._get(address), choices)
        assert status == 303, text
        return urljoin(self.url, headers["Location"])

    def _allow(self, start: str, choices: dict[str, Any]) -> tuple[int, Any, str]:
        consent = urljoin(self.url, html.unescape(re.search(r'href="(/owner/connect/[^"]+)"', start)[1]))
        form = self._get(self._location(consent))
        self._location(f"{self.url}/owner/sign-in", {**dict(_INPUT.findall(form)), "owner_key": self._key})
        fields = dict(_INPUT.findall(self._get(consent)))
        scopes = ["wallet:read", "wallet:pay", "gateway", "catalog"]
        chosen = {"account": self._account, "scope": scopes, "days": "7", "decision": "allow", **choices}
        return self._open(consent, urlencode({**fields, **chosen}, doseq=True).encode())

    def _get(self, address: str) -> str:
        return str(self._open(address)[2])

    def _location(self, address: str, fields: dict[str, Any] | None = None) -> str:
        data = None if fields is None else urlencode(fields, doseq=True).encode()
        status, headers, text = self._open(address, data)
        assert status == 303, text
        return urljoin(self.url, headers["Location"])

    def _json(self, path: str, body: dict[str, Any]) -> Any:
        headers = {"Content-Type": "application/json"}
        return json.loads(self._open(self.url + path, json.dumps(body).encode(), headers)[2])

    def _open(
        self, address: str, data: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any, str]:
        try:
            answer = self._opener.open(Request(address, data, headers or {}))  # noqa: S310 - the test's own service
        except OSError as error:
            if not hasattr(error, "headers"):
                raise
            answer = error
        return answer.status, answer.headers, answer.read().decode()


if __name__ == "__main__":
    url, address = sys.argv[1:]
    json.dump({"wallet_id": OwnerBrowser(url).enter_code(address)}, sys.stdout)
