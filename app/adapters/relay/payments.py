"""Whether a chain shows the payment that a service says it has made: nothing is called paid by its word alone."""

from __future__ import annotations

from enum import StrEnum

from app.adapters.evm.chain import EvmChain
from app.adapters.evm.endpoint import Call, RpcError
from app.adapters.evm.wire import Receipt, quantity, receipt_or_none
from app.ports.bridges import Arrival
from app.ports.errors import Unreachable

_REORGANISED_AT_MOST = 8
"""A block that was the newest may be replaced by one of a lower number."""


class Missing(StrEnum):
    """Why a payment is not found."""

    NOT_SEEN = "not_seen"
    """The chain does not show it, or shows less."""
    UNREADABLE = "unreadable"
    """No node can tell: it gave an error, or keeps no states of that block any more."""


def find(chain: EvmChain, tx_hash: str, *, recipient: str, at_least: int, since: int) -> Arrival | Missing:
    """Return what a transaction brought a recipient in native coins, or why that is not known.

    What was there before block `since` pays for nothing that was asked for then. A direct payment shows its value;
    one by a contract shows in the balance around its block. Raises: Unreachable.
    """
    receipt = Call("eth_getTransactionReceipt", (tx_hash,), read=receipt_or_none, tolerates=_anything)
    sent = Call("eth_getTransactionByHash", (tx_hash,), read=_payment, tolerates=_anything)
    chain.rpc.run(receipt, sent)
    if receipt.error is not None or sent.error is not None:
        return Missing.UNREADABLE
    landed = receipt.answer
    if landed is None or not landed.succeeded or landed.block.number < since - _REORGANISED_AT_MOST:
        return Missing.NOT_SEEN
    to, units = sent.answer
    if to != recipient.lower():
        changed = _changed(chain, landed, recipient)
        if changed is None:
            return Missing.UNREADABLE
        units, _ = changed
    if units < at_least:
        return Missing.NOT_SEEN
    return Arrival(units, landed.tx_hash, landed.block, is_sole=True)


def brings_nothing(chain: EvmChain, tx_hash: str, *, recipient: str) -> bool:
    """Tell whether a transaction has certainly brought a recipient nothing, for ever.

    It is beyond reorganisation, and reverted, or was read to leave the recipient as it was. Raises: Unreachable.
    """
    receipt = Call("eth_getTransactionReceipt", (tx_hash,), read=receipt_or_none, tolerates=_anything)
    chain.rpc.run(receipt)
    if receipt.error is not None or receipt.answer is None:
        return False
    block = receipt.answer.block
    gone, safe = chain.orphaned([block])
    if block in gone or block.number > safe:
        return False
    # What the recipient sent in that very block may hide what it got.
    return not receipt.answer.succeeded or _changed(chain, receipt.answer, recipient) == (0, 0)


def _changed(chain: EvmChain, receipt: Receipt, recipient: str) -> tuple[int, int] | None:
    """Return what the block of a transaction brought a recipient, and how many transactions of its own it had there.

    None where no node keeps the states any more.
    """
    now, before = hex(receipt.block.number), hex(receipt.block.number - 1)
    calls = [
        Call(method, (recipient, block), read=quantity)
        for method in ("eth_getBalance", "eth_getTransactionCount")
        for block in (now, before)
    ]
    try:
        chain.rpc.run(*calls)
    except Unreachable:
        return None
    held, held_before, sent, sent_before = (call.answer for call in calls)
    return held - held_before, sent - sent_before


def _payment(answer: object) -> tuple[str, int]:
    if not isinstance(answer, dict):
        return "", 0
    return str(answer.get("to") or "").lower(), quantity(answer.get("value"))


def _anything(_error: RpcError) -> bool:
    return True
