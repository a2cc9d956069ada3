"""Messages of the Model Context Protocol, sent to `/mcp` as a client without a library sends them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flask.testing import FlaskClient
from werkzeug.test import TestResponse


def send(client: FlaskClient, message: object, *, key: str | None = None, **headers: str) -> TestResponse:
    """Send a message; an underscore in the name of a header is a hyphen."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if key:
        sent["Authorization"] = f"Bearer {key}"
    return client.post("/mcp", json=message, headers=sent)


def request_of(method: str, **params: object) -> dict[str, Any]:
    """Return a request with these parameters."""
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def call(
    client: FlaskClient,
    tool: str,
    key: str | None = None,
    *,
    meta: Mapping[str, object] | None = None,
    **arguments: object,
) -> dict[str, Any]:
    """Call a tool and return its result."""
    message = request_of("tools/call", name=tool, arguments=arguments, **({"_meta": meta} if meta else {}))
    answer = send(client, message, key=key)
    assert answer.status_code == 200, answer.get_data(as_text=True)
    result: dict[str, Any] = answer.get_json()["result"]
    return result
