"""The transaction on Solana that received a message: found among those that list the account of its nonce.

The account proves that some message with this nonce was received; only the received bytes show which.
"""

from __future__ import annotations

import time

from solders.commitment_config import CommitmentLevel

from app.adapters.bridges.cctp import instructions, messages
from app.adapters.bridges.cctp.chain_protocol import MintNotFound, first_arrival
from app.adapters.bridges.cctp.messages import CctpMessage, MessageMismatchError
from app.adapters.jsonrpc.endpoint import RpcEndpoint
from app.adapters.solana.client.rpc import MAX_LARGE_BATCH, SolanaRpc
from app.adapters.solana.client.wire import HistoryEntry, TracedTransaction
from app.adapters.solana.track import account_history
from app.ports.bridges import BridgeArrival
from app.ports.chain import BlockRef

_MAX_PAGES = 10
_READ_TIMEOUT_NANOSECONDS = 10 * 10**9


def find_mint(rpc: SolanaRpc, message: CctpMessage, *, hint: str | None) -> BridgeArrival | MintNotFound:
    """Return what received a message with a used nonce, or why that is unknown."""
    return first_arrival(rpc.run_on_each(lambda endpoint: _find_at_endpoint(endpoint, message, hint=hint)))


def _find_at_endpoint(endpoint: RpcEndpoint, message: CctpMessage, *, hint: str | None) -> BridgeArrival | MintNotFound:
    """Check our own transaction, then the account's history from its beginning. Raises: EndpointError."""
    hinted = [] if hint is None else [hint]
    found = _first_mint(endpoint, hinted, message)
    if found is None:
        found = _first_mint(endpoint, [entry.signature for entry in _history(endpoint, message)], message)
    return MintNotFound.UNREADABLE if found is None else found


def _history(endpoint: RpcEndpoint, message: CctpMessage) -> list[HistoryEntry]:
    """Return the first entries of the nonce's account, oldest first; none if its beginning is too old."""
    account, before = str(instructions.used_nonce(message)), None
    for _ in range(_MAX_PAGES):
        page = endpoint.ask(account_history.page_before(account, before))
        if len(page) < account_history.MAX_PAGE:
            return [*reversed(page)]
        before = page[-1].signature
    return []


def _first_mint(
    endpoint: RpcEndpoint, signatures: list[str], message: CctpMessage
) -> BridgeArrival | MintNotFound | None:
    """Return what the first transaction that used the nonce received; None if none is shown to have."""
    until = time.monotonic_ns() + _READ_TIMEOUT_NANOSECONDS
    for start in range(0, len(signatures), MAX_LARGE_BATCH):
        some = signatures[start : start + MAX_LARGE_BATCH]
        calls = [account_history.traced_transaction(each, CommitmentLevel.Confirmed) for each in some]
        endpoint.run(calls, max_batch=MAX_LARGE_BATCH)
        for signature, call in zip(some, calls, strict=True):
            traced = None if call.error is not None else call.result
            # A replay fails, and lists the account as well.
            if traced is not None and not traced.failed:
                found = _received_mint(signature, traced, message)
                if found is not None:
                    return found
        if time.monotonic_ns() >= until:
            break
    return None


def _received_mint(
    signature: str, traced: TracedTransaction, message: CctpMessage
) -> BridgeArrival | MintNotFound | None:
    for program, data in traced.calls:
        received = instructions.received_message(data) if program == str(instructions.TRANSMITTER) else None
        if received is None:
            continue
        try:
            received_message = messages.read(received)
        except MessageMismatchError:
            continue
        if received_message.nonce != message.nonce:
            continue
        if received_message.burn != message.burn:
            return MintNotFound.NOT_FOUND
        slot = traced.slot
        return BridgeArrival(
            received_message.burn.units - received_message.fee_units, signature, BlockRef(slot, signature)
        )
    return None
