"""A small JSON-RPC client for local nodes. It never retries."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import urllib3
from urllib3.exceptions import HTTPError

_TIMEOUT_SECONDS = 120
_IDLE_CONNECTIONS = 10


class NodeError(Exception):
    """The node returned an error object."""


TIP_WEI = 10**6
"""A typical priority fee on Base; anvil's default of 1 gwei would make transactions expensive."""


class NodeDown(Exception):
    """The node did not answer."""


class NodeClient:
    """Calls of one node; may be shared by threads."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._path = urlsplit(url).path or "/"
        # It uses no proxy of the environment, and a third of the processor time of a session of `requests`.
        self._pool = urllib3.connection_from_url(
            url, maxsize=_IDLE_CONNECTIONS, retries=False, timeout=_TIMEOUT_SECONDS
        )

    def call(self, method: str, *params: Any) -> Any:
        """Return the result of one call. Raises: NodeError, NodeDown."""
        if method == "eth_sendTransaction":
            params = ({"maxPriorityFeePerGas": hex(TIP_WEI), **params[0]}, *params[1:])
        [result] = self.call_each(method, [params])
        return result

    def call_each(self, method: str, each: Sequence[Sequence[Any]]) -> list[Any]:
        """Return the results of calls with these parameters, in one request. Raises: NodeError, NodeDown."""
        calls = [
            {"jsonrpc": "2.0", "id": number, "method": method, "params": list(params)}
            for number, params in enumerate(each)
        ]
        try:
            found = self._pool.request("POST", self._path, json=calls if len(calls) > 1 else calls[0]).json()
        except (HTTPError, ValueError) as error:
            raise NodeDown(f"{method}: {error}") from error
        replies = sorted(found if isinstance(found, list) else [found], key=lambda reply: reply["id"] or 0)
        for reply in replies:
            if "error" in reply:
                raise NodeError(f"{method}: {reply['error'].get('message')}")
        return [reply["result"] for reply in replies]

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()
