"""Whether a chain shows the payment that a service says it has made: nothing is called paid by its word alone."""

from __future__ import annotations

from app.adapters.evm.chain import EvmChain
from app.adapters.evm.endpoint import Call, RpcError
from app.adapters.evm.wire import Receipt, quantity, receipt_or_none
from app.ports.bridges import Arrival

_REORGANISED_AT_MOST = 8
"""A block that was the newest may be replaced by one of a lower number."""


def find(chain: EvmChain, tx_hash: str, *, recipient: str, at_least: int, since: int) -> Arrival | None:
    """Return what a transaction brought a recipient in native coins, None while the chain does not show it.

    What was there before block `since` pays for nothing that was asked for then. A direct payment shows its value;
    one by a contract shows in the balance around its block. Raises: Unreachable.
    """
    receipt = Call("eth_getTransactionReceipt", (tx_hash,), read=receipt_or_none, tolerates=_anything)
    sent = Call("eth_getTransactionByHash", (tx_hash,), read=_payment, tolerates=_anything)
    chain.rpc.run(receipt, sent)
    if receipt.error is not None or sent.error is not None:
        return None
    landed = receipt.answer
    if landed is None or not landed.succeeded or landed.block.number < since - _REORGANISED_AT_MOST:
        return None
    to, units = sent.answer
    if to != recipient.lower():
        units = _gained(chain, landed, recipient)
    return Arrival(units, landed.tx_hash, landed.block, is_sole=True) if units >= at_least else None


def is_final(chain: EvmChain, tx_hash: str) -> bool:
    """Tell whether a transaction is in a block that no reorganisation takes away. Raises: Unreachable."""
    receipt = Call("eth_getTransactionReceipt", (tx_hash,), read=receipt_or_none, tolerates=_anything)
    chain.rpc.run(receipt)
    if receipt.error is not None or receipt.answer is None:
        return False
    block = receipt.answer.block
    gone, safe = chain.orphaned([block])
    return block not in gone and block.number <= safe


def _gained(chain: EvmChain, receipt: Receipt, recipient: str) -> int:
    """Return what the block of a transaction brought a recipient; 0 where the state is pruned."""
    number = receipt.block.number
    after, before = (
        Call("eth_getBalance", (recipient, hex(block)), read=quantity, tolerates=_anything)
        for block in (number, number - 1)
    )
    chain.rpc.run(after, before)
    if after.error is not None or before.error is not None:
        return 0
    return after.answer - before.answer


def _payment(answer: object) -> tuple[str, int]:
    if not isinstance(answer, dict):
        return "", 0
    return str(answer.get("to") or "").lower(), quantity(answer.get("value"))


def _anything(_error: RpcError) -> bool:
    return True
