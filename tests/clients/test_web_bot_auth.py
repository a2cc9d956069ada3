"""Web Bot Auth: npm's verifier accepts what this service signs, for the site that it was sent to and no other."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app import bot_auth
from app.adapters.upstream_http.exchange import HttpUpstream
from app.state import Application
from tests.support import compatibility
from tests.support.agents import register
from tests.support.published import run_node
from tests.support.upstreams import misbehaving_upstream

pytestmark = pytest.mark.timeout(1200)
FORMER, KEY = (base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2))
SIGNED = ("signature-agent", "signature-input", "signature")


def open_app(build_app: Callable[..., Application], url: str, keys: str) -> Application:
    settings = {"allow_private_upstreams": True, "web_bot_auth_keys": keys}
    return build_app(url, settings=settings, public_upstream=HttpUpstream(connect_seconds=5, read_seconds=30))


def fetched(app: Application, url: str, **more: Any) -> None:
    with app.app_context():
        agent = register(app.test_client())
        answer = agent.post(f"{agent.wallet_url}/x402/fetch", {"url": url, "max_amount_usd": 0.05, **more})
        assert answer.get_json()["status"] == 200, answer.get_json()


def directory_of(app: Application) -> tuple[dict[str, Any], dict[str, str]]:
    answer = app.test_client().get(bot_auth.DIRECTORY_PATH)
    assert answer.headers["Content-Type"] == bot_auth.DIRECTORY_TYPE
    return answer.get_json(), dict(answer.headers)


def test_what_a_web_service_is_sent_is_verified_by_npms_verifier(
    build_app: Callable[..., Application], sqlite_url: str
) -> None:
    # The new key signs; the former one is published until no signature by it is valid.
    app = open_app(build_app, sqlite_url, f"new:{KEY},former:{FORMER}")
    with misbehaving_upstream() as seller:
        seller.behave = lambda exchange: exchange.json({"ok": True})
        fetched(app, seller.url + "/thing?q=1")
        sent = {name.lower(): value for name, value in seller.asked[-1].headers}
    directory, proof = directory_of(app)
    assert len(directory["keys"]) == proof["Signature"].count("sig") == 2
    assert "d" not in {name for key in directory["keys"] for name in key}
    headers = dict(zip(("Signature-Agent", "Signature-Input", "Signature"), map(sent.get, SIGNED), strict=True))
    told = {"url": seller.url + "/thing?q=1", "headers": headers, "directory": directory}
    found = run_node("web_bot_auth.mjs", json.dumps(told))
    assert (found["here"], found["elsewhere"], found["well_known"]) == (True, False, bot_auth.DIRECTORY_PATH)
    assert found["ids"] == [key["kid"] for key in directory["keys"]]
    compatibility.check("npm", "web-bot-auth", found["version"], ["verify a request of x402/fetch"])


def test_no_other_host_gets_a_directory_that_its_name_proves(
    build_app: Callable[..., Application], sqlite_url: str
) -> None:
    app = open_app(build_app, sqlite_url, f"k:{KEY}")
    answer = app.test_client().get(bot_auth.DIRECTORY_PATH, headers={"Host": "localhost"})
    public = Ed25519PrivateKey.from_private_bytes(base64.b64decode(KEY)).public_key()
    signature = base64.b64decode(answer.headers["Signature"].removeprefix("sig1=:").removesuffix(":"))
    stated = answer.headers["Signature-Input"].removeprefix("sig1=")
    public.verify(signature, f'"@authority";req: purser.test\n"@signature-params": {stated}'.encode())


def test_without_a_key_nothing_is_signed(build_app: Callable[..., Application], sqlite_url: str) -> None:
    app = open_app(build_app, sqlite_url, "")
    with misbehaving_upstream() as seller:
        seller.behave = lambda exchange: exchange.json({"ok": True})
        fetched(app, seller.url + "/thing", headers={"Signature": "of-the-caller"})
        assert seller.asked[-1].header("Signature") == "of-the-caller"
        fetched(app, seller.url + "/thing")
        assert not {name.lower() for name, _ in seller.asked[-1].headers} & set(SIGNED)
    assert directory_of(app)[0] == {"keys": []}


def test_a_caller_cannot_sign_in_the_services_name(build_app: Callable[..., Application], sqlite_url: str) -> None:
    app = open_app(build_app, sqlite_url, f"k:{KEY}")
    with app.app_context():
        agent = register(app.test_client())
        for name in ("Signature", "Signature-Input", "Signature-Agent"):
            body = {"url": "https://seller.example/", "max_amount_usd": 0.05, "headers": {name: "sig1=:AA==:"}}
            answer = agent.post(f"{agent.wallet_url}/x402/fetch", body)
            assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT")
