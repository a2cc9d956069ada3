"""Which transaction on Solana received a message: read out of those that name the account of its nonce.

That the account is there tells of some message with this nonce; which one, only the bytes that were received tell.
"""

from __future__ import annotations

import time

from solders.commitment_config import CommitmentLevel

from app.adapters.cctp import instructions, messages
from app.adapters.cctp.messages import ForeignMessageError, Message
from app.adapters.cctp.sides import Unseen
from app.adapters.solana import histories
from app.adapters.solana.endpoint import MAX_LARGE_BATCH, Endpoint, EndpointFailedError
from app.adapters.solana.rpc import SolanaRpc
from app.adapters.solana.wire import Called, Entry
from app.ports.bridges import Arrival
from app.ports.chain import BlockRef

_MOST_PAGES = 10
_READING_NANOSECONDS = 10 * 10**9


def find(rpc: SolanaRpc, message: Message, *, hint: str | None) -> Arrival | Unseen:
    """Return what received a message whose nonce is used, or why that is not known.

    Every endpoint is asked until one knows: most keep the transactions of some days only.
    """
    seen = Unseen.UNREADABLE
    for endpoint in rpc.candidates():
        try:
            found = _at(endpoint, message, hint=hint)
        except EndpointFailedError as failure:
            endpoint.rest(failure)
            continue
        if isinstance(found, Arrival):
            return found
        seen = found if found is Unseen.NOT_SEEN else seen
    return seen


def _at(endpoint: Endpoint, message: Message, *, hint: str | None) -> Arrival | Unseen:
    """Look at our own transaction, then at the account's history from its beginning. Raises: EndpointFailedError."""
    looked_at = [] if hint is None else [hint]
    found = _first(endpoint, looked_at, message)
    if found is None:
        found = _first(endpoint, [entry.signature for entry in _history(endpoint, message)], message)
    return Unseen.UNREADABLE if found is None else found


def _history(endpoint: Endpoint, message: Message) -> list[Entry]:
    """Return the oldest entries of the nonce's account, the oldest first; nothing where its beginning is too far."""
    account, before = str(instructions.used_nonce(message)), None
    for _ in range(_MOST_PAGES):
        page = histories.page_before(account, before)
        endpoint.run(page)
        if len(page.answer) < histories.LONGEST_PAGE:
            return [*reversed(page.answer)]
        before = page.answer[-1].signature
    return []


def _first(endpoint: Endpoint, signatures: list[str], message: Message) -> Arrival | Unseen | None:
    """Return what the first transaction that used the nonce received; None where none of them is seen to have."""
    until = time.monotonic_ns() + _READING_NANOSECONDS
    for start in range(0, len(signatures), MAX_LARGE_BATCH):
        some = signatures[start : start + MAX_LARGE_BATCH]
        calls = [histories.called(each, CommitmentLevel.Confirmed) for each in some]
        endpoint.run(*calls, at_once=MAX_LARGE_BATCH)
        for signature, call in zip(some, calls, strict=True):
            shown = None if call.error is not None else call.answer
            # A replay fails, and names the account as well.
            if shown is not None and not shown.landed.failed:
                found = _received(signature, shown, message)
                if found is not None:
                    return found
        if time.monotonic_ns() >= until:
            break
    return None


def _received(signature: str, shown: Called, message: Message) -> Arrival | Unseen | None:
    for program, said in shown.calls:
        received = instructions.received(said) if program == str(instructions.TRANSMITTER) else None
        if received is None:
            continue
        try:
            seen = messages.read(received)
        except ForeignMessageError:
            continue
        if seen.nonce != message.nonce:
            continue
        if seen.burn != message.burn:
            return Unseen.NOT_SEEN
        slot = shown.landed.slot
        return Arrival(seen.burn.units - seen.fee_units, signature, BlockRef(slot, signature))
    return None
