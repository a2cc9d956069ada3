"""The `Bridge` port for ether by a service's order: deposited here, paid out there, seen on both chains."""

from __future__ import annotations

from app.adapters.evm import rehearsal
from app.adapters.evm.chain import EvmChain
from app.adapters.evm.transactions import ContractCall, Target
from app.adapters.relay import payments
from app.adapters.relay.orders import Chains, Fate, OrderService
from app.adapters.relay.payments import Missing
from app.ports.bridges import Ask, Crossing, Leg, Offer, Phase, Progress, Step
from app.ports.chain import Intent, Signed
from app.ports.errors import Rejected
from app.ports.vault import Signer

_USUAL_GAS = 150_000


class OrderBridge:
    """Orders of one service between two EVM chains. Opens no connection before the first verb."""

    def __init__(self, source: EvmChain, destination: EvmChain, service: OrderService) -> None:
        """Take both chains and the service."""
        self._source = source
        self._destination = destination
        self._service = service
        self._chains = Chains(source.deployment.chain_id, destination.deployment.chain_id)

    @property
    def name(self) -> str:
        """The service's name."""
        return self._service.name

    def quote(self, ask: Ask) -> Offer:
        """Ask for an order.

        Raises: Rejected("quote_unavailable", "amount_too_small", "unsafe_instructions"), Unreachable.
        """
        promise = self._service.promise(ask, self._chains)
        if not 0 < promise.minimum_units <= ask.amount.units:
            raise Rejected("quote_unavailable")
        call = ContractCall(promise.target).as_terms()
        return Offer(
            ask=ask,
            route=self._service.route,
            fee_units=ask.amount.units - promise.minimum_units,
            seconds=promise.seconds,
            terms={
                **promise.terms,
                **call,
                "minimum": str(promise.minimum_units),
                "since": self._destination.head().number,
                "source_since": self._source.head().number,
            },
            may_return=True,
        )

    def prepare(self, offer: Offer) -> tuple[Step, ...]:
        """Draft the deposit, and rehearse that it takes the amount and nothing else. Raises: Rejected, Unreachable."""
        ask = offer.ask
        target = _target_in(offer)
        draft = self._source.draft_call(
            Intent(ask.sender, target.to, ask.amount), ContractCall(target), gas=_USUAL_GAS, simulates=True
        )
        seen = rehearsal.rehearse(self._source, ask.sender, [target], spender=target.to)
        if seen is not None:
            left = -seen.native_units
            takes_more = not ask.amount.units <= left <= ask.amount.units + draft.fee_units
            if takes_more or seen.usdc_units != 0 or seen.allowance_units != 0:
                raise Rejected("unsafe_instructions")
        return (Step(Leg.SOURCE, ask.source, draft),)

    def sign(self, step: Step, signer: Signer, *, sequence: int | None) -> Signed:
        """Sign a step. Pure."""
        return self._source.sign(step.draft, signer, sequence=sequence)

    def follow(self, crossing: Crossing) -> Progress:
        """Ask how the order stands, and believe what a chain shows. Raises: Unreachable."""
        ask, terms = crossing.ask, crossing.terms
        standing = self._service.standing(terms, crossing.source_hash, self._chains)
        if standing.fate is Fate.OPEN or standing.tx_hash is None:
            return Progress(Phase.WAITING, note=standing.note)
        if standing.fate is Fate.REFUNDED:
            came_back = payments.find(
                self._source, standing.tx_hash,
                recipient=ask.sender, at_least=1, since=int(terms.get("source_since") or 0),
            )  # fmt: skip
            if isinstance(came_back, Missing):
                return Progress(
                    Phase.WAITING, note=f"refund_{came_back}",
                    is_lost=payments.brings_nothing(self._source, standing.tx_hash, recipient=ask.sender),
                )  # fmt: skip
            return Progress(Phase.REFUNDED, arrival=came_back)
        arrival = payments.find(
            self._destination, standing.tx_hash,
            recipient=ask.recipient, at_least=int(str(terms["minimum"])), since=int(terms.get("since") or 0),
        )  # fmt: skip
        if isinstance(arrival, Missing):
            return Progress(
                Phase.WAITING, note=f"payment_{arrival}",
                is_lost=payments.brings_nothing(self._destination, standing.tx_hash, recipient=ask.recipient),
            )  # fmt: skip
        return Progress(Phase.ARRIVED, arrival=arrival)

    def deliver(self, crossing: Crossing) -> Step:
        """Refuse: the service delivers. Raises: Rejected."""
        raise Rejected("nothing_to_deliver", details={"source_hash": crossing.source_hash})


def _target_in(offer: Offer) -> Target:
    call = ContractCall.from_terms(offer.terms)
    if call is None:
        raise ValueError("this is not an offer of an order")
    return call.target
