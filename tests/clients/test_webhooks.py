"""Deliveries of webhooks are verified by released packages, unmodified, and forged ones are not."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import anthropic
import openai
import pytest
from flask import Flask
from standardwebhooks import Webhook, WebhookVerificationError

from app.adapters.upstream_http.exchange import HttpUpstream
from tests.support.agents import register
from tests.support.published import run_node
from tests.support.webhooks import add_webhook, deliver, receiver

ROOT = Path(__file__).resolve().parents[2]

# The packages are installed first where they are missing.
pytestmark = pytest.mark.timeout(1200)

Delivery = tuple[str, dict[str, str], str]


@pytest.fixture(params=["one secret", "after a rotation, the new one", "after a rotation, the former one"])
def delivery(request: pytest.FixtureRequest, build_app: Callable[..., Flask], sqlite_url: str) -> Delivery:
    """A delivery with the secret that the receiver has, its headers in lower case, and its body."""
    app = build_app(sqlite_url, public_upstream=HttpUpstream(connect_seconds=1, read_seconds=5))
    with app.app_context(), receiver() as target:
        agent = register(app.test_client())
        webhook = add_webhook(agent, target.url)
        secrets = [webhook["secret"]]
        if "rotation" in request.param:
            rotated = agent.post(f"/v1/webhooks/{webhook['id']}/rotate-secret").get_json()
            secrets.append(rotated["secret"])
        agent.post(f"/v1/webhooks/{webhook['id']}/test")
        deliver()
        [asked] = target.requests
    secret = secrets[0] if "former" in request.param else secrets[-1]
    return secret, {name.lower(): value for name, value in asked.headers.items()}, asked.body.decode()


def _is_listed(registry: str, package: str, found: str) -> bool:
    row = f"| {registry} `{package}` | {found} |"
    return any(line.startswith(row) for line in (ROOT / "docs" / "compatibility.md").read_text().splitlines())


def test_standardwebhooks_verifies(delivery: Delivery) -> None:
    secret, headers, body = delivery
    assert Webhook(secret).verify(body, headers)["type"] == "webhook.test"
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(body + " ", headers)
    assert _is_listed("PyPI", "standardwebhooks", version("standardwebhooks"))


def test_openai_verifies(delivery: Delivery) -> None:
    secret, headers, body = delivery
    client = openai.OpenAI(api_key="none")
    client.webhooks.verify_signature(body, headers, secret=secret)
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.verify_signature(body + " ", headers, secret=secret)
    assert _is_listed("PyPI", "openai", version("openai"))


def test_anthropic_verifies(delivery: Delivery) -> None:
    secret, headers, body = delivery
    client = anthropic.Anthropic(api_key="none")
    client.beta.webhooks.unwrap(body, headers=headers, key=secret)
    with pytest.raises(WebhookVerificationError):
        client.beta.webhooks.unwrap(body + " ", headers=headers, key=secret)
    assert _is_listed("PyPI", "anthropic", version("anthropic"))


def test_npm_packages_verify(delivery: Delivery) -> None:
    secret, headers, body = delivery
    versions = run_node("webhooks.mjs", json.dumps({"secret": secret, "headers": headers, "body": body}))
    assert set(versions) == {"@anthropic-ai/sdk", "openai", "standardwebhooks"}
    assert all(_is_listed("npm", package, found) for package, found in versions.items())
