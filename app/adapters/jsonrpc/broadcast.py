"""Broadcasting of signed transactions: it decides what a refusal and a lost response mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from app.adapters.jsonrpc.calls import EndpointError, RpcCall
from app.adapters.jsonrpc.endpoint import RpcEndpoint
from app.adapters.jsonrpc.replies import RpcErrorKind
from app.adapters.jsonrpc.rpc import JsonRpc
from app.ports.errors import OutcomeUnknown, Rejected, Unreachable


class Broadcaster:
    """Sends the signed transactions of one chain; sending the same bytes twice is harmless."""

    def __init__(
        self,
        rpc: JsonRpc,
        send_call: Callable[[bytes], RpcCall[Any]],
        *,
        refusals: Sequence[tuple[str, str]],
        is_accepted: Callable[[str, bytes], bool],
    ) -> None:
        """Store the call that sends, and what its errors mean.

        `refusals` has words of error messages with the reason that they prove, and `is_accepted` returns whether the
        network has these very bytes in spite of a reason.
        """
        self._rpc = rpc
        self._send_call = send_call
        self._refusals = refusals
        self._is_accepted = is_accepted

    def broadcast(self, raw: bytes) -> None:
        """Send to the first endpoint that answers. What a node may have accepted is never reported as refused.

        Raises: Rejected, Unreachable (no endpoint can have received it), OutcomeUnknown; ValueError for other bytes.
        """
        may_be_accepted = False
        for endpoint in self._rpc.candidates():
            try:
                reason = self._send(endpoint, raw)
            except EndpointError as failure:
                endpoint.back_off(failure)
                may_be_accepted = may_be_accepted or failure.perhaps_executed
                continue
            endpoint.recover()
            if reason is None or self._is_accepted(reason, raw):
                return
            if may_be_accepted:
                break
            raise Rejected(reason)
        if may_be_accepted:
            raise OutcomeUnknown("answer_lost")
        raise Unreachable("chain_unreachable")

    def rebroadcast(self, raws: Sequence[bytes]) -> None:
        """Send many again in few requests, whatever the result of each. Raises: Unreachable."""
        sends = []
        for raw in raws:
            with suppress(ValueError):  # bytes that are no transaction must not stop the others
                sends.append(self._send_call(raw))
        self._rpc.run(*sends)

    def _send(self, endpoint: RpcEndpoint, raw: bytes) -> str | None:
        """Return why an endpoint refused; None if it did not. Raises: EndpointError if that is unknown."""
        send = self._send_call(raw)
        endpoint.run([send])
        if send.error is None:
            return None
        reason = send.error.look_up(self._refusals)
        # "Response too large" is about the response: the transaction may have been accepted.
        if reason is None or send.error.kind is RpcErrorKind.BATCH_LIMIT:
            raise EndpointError.of(send.error)
        return reason
