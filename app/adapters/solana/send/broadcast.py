"""Broadcasting of signed transactions to Solana nodes."""

from solders.rpc.config import RpcSendTransactionConfig
from solders.rpc.requests import SendRawTransaction

from app.adapters.jsonrpc.calls import accept_any_error
from app.adapters.jsonrpc.rpc import Broadcaster
from app.adapters.solana.client.calls import SolanaRpc, SolanaRpcCall
from app.adapters.solana.client.wire import text
from app.adapters.solana.send import refusals, transactions
from app.core.foreign import MalformedResponseError

# A node's preflight and its own retries are of no use: the same bytes are sent again until they land or expire.
_CONFIG = RpcSendTransactionConfig(skip_preflight=True, max_retries=0)


def broadcaster(rpc: SolanaRpc) -> Broadcaster:
    return Broadcaster(
        rpc,
        _send_call,
        refusals=refusals.SEND_REFUSALS,
        is_accepted=lambda reason, _raw: reason == refusals.ALREADY_PROCESSED,
    )


def _send_call(raw: bytes) -> SolanaRpcCall[None]:
    expected = transactions.signature_of(raw)

    def read(result: object) -> None:
        if text(result) != expected:
            raise MalformedResponseError("expected the transaction's signature")

    return SolanaRpcCall(SendRawTransaction(raw, _CONFIG), read, tolerates=accept_any_error)
