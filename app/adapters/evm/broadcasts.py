"""Sends signed bytes. The one thing that matters here: never to call refused what may have been taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.adapters.evm import refusals
from app.adapters.evm.endpoint import Call, EndpointFailed, RpcError
from app.adapters.evm.rpc import JsonRpc
from app.adapters.evm.transactions import hash_of
from app.adapters.evm.wire import hash32, receipt_or_none
from app.adapters.json_rpc import MalformedAnswerError
from app.ports.errors import OutcomeUnknown, Rejected, Unreachable


class Broadcaster:
    """Sends the transactions of one chain."""

    def __init__(self, rpc: JsonRpc) -> None:
        """Take the chain's nodes."""
        self._rpc = rpc

    def broadcast(self, raw: bytes) -> None:
        """Send bytes to the first endpoint that answers; sending them twice is harmless.

        Raises: Rejected, Unreachable (no endpoint can have taken them), OutcomeUnknown.
        """
        perhaps_taken = False
        for endpoint in self._rpc.candidates():
            call = _sending(raw, tolerates=refusals.is_known_refusal)
            try:
                endpoint.run([call])
            except EndpointFailed as failure:
                self._rpc.note_failure(endpoint, failure)
                perhaps_taken = perhaps_taken or failure.perhaps_executed
                continue
            refusal = None if call.error is None else refusals.of_sending(call.error)
            if refusal is None or refusal.is_already_known:
                return
            # A nonce that is used up, or money that is gone, may be the work of these very bytes.
            if refusal.reason == "nonce_too_low" and self._is_mined(raw):
                return
            if perhaps_taken:
                raise OutcomeUnknown("answer_lost")
            raise Rejected(refusal.reason)
        if perhaps_taken:
            raise OutcomeUnknown("answer_lost")
        raise Unreachable("chain_unreachable")

    def rebroadcast(self, raws: Sequence[bytes]) -> None:
        """Send many bytes again in few requests, whatever becomes of each. Raises: Unreachable."""
        if raws:
            self._rpc.run(*(_sending(raw, tolerates=lambda _error: True) for raw in raws))

    def _is_mined(self, raw: bytes) -> bool:
        receipt = Call("eth_getTransactionReceipt", (hash_of(raw),), read=receipt_or_none)
        try:
            self._rpc.run(receipt)
        except Unreachable:
            raise OutcomeUnknown("answer_lost") from None
        return receipt.answer is not None


def _sending(raw: bytes, *, tolerates: Callable[[RpcError], bool]) -> Call[None]:
    expected = hash_of(raw)

    def read(answer: object) -> None:
        if hash32(answer) != expected:
            raise MalformedAnswerError("expected the transaction's hash")

    return Call("eth_sendRawTransaction", ("0x" + raw.hex(),), read=read, tolerates=tolerates)
