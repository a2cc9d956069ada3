"""Sends signed bytes. The one thing that matters here: never to call refused what may have been taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from solders.rpc.config import RpcSendTransactionConfig
from solders.rpc.requests import SendRawTransaction

from app.adapters.json_rpc import MalformedAnswerError
from app.adapters.solana import refusals, transactions
from app.adapters.solana.endpoint import Call, EndpointFailedError, RpcError
from app.adapters.solana.rpc import SolanaRpc
from app.adapters.solana.wire import text
from app.ports.errors import OutcomeUnknown, Rejected, Unreachable

# A node's own opinion and its own retries are of no use: the same bytes are sent again until they land or expire.
_CONFIG = RpcSendTransactionConfig(skip_preflight=True, max_retries=0)


class Broadcaster:
    """Sends the transactions of the cluster."""

    def __init__(self, rpc: SolanaRpc) -> None:
        """Take the cluster's endpoints."""
        self._rpc = rpc

    def broadcast(self, raw: bytes) -> None:
        """Send bytes to the first endpoint that takes them; sending them twice is harmless.

        Raises: Rejected, Unreachable (no endpoint can have taken them), OutcomeUnknown.
        """
        signature = transactions.signature_of(raw)
        perhaps_taken = False
        for endpoint in self._rpc.candidates():
            call = _sending(raw, signature, tolerates=refusals.is_known_refusal)
            try:
                endpoint.run(call)
            except EndpointFailedError as failure:
                endpoint.rest(failure)
                perhaps_taken = perhaps_taken or failure.perhaps_executed
                continue
            endpoint.recover()
            refusal = None if call.error is None else refusals.of_sending(call.error)
            if refusal is None or refusal == refusals.ALREADY_PROCESSED:
                return
            if perhaps_taken:
                raise OutcomeUnknown("answer_lost")
            raise Rejected(refusal)
        if perhaps_taken:
            raise OutcomeUnknown("answer_lost")
        raise Unreachable("chain_unreachable")

    def rebroadcast(self, raws: Sequence[bytes]) -> None:
        """Send many bytes again in few requests, whatever becomes of each. Raises: Unreachable."""
        if raws:
            self._rpc.run(*(_sending(raw, None, tolerates=lambda _error: True) for raw in raws))


def _sending(raw: bytes, signature: str | None, *, tolerates: Callable[[RpcError], bool]) -> Call[str]:
    def read(answer: object) -> str:
        if signature is not None and text(answer) != signature:
            raise MalformedAnswerError("expected the transaction's signature")
        return text(answer)

    return Call(SendRawTransaction(raw, _CONFIG), read, tolerates=tolerates)
