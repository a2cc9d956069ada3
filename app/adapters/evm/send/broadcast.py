"""Broadcasting of signed transactions to EVM nodes."""

from app.adapters.evm.client import calls
from app.adapters.evm.client.rpc import EvmRpc
from app.adapters.evm.send import refusals
from app.adapters.evm.send.transactions import hash_of
from app.adapters.jsonrpc.calls import RpcCall, accept_any_error
from app.adapters.jsonrpc.rpc import Broadcaster
from app.core.foreign import MalformedResponseError
from app.ports.errors import OutcomeUnknown, Unreachable


def broadcaster(rpc: EvmRpc, *, reads: EvmRpc) -> Broadcaster:
    """Return what broadcasts to these endpoints; receipts are read from the others."""

    def is_accepted(reason: str, raw: bytes) -> bool:
        # A used nonce may be the effect of these very bytes.
        return reason == refusals.ALREADY_KNOWN or (reason == "nonce_too_low" and _is_mined(reads, raw))

    return Broadcaster(rpc, _send_call, refusals=refusals.SEND_REFUSALS, is_accepted=is_accepted)


def _is_mined(rpc: EvmRpc, raw: bytes) -> bool:
    receipt = calls.receipt(hash_of(raw))
    try:
        rpc.run(receipt)
    except Unreachable:
        raise OutcomeUnknown("answer_lost") from None
    return receipt.result is not None


def _send_call(raw: bytes) -> RpcCall[None]:
    """Return the call that sends, which web3 allows in no batch."""
    expected = hash_of(raw)

    def read(result: object) -> None:
        if not isinstance(result, str) or result.lower() != expected:
            raise MalformedResponseError("expected the transaction's hash")

    return RpcCall("eth_sendRawTransaction", ("0x" + raw.hex(),), read=read, tolerates=accept_any_error)
