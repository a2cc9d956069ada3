"""A small JSON-RPC client for our own local nodes. It never retries."""

from __future__ import annotations

import itertools
from typing import Any

import requests

_TIMEOUT_SECONDS = 120


class NodeError(Exception):
    """The node answered with an error object."""


class NodeDown(Exception):
    """The node did not answer."""


class NodeClient:
    """Calls of one node; may be shared by threads."""

    def __init__(self, url: str) -> None:
        """Speak to the node at this URL."""
        self.url = url
        self._ids = itertools.count(1)
        self._session = requests.Session()
        self._session.trust_env = False  # a proxy in the environment must not come between us and loopback

    def call(self, method: str, *params: Any) -> Any:
        """Return the result of one call. Raises: NodeError, NodeDown."""
        request = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": list(params)}
        try:
            answer = self._session.post(self.url, json=request, timeout=_TIMEOUT_SECONDS).json()
        except (requests.RequestException, ValueError) as error:
            raise NodeDown(f"{method}: {error}") from error
        if "error" in answer:
            raise NodeError(f"{method}: {answer['error'].get('message')}")
        return answer["result"]

    def close(self) -> None:
        """Close the kept connections."""
        self._session.close()
