"""The `BridgeProvider` port for ether by a relayer's order: deposited here, paid out there, verified on both chains."""

from __future__ import annotations

from app.adapters.bridges.ether import EtherBridge
from app.adapters.bridges.relay import payments
from app.adapters.bridges.relay.orders import BridgeChainIds, OrderService, OrderStatus
from app.adapters.bridges.relay.payments import PaymentNotFound
from app.adapters.evm.chain import EvmChain
from app.adapters.evm.send.transactions import ContractCall
from app.ports.bridges import BridgeOffer, BridgePhase, BridgeProgress, BridgeRequest, BridgeStep, BridgeTransfer
from app.ports.errors import Rejected

_TYPICAL_GAS = 150_000


class OrderBridge(EtherBridge):
    def __init__(self, source: EvmChain, destination: EvmChain, service: OrderService) -> None:
        super().__init__(source, destination)
        self._service = service
        self.name = service.name
        self._chains = BridgeChainIds(source.deployment.chain_id, destination.deployment.chain_id)

    def quote(self, request: BridgeRequest) -> BridgeOffer:
        """Request an order.

        Raises: Rejected("quote_unavailable", "quote_rate_limited", "amount_too_small", "unsafe_instructions");
        Unreachable.
        """
        order_quote = self._service.quote(request, self._chains)
        if not 0 < order_quote.minimum_units <= request.amount.units:
            raise Rejected("quote_unavailable")
        call = ContractCall(order_quote.target).as_terms()
        return BridgeOffer(
            request=request,
            route=self._service.route,
            fee_units=request.amount.units - order_quote.minimum_units,
            seconds=order_quote.seconds,
            terms={
                **order_quote.terms,
                **call,
                "minimum": str(order_quote.minimum_units),
                "since": self._destination.head().number,
                "source_since": self._source.head().number,
            },
            is_refundable=True,
        )

    def prepare(self, offer: BridgeOffer) -> tuple[BridgeStep, ...]:
        call = ContractCall.from_terms(offer.terms)
        if call is None:
            raise ValueError("this is not an offer of an order")
        return self._draft_deposit(offer.request, call, gas=_TYPICAL_GAS)

    def progress(self, transfer: BridgeTransfer) -> BridgeProgress:
        """Read the order's state, and verify it on the chain. Raises: Unreachable."""
        request, terms = transfer.request, transfer.terms
        order_state = self._service.order_state(terms, transfer.source_hash, self._chains)
        if order_state.status is OrderStatus.OPEN or order_state.tx_hash is None:
            return BridgeProgress(BridgePhase.WAITING, note=order_state.note)
        is_refund = order_state.status is OrderStatus.REFUNDED
        if is_refund:
            chain, recipient, at_least, since = self._source, request.sender, 1, terms.get("source_since")
        else:
            chain, recipient, at_least = self._destination, request.recipient, int(str(terms["minimum"]))
            since = terms.get("since")
        arrival = payments.find_payment(
            chain, order_state.tx_hash, recipient=recipient, at_least=at_least, not_before=int(since or 0)
        )
        if isinstance(arrival, PaymentNotFound):
            return BridgeProgress(
                BridgePhase.WAITING,
                note=f"{'refund' if is_refund else 'payment'}_{arrival}",
                is_payout_missing=payments.paid_nothing(chain, order_state.tx_hash, recipient=recipient),
            )
        return BridgeProgress(BridgePhase.REFUNDED if is_refund else BridgePhase.ARRIVED, arrival=arrival)
