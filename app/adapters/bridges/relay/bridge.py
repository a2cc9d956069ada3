"""The `BridgeProvider` port for ether by a relayer's order: deposited here, paid out there, verified on both chains."""

from __future__ import annotations

from app.adapters.bridges.relay import payments
from app.adapters.bridges.relay.orders import BridgeChainIds, OrderService, OrderStatus
from app.adapters.bridges.relay.payments import PaymentNotFound
from app.adapters.evm.chain import EvmChain
from app.adapters.evm.send import simulation
from app.adapters.evm.send.transactions import ContractCall
from app.ports.bridges import (
    BridgeLegKind,
    BridgeOffer,
    BridgePhase,
    BridgeProgress,
    BridgeRequest,
    BridgeStep,
    BridgeTransfer,
)
from app.ports.chain import SignedTransaction, TransferIntent
from app.ports.errors import Rejected
from app.ports.vault import Signer

_TYPICAL_GAS = 150_000


class OrderBridge:
    """Orders of one service between two EVM chains. Opens no connection before the first call."""

    def __init__(self, source: EvmChain, destination: EvmChain, service: OrderService) -> None:
        self._source = source
        self._destination = destination
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
        """Draft the deposit, and simulate that it takes the amount and nothing else. Raises: Rejected, Unreachable."""
        request = offer.request
        call = ContractCall.from_terms(offer.terms)
        if call is None:
            raise ValueError("this is not an offer of an order")
        target = call.target
        draft = self._source.draft_call(
            TransferIntent(request.sender, target.to, request.amount), call, gas=_TYPICAL_GAS, simulates=True
        )
        rpc, deployment = self._source.rpc, self._source.deployment
        simulation.assert_takes_ether(rpc, deployment, request.sender, target, max_fee_units=draft.fee_units)
        return (BridgeStep(BridgeLegKind.SOURCE, request.source, draft),)

    def sign(self, step: BridgeStep, signer: Signer, *, sequence: int | None) -> SignedTransaction:
        return self._source.sign(step.draft, signer, sequence=sequence)

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

    def prepare_delivery(self, transfer: BridgeTransfer) -> BridgeStep:
        """Refuse: the service delivers. Raises: Rejected."""
        raise Rejected("nothing_to_deliver", details={"source_hash": transfer.source_hash})
