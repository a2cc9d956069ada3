"""Verification on the chain of the payment that a service reports: its claim proves nothing."""

from __future__ import annotations

from enum import StrEnum

from app.adapters.evm.chain import EvmChain
from app.adapters.evm.client import calls
from app.adapters.evm.client.wire import TransactionReceipt
from app.adapters.jsonrpc.calls import accept_any_error
from app.ports.bridges import BridgeArrival
from app.ports.errors import Unreachable

_MAX_REORG_BLOCKS = 8
"""A block that was the newest may be replaced by one of a lower number."""


class PaymentNotFound(StrEnum):
    NOT_FOUND = "not_seen"
    """The chain does not show it, or shows less."""
    UNREADABLE = "unreadable"
    """No node can show it: it returned an error, or no longer keeps the states of that block."""


def find_payment(
    chain: EvmChain, tx_hash: str, *, recipient: str, at_least: int, not_before: int
) -> BridgeArrival | PaymentNotFound:
    """Return what a transaction paid a recipient in native coins, or why that is unknown.

    A payment before block `not_before` does not count. A direct payment shows its value; one by a contract shows in
    the balance around its block. Raises: Unreachable.
    """
    receipt = calls.receipt(tx_hash, tolerates=accept_any_error)
    sent = calls.transaction(tx_hash, tolerates=accept_any_error)
    chain.rpc.run(receipt, sent)
    if receipt.error is not None or sent.error is not None:
        return PaymentNotFound.UNREADABLE
    landed = receipt.result
    if landed is None or not landed.succeeded or landed.block.number < not_before - _MAX_REORG_BLOCKS:
        return PaymentNotFound.NOT_FOUND
    units = 0 if sent.result is None else sent.result.value_units
    if sent.result is None or sent.result.recipient != recipient:
        changed = _balance_change(chain, landed, recipient)
        if changed is None:
            return PaymentNotFound.UNREADABLE
        units, _ = changed
    if units < at_least:
        return PaymentNotFound.NOT_FOUND
    return BridgeArrival(units, landed.tx_hash, landed.block, is_single_payment=True)


def paid_nothing(chain: EvmChain, tx_hash: str, *, recipient: str) -> bool:
    """Return whether a transaction has permanently paid a recipient nothing.

    It is final, and reverted, or left the recipient's balance unchanged. Raises: Unreachable.
    """
    receipt = calls.receipt(tx_hash, tolerates=accept_any_error)
    chain.rpc.run(receipt)
    if receipt.error is not None or receipt.result is None:
        return False
    block = receipt.result.block
    orphaned, safe = chain.orphaned_blocks([block])
    if block in orphaned or block.number > safe:
        return False
    # The recipient's own transactions in that block may hide what it received.
    return not receipt.result.succeeded or _balance_change(chain, receipt.result, recipient) == (0, 0)


def _balance_change(chain: EvmChain, receipt: TransactionReceipt, recipient: str) -> tuple[int, int] | None:
    """Return the recipient's balance change in a transaction's block, and the number of its own transactions there.

    None if no node still keeps the states.
    """
    now, before = receipt.block_number, receipt.block_number - 1
    held, held_before = calls.balance(recipient, now), calls.balance(recipient, before)
    sent, sent_before = calls.nonce(recipient, now), calls.nonce(recipient, before)
    try:
        chain.rpc.run(held, held_before, sent, sent_before)
    except Unreachable:
        return None
    return held.result - held_before.result, sent.result - sent_before.result
