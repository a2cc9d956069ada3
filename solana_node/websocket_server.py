"""WebSocket subscriptions, on the port after the HTTP port, where Solana clients expect them.

SDKs confirm through `signatureSubscribe` instead of polling.
"""

import contextlib
import json
from dataclasses import dataclass
from typing import Any, Final

from solders.account import Account
from solders.pubkey import Pubkey
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

from solana_node.account_json import account_json
from solana_node.addresses import SYSTEM
from solana_node.chain import Chain
from solana_node.clock import Commitment
from solana_node.errors import METHOD_NOT_FOUND, JsonObject, RpcError
from solana_node.parameters import read_address, read_commitment

FASTEST_POLL_SECONDS: Final = 0.005
MANUAL_CLOCK_POLL_SECONDS: Final = 0.01


@dataclass(slots=True)
class _Subscription:
    method: str
    target: str
    config: JsonObject
    commitment: Commitment
    last_value: Any
    """The slot or account of the last notification."""


def open_websocket_server(host: str, port: int, chain: Chain) -> Server:
    """Open the server; the caller runs `serve_forever`."""
    return serve(lambda connection: _Subscriber(connection, chain).run(), host, port)


class _Subscriber:
    """One connection: reads requests and sends notifications."""

    def __init__(self, connection: ServerConnection, chain: Chain) -> None:
        self._connection = connection
        self._chain = chain
        self._subscriptions: dict[int, _Subscription] = {}
        self._last_id = 0

    def run(self) -> None:
        """Serve until the client disconnects."""
        slot_ms = self._chain.clock.slot_ms
        pause = max(FASTEST_POLL_SECONDS, slot_ms / 2000) if slot_ms else MANUAL_CLOCK_POLL_SECONDS
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    self._send(self._answer(json.loads(self._connection.recv(timeout=pause))))
                for notification in self._notifications():
                    self._send(notification)
        except (ConnectionClosed, ValueError):
            self._connection.close()

    def _send(self, body: JsonObject) -> None:
        self._connection.send(json.dumps(body))

    def _answer(self, request: JsonObject) -> JsonObject:
        method = str(request.get("method"))
        params = request.get("params") or []
        try:
            if method.endswith("Unsubscribe"):
                result: object = self._subscriptions.pop(params[0], None) is not None
            else:
                result = self._subscribe(method, params)
        except RpcError as error:
            return {"jsonrpc": "2.0", "error": error.body, "id": request.get("id")}
        return {"jsonrpc": "2.0", "result": result, "id": request.get("id")}

    def _subscribe(self, method: str, params: list[Any]) -> int:
        if method not in ("signatureSubscribe", "accountSubscribe", "slotSubscribe"):
            raise RpcError(METHOD_NOT_FOUND, "Method not found")
        target = str(params[0]) if params else ""
        config = params[1] if len(params) > 1 and params[1] else {}
        commitment = read_commitment(config)
        seen = None
        if method == "accountSubscribe":
            with self._chain.locked():
                seen = self._chain.account(str(read_address(target)), commitment)
        self._last_id += 1
        self._subscriptions[self._last_id] = _Subscription(method, target, config, commitment, seen)
        return self._last_id

    def _notifications(self) -> list[JsonObject]:
        notifications = []
        with self._chain.locked():
            for number, subscription in list(self._subscriptions.items()):
                result = self._notification(number, subscription)
                if result is not None:
                    name = subscription.method.replace("Subscribe", "Notification")
                    params = {"result": result, "subscription": number}
                    notifications.append({"jsonrpc": "2.0", "method": name, "params": params})
        return notifications

    def _notification(self, number: int, subscription: _Subscription) -> JsonObject | None:
        chain, slot = self._chain, self._chain.slot_at(subscription.commitment)
        if subscription.method == "slotSubscribe":
            if subscription.last_value == chain.slot:
                return None
            subscription.last_value = chain.slot
            root = chain.slot_at(Commitment.FINALIZED)
            return {"parent": chain.slot - 1, "root": root, "slot": chain.slot}
        if subscription.method == "signatureSubscribe":
            record = chain.history.get(subscription.target, up_to_slot=slot)
            if record is None:
                return None
            # It notifies once.
            del self._subscriptions[number]
            return {"context": {"slot": slot}, "value": {"err": record.error}}
        account = chain.account(subscription.target, subscription.commitment)
        if account == subscription.last_value:
            return None
        subscription.last_value = account
        shown = account or Account(0, b"", Pubkey.from_string(SYSTEM))
        encoding = subscription.config.get("encoding") or "base64"
        value = account_json(chain, shown, {**subscription.config, "encoding": encoding})
        return {"context": {"slot": slot}, "value": value}
