"""The `BridgeProvider` port for ether by a relayer's order: deposited here, paid out there, verified on both chains.

What a service reports proves nothing: its payment is read from the chain.
"""

from app.adapters.bridges.ether import EtherBridge
from app.adapters.bridges.relay.orders import OrderService
from app.adapters.evm import calls
from app.adapters.evm.calls import TransactionReceipt
from app.adapters.evm.chain import EvmChain
from app.adapters.evm.send.transactions import CallTarget
from app.adapters.jsonrpc.calls import accept_any_error
from app.ports import bridges
from app.ports.errors import Rejected, Unreachable

_MAX_REORG_BLOCKS = 8
"""A block that was the newest may be replaced by one of a lower number."""


def find_payment(
    chain: EvmChain, tx_hash: str, *, recipient: str, at_least: int, not_before: int
) -> bridges.BridgeArrival | bridges.ArrivalNotFound:
    """Return what a transaction paid a recipient in native coins, or why that is unknown.

    A payment before block `not_before` does not count. A direct payment shows its value; one by a contract shows in
    the balance around its block. Raises: Unreachable.
    """
    receipt = calls.receipt(tx_hash, tolerates=accept_any_error)
    sent = calls.transaction(tx_hash, tolerates=accept_any_error)
    chain.rpc.run(receipt, sent)
    if receipt.error is not None or sent.error is not None:
        return bridges.ArrivalNotFound.UNREADABLE
    landed = receipt.result
    if landed is None or not landed.succeeded or landed.block.number < not_before - _MAX_REORG_BLOCKS:
        return bridges.ArrivalNotFound.NOT_FOUND
    units = 0 if sent.result is None else sent.result.value_units
    if sent.result is None or sent.result.recipient != recipient:
        changed = _balance_change(chain, landed, recipient)
        if changed is None:
            return bridges.ArrivalNotFound.UNREADABLE
        units, _ = changed
    if units < at_least:
        return bridges.ArrivalNotFound.NOT_FOUND
    return bridges.BridgeArrival(units, landed.tx_hash, landed.block, is_single_payment=True)


def paid_nothing(chain: EvmChain, tx_hash: str, *, recipient: str) -> bool:
    """Return whether a final transaction reverted, or left a recipient's balance unchanged. Raises: Unreachable."""
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
    """Return a recipient's balance change in a block, and how many transactions it sent; None if no node has both."""
    now, before = receipt.block_number, receipt.block_number - 1
    held, held_before = calls.balance(recipient, now), calls.balance(recipient, before)
    sent, sent_before = calls.nonce(recipient, now), calls.nonce(recipient, before)
    try:
        chain.rpc.run(held, held_before, sent, sent_before)
    except Unreachable:
        return None
    return held.result - held_before.result, sent.result - sent_before.result


class OrderBridge(EtherBridge):
    def __init__(self, source: EvmChain, destination: EvmChain, service: OrderService) -> None:
        super().__init__(source, destination)
        self._service = service
        self.name = service.name

    def quote(self, request: bridges.BridgeRequest) -> bridges.BridgeOffer:
        """Request an order. Raises: Rejected for a quote that is missing or unsafe; Unreachable."""
        order_quote = self._service.quote(request)
        if not 0 < order_quote.minimum_units <= request.amount.units:
            raise Rejected("quote_unavailable")
        return bridges.BridgeOffer(
            request=request,
            route=self._service.route,
            fee_units=request.amount.units - order_quote.minimum_units,
            seconds=order_quote.seconds,
            terms={
                **order_quote.terms,
                **order_quote.target.as_terms(),
                "minimum": str(order_quote.minimum_units),
                "since": self._destination.head().number,
                "source_since": self._source.head().number,
            },
            is_refundable=True,
        )

    def prepare(self, offer: bridges.BridgeOffer) -> tuple[bridges.BridgeStep, ...]:
        target = CallTarget.from_terms(offer.terms)
        if target is None:
            raise ValueError("this is not an offer of an order")
        return self._draft_deposit(offer.request, target, gas=150_000)

    def progress(self, transfer: bridges.BridgeTransfer) -> bridges.BridgeProgress:
        """Read the order's state, and verify it on the chain. Raises: Unreachable."""
        request, terms = transfer.request, transfer.terms
        order_state = self._service.order_state(terms, transfer.source_hash)
        if order_state.phase is bridges.BridgePhase.WAITING or order_state.tx_hash is None:
            return bridges.BridgeProgress(bridges.BridgePhase.WAITING, note=order_state.note)
        is_refund = order_state.phase is bridges.BridgePhase.REFUNDED
        if is_refund:
            chain, recipient, at_least, since = self._source, request.sender, 1, terms.get("source_since")
        else:
            chain, recipient, at_least = self._destination, request.recipient, int(str(terms["minimum"]))
            since = terms.get("since")
        arrival = find_payment(
            chain, order_state.tx_hash, recipient=recipient, at_least=at_least, not_before=int(since or 0)
        )
        if isinstance(arrival, bridges.ArrivalNotFound):
            return bridges.BridgeProgress(
                bridges.BridgePhase.WAITING,
                note=f"{'refund' if is_refund else 'payment'}_{arrival}",
                is_payout_missing=paid_nothing(chain, order_state.tx_hash, recipient=recipient),
            )
        return bridges.BridgeProgress(order_state.phase, arrival=arrival)
