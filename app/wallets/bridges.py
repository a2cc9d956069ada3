"""The story of a bridge: tokens leave a wallet on one chain for the same wallet on another.

What counts against the limits is the fee. Everything that leaves the source chain is signed and recorded in one unit;
from then on the source transaction's hash alone leads to the end, which `bridge_steps` brings about.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeVar

import structlog

from app.core import clock
from app.core.chains import ChainName, native
from app.core.identifiers import new_id
from app.core.money import TokenAmount
from app.core.unit_of_work import reading, unit_of_work
from app.extensions import db
from app.ports import provider
from app.ports.bridges import Ask, Bridge, Offer, Step
from app.ports.chain import Chain
from app.ports.errors import PortError, Rejected, Unreachable
from app.ports.vault import Signer
from app.spending import service as spending
from app.wallets import (
    bridge_fees,
    bridge_legs,
    bridge_steps,
    custody,
    history,
    lifecycle,
    movements,
    network_fees,
    settlement,
    tracking,
    waiting,
)
from app.wallets import models as tables
from app.wallets.bridge_legs import Sent
from app.wallets.bridge_states import Stage
from app.wallets.lifecycle import Kind, Status, TransactionType
from app.wallets.movements import Movement, NotAffordable
from app.wallets.orders import BridgeOrder
from app.wallets.service import WalletView
from app.web import idempotency

Done = TypeVar("Done")

_log = structlog.get_logger(__name__)
# With these, what one way cannot do another may.
_TRY_THE_NEXT = frozenset({"quote_unavailable", "unsafe_instructions", "bridge_fee_too_high"})


@dataclass(frozen=True, slots=True)
class Quote:
    """What a dry run learns: by which way it would go, what that costs at most, and how long it usually takes."""

    route: str
    fee: TokenAmount
    value_nanos: int | None
    network_fee: TokenAmount
    network_fee_nanos: int | None
    seconds: int


@dataclass(frozen=True, slots=True)
class _Plan:
    adapter: Bridge
    offer: Offer
    steps: tuple[Step, ...]
    movement: Movement


def quote(wallet: WalletView, order: BridgeOrder) -> Quote:
    """Check limits, services and chains as `send` would, and sign nothing. Raises: what `send` raises before."""
    movements.assert_allowed(_movement(wallet, order, value_nanos=0))

    def assert_possible(plan: _Plan) -> _Plan:
        with reading():
            movements.check(plan.movement)
            for step in plan.steps:
                movements.assert_affordable(_leg(wallet, step), step.draft)
        return plan

    try:
        plan = _on_fresh_facts(wallet, order, assert_possible)
    except (PortError, NotAffordable) as error:
        raise movements.failure(
            TransactionType.TRANSFER, error.reason, error.details, kind=Kind.BRIDGE
        ) from None
    network_fee = sum(step.draft.fee_units for step in plan.steps)
    return Quote(
        route=plan.offer.route,
        fee=TokenAmount(plan.offer.fee_units, order.amount.token),
        value_nanos=plan.movement.value_nanos,
        network_fee=TokenAmount(network_fee, native(order.source)),
        network_fee_nanos=network_fees.fee_nanos(order.source, network_fee),
        seconds=plan.offer.seconds,
    )


def send(wallet: WalletView, order: BridgeOrder, *, wait_seconds: Decimal) -> history.TransactionView:
    """Send tokens on their way, and wait for the source chain as long as asked.

    Returns a `pending` transaction; it is confirmed once they have arrived.

    Raises: the 403 classes of a refused limit; PriceUnavailable; BridgeFailed when it certainly did not happen.
    """
    unpriced = _movement(wallet, order, value_nanos=0)
    # First without a price: who is frozen need not cost questions to anybody.
    movements.assert_allowed(unpriced)
    signer = custody.signer_of(wallet.id)
    try:
        recorded, sent = _on_fresh_facts(wallet, order, lambda plan: _commit(plan, signer))
    except (PortError, NotAffordable) as error:
        raise movements.refuse(unpriced, error.reason, error.details) from None
    view = _send_and_look(recorded, sent, wait_seconds=wait_seconds)
    if view.status == Status.FAILED:
        raise movements.failure(
            TransactionType.TRANSFER, view.error or "failed", {},
            transaction_id=view.id, tx_hash=view.tx_hash, kind=Kind.BRIDGE,
        )  # fmt: skip
    return view


def _on_fresh_facts(wallet: WalletView, order: BridgeOrder, do: Callable[[_Plan], Done]) -> Done:
    """Plan and go on with it; where only what is pending stands against it, see first whether it still is.

    Raises: Rejected, NotAffordable, the 403 classes.
    """
    plan = _planned(wallet, order)
    try:
        return do(plan)
    except NotAffordable:
        if plan.steps[0].draft.sequence is not None:
            raise  # the nonce has told what the balances include
        try:
            tracking.settle_landed(_chain(order.source), wallet.address_on(order.source))
        except Unreachable as error:
            raise Rejected("chain_unreachable", details=error.details) from None
    return do(_planned(wallet, order))


def _planned(wallet: WalletView, order: BridgeOrder) -> _Plan:
    """Beat 0: take the first way that is open. Raises: Rejected, the 403 classes."""
    route = (order.source, order.destination, order.amount.token)
    refusal = Rejected("quote_unavailable")
    for adapter in provider.current().bridges[route]:
        try:
            return _plan(wallet, order, adapter)
        except Unreachable as error:
            refusal = Rejected("chain_unreachable", details=error.details)
        except Rejected as error:
            if error.reason not in _TRY_THE_NEXT:
                raise
            refusal = error
        _log.warning("bridge_way_closed", adapter=adapter.name, reason=refusal.reason)
    raise refusal


def _plan(wallet: WalletView, order: BridgeOrder, adapter: Bridge) -> _Plan:
    ask = Ask(
        order.source, order.destination, wallet.address_on(order.source),
        wallet.address_on(order.destination), order.amount,
    )  # fmt: skip
    offer = adapter.quote(ask)
    _assert_fair(offer)
    fee = TokenAmount(offer.fee_units, order.amount.token)
    value_nanos = movements.worth_nanos(fee) if fee.units else 0
    movement = _movement(wallet, order, value_nanos=value_nanos)
    movements.assert_allowed(movement)
    steps = adapter.prepare(offer)
    for step in steps:
        if not network_fees.is_within_cap(step.chain, step.draft.fee_units):
            raise Rejected("network_fee_too_high")
    return _Plan(adapter, offer, steps, movement)


def _assert_fair(offer: Offer) -> None:
    """Refuse a way that keeps more than a share of the amount and the operator's cap for network fees together."""
    amount = offer.ask.amount
    if not bridge_fees.are_fair(offer.fee_units, amount):
        raise Rejected(
            "bridge_fee_too_high", details={"fee": str(TokenAmount(offer.fee_units, amount.token))}
        )


def _commit(plan: _Plan, signer: Signer) -> tuple[history.TransactionView, tuple[Sent, ...]]:
    """Beat 1: everything that must be true before the bytes leave, in one unit."""
    bridge_id, now, movement = new_id(), clock.now(), plan.movement
    wallet = movement.wallet
    with unit_of_work():
        spending.hold(
            wallet.id, reference=bridge_id, value_nanos=movement.value_nanos,
            recipient=None, family=movement.chain.family,
        )  # fmt: skip
        sent = []
        for step in plan.steps:
            movements.assert_affordable(_leg(wallet, step), step.draft)
            sent.append(bridge_legs.record(bridge_id, wallet.id, step, plan.adapter, signer))
        transaction = movements.row_of(bridge_id, movement)
        transaction.tx_hash = sent[-1].signed.tx_hash
        lifecycle.record(transaction, status=Status.PENDING)
        db.session.add(
            tables.Bridge(
                id=bridge_id, wallet_id=wallet.id, adapter=plan.adapter.name, route=plan.offer.route,
                destination_chain=plan.offer.ask.destination.value, stage=Stage.SOURCE.value,
                fee_units=plan.offer.fee_units, terms=dict(plan.offer.terms), proof={},
                may_return=plan.offer.may_return,
                next_step_at=now + settlement.FIRST_CHECK_AFTER, steps=0,
            )
        )  # fmt: skip
        db.session.flush()
        idempotency.bind(bridge_id)
        return history.view_of(transaction), tuple(sent)


def _send_and_look(
    recorded: history.TransactionView, sent: tuple[Sent, ...], *, wait_seconds: Decimal
) -> history.TransactionView:
    """Beats 2 and 3. Whatever breaks here, it is on its way: it is answered as recorded, never with a 500."""
    try:
        is_sent = True
        for leg in sent:
            is_sent = movements.broadcast(_chain(leg.chain), leg.transaction_id, leg.signed) and is_sent
        if is_sent:
            source = sent[-1]
            watch = settlement.watch(source.transaction_id, source.sender, source.signed)
            waiting.for_outcome(source.chain, watch, seconds=wait_seconds)
            bridge_steps.take_stock(recorded.id)
        return history.movement(recorded.id)
    except Exception:
        _log.exception("bridge_left_to_the_workers", transaction_id=recorded.id)
        return recorded


def _movement(wallet: WalletView, order: BridgeOrder, *, value_nanos: int | None) -> Movement:
    # It goes to the wallet itself and nowhere else, so that there is nobody to be allowed.
    return Movement(
        wallet=wallet, type=TransactionType.TRANSFER, kind=Kind.BRIDGE, chain=order.source,
        recipient=wallet.address_on(order.destination), payee=None, amount=order.amount,
        value_nanos=value_nanos,
    )  # fmt: skip


def _leg(wallet: WalletView, step: Step) -> Movement:
    intent = step.draft.intent
    return Movement(
        wallet=wallet, type=TransactionType.TRANSFER, kind=Kind.BRIDGE_LEG, chain=step.chain,
        recipient=intent.recipient, payee=None, amount=intent.amount, value_nanos=0,
    )  # fmt: skip


def _chain(name: ChainName) -> Chain:
    return provider.current().chains[name]
