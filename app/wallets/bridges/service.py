"""Bridges: moving tokens to the same wallet on another chain.

Only the fee counts against the limits. All transactions of the source chain are signed and recorded in one unit; from
then on `advance` completes the bridge, identified by the hash of the source transaction. The operator writes off one
that will never arrive, after a check of both chains.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

import structlog

from app.audit_log import trail
from app.audit_log.actors import Actor
from app.audit_log.trail import AuditAction, AuditEvent
from app.core import clock, identifiers
from app.core.chains import ChainName, native
from app.core.money import TokenAmount, parse_amount
from app.core.movement_kinds import MovementKind
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import NotFound, TransactionInProgress
from app.idempotency.service import Claim
from app.ports.bridges import BridgeArrival, BridgeOffer, BridgePhase, BridgeProvider, BridgeRequest, BridgeStep
from app.ports.chain import SignedTransaction
from app.ports.errors import PortError, Rejected, Unreachable
from app.ports.vault import Signer
from app.spending import holds as spending_holds
from app.state import Ports, app_state
from app.wallets import gas
from app.wallets.bridges import advance as bridge_steps
from app.wallets.bridges import state as bridge_states
from app.wallets.bridges.state import BRIDGES, BridgeStage, BridgeState
from app.wallets.core import custody, intents, lifecycle, network_fees
from app.wallets.core import models as tables
from app.wallets.core.lifecycle import MovementStatus, StatusReason, TransactionType
from app.wallets.core.parsing import GasSource
from app.wallets.core.wallets import WalletView
from app.wallets.transactions import failures, pipeline
from app.wallets.transactions.pipeline import Movement, MovementQuote
from app.wallets.views import history

_log = structlog.get_logger(__name__)
# For these reasons, the next adapter is tried.
_TRY_NEXT_ADAPTER_REASONS = frozenset(
    {"quote_unavailable", "quote_rate_limited", "unsafe_instructions", "bridge_fee_too_high"}
)


@dataclass(frozen=True, slots=True)
class BridgeOrder:
    source: ChainName
    destination: ChainName
    amount: TokenAmount
    gas: GasSource = GasSource.AUTO
    max_fee_nanos: int | None = None


class _GasShortage(Rejected):
    """A bridge for which networks cannot be paid, with what lacks on each chain."""

    def __init__(self, quote: MovementQuote, shortages: Sequence[Rejected]) -> None:
        super().__init__(gas.SHORTAGE, details=shortages[0].details)
        self.quote, self.shortages = quote, shortages


@dataclass(frozen=True, slots=True)
class _Plan:
    adapter: BridgeProvider
    offer: BridgeOffer
    steps: tuple[BridgeStep, ...]
    movement: Movement


def quote(wallet: WalletView, order: BridgeOrder) -> MovementQuote:
    """Check limits and simulate like `send`, without signing. Raises: what `send` raises before signing."""
    unpriced = _movement(wallet, order, value_nanos=0)
    pipeline.assert_allowed(unpriced)

    def assert_possible(plan: _Plan) -> _Plan:
        with read_only_unit() as session:
            spending_holds.check(session, wallet.id, plan.movement.spending_request)
            for step in plan.steps:
                pipeline.assert_affordable(session, step.chain, step.draft)
        return plan

    try:
        plan = pipeline.retry_after_settling_pending(
            unpriced, lambda: _plan_first_available(wallet, order), assert_possible
        )
    except PortError as error:
        refusal = failures.failure(TransactionType.TRANSFER, error, kind=MovementKind.BRIDGE)
        if not isinstance(error, _GasShortage) or not gas.are_available(order.gas, order.source, order.amount):
            raise refusal from None
        shortages = [each.details for each in error.shortages]
        return replace(error.quote, movement=gas.quote(error.quote.movement, shortages, without=refusal))
    fee_units = sum(step.draft.fee_units for step in plan.steps)
    return MovementQuote(movement=plan.movement, fee_units=fee_units, offer=plan.offer)


def send(
    wallet: WalletView, order: BridgeOrder, *, wait_seconds: Decimal | None, claim: Claim
) -> history.TransactionView:
    """Send tokens over a bridge and wait for the source chain up to `wait_seconds`.

    Returns a `pending` transaction; it is confirmed once they have arrived.

    Raises: the 403 errors of refused limits; PriceUnavailable; BridgeFailed if it is known not to have happened.
    """
    started_at, unpriced = clock.now(), _movement(wallet, order, value_nanos=0)
    # Checked without a price first: a frozen agent costs no call to the network.
    pipeline.assert_allowed(unpriced)
    signer = custody.signer_of(wallet.id, wallet.addresses)
    try:
        recorded, sent = pipeline.retry_after_settling_pending(
            unpriced, lambda: _plan_first_available(wallet, order), lambda plan: _record_signed(plan, signer, claim)
        )
    except PortError as error:
        if error.reason == gas.SHORTAGE and gas.are_available(order.gas, order.source, order.amount):
            shortages = error.shortages if isinstance(error, _GasShortage) else [error]
            gas.buy(unpriced, shortages, since=started_at, wait_seconds=wait_seconds, claim=claim)
            return send(wallet, replace(order, gas=GasSource.OWN), wait_seconds=wait_seconds, claim=claim)
        raise pipeline.record_failed(unpriced, error, claim=claim) from None
    chain, signed = app_state().ports.chains[order.source], sent[-1][1]
    view = pipeline.broadcast_and_wait(
        chain, recorded, signed, wait_seconds=wait_seconds, account_id=wallet.agent_id, legs=sent,
        after_legs=bridge_steps.apply_source_status,
    )  # fmt: skip
    if view.status == MovementStatus.FAILED:
        raise failures.recorded_failure(view)
    return view


def _plan_first_available(wallet: WalletView, order: BridgeOrder) -> _Plan:
    """Plan the first available route. Raises: PortError, the 403 errors."""
    state = app_state()
    # The limits of the services that give quotes are shared by all agents.
    state.rate_limiter.count(state.settings.quote_rate_limit, "quotes", wallet.agent_id)
    route = (order.source, order.destination, order.amount.token)
    refusal: PortError = Rejected("quote_unavailable")
    for adapter in state.ports.bridges[route]:
        try:
            return _plan_with(wallet, order, adapter)
        except (Unreachable, Rejected) as error:
            if isinstance(error, Rejected) and error.reason not in _TRY_NEXT_ADAPTER_REASONS:
                raise
            refusal = error
        _log.warning("bridge_route_unavailable", adapter=adapter.name, reason=refusal.reason)
    raise refusal


def _plan_with(wallet: WalletView, order: BridgeOrder, adapter: BridgeProvider) -> _Plan:
    """Draft the transactions of the source chain. Raises: _GasShortage, Rejected, Unreachable, the 403 errors."""
    request = BridgeRequest(
        order.source, order.destination, wallet.address_on(order.source),
        wallet.address_on(order.destination), order.amount,
    )  # fmt: skip
    offer = adapter.quote(request)
    if not bridge_states.is_fee_acceptable(offer.fee_units, order.amount):
        raise Rejected("bridge_fee_too_high", details={"fee": str(offer.fee)})
    value_nanos = network_fees.usd_value_nanos(offer.fee) if offer.fee_units else 0
    movement = _movement(wallet, order, value_nanos=value_nanos)
    pipeline.assert_allowed(movement)
    shortages = [] if offer.shortage is None else [Rejected(gas.SHORTAGE, details=offer.shortage)]
    steps: tuple[BridgeStep, ...] = ()
    try:
        steps = adapter.prepare(offer)
        fee_units = sum(step.draft.fee_units for step in steps)
    except Rejected as error:
        if error.reason != gas.SHORTAGE:
            raise
        fee_units = parse_amount(error.details["required"], native(order.source)).units
        shortages.append(error)
    if shortages:
        raise _GasShortage(MovementQuote(movement=movement, fee_units=fee_units, offer=offer), shortages)
    for step in steps:
        network_fees.assert_acceptable(step.chain, step.draft.fee_units)
    network_fees.assert_acceptable(order.source, fee_units, order.max_fee_nanos)
    return _Plan(adapter, offer, steps, movement)


def _record_signed(
    plan: _Plan, signer: Signer, claim: Claim
) -> tuple[history.TransactionView, Sequence[tuple[str, SignedTransaction]]]:
    """Hold the fee, sign all steps and record them: all that must be committed before the broadcast."""
    bridge_id, now, movement = identifiers.new_id(), clock.now(), plan.movement
    wallet = movement.wallet
    legs = [replace(movement.intent(identifiers.new_id()), chain=step.chain, kind=MovementKind.LEG, hold_id=bridge_id)
            for step in plan.steps]  # fmt: skip
    with intents.recording(*legs) as session:
        spending_holds.hold(session, wallet.id, movement.spending_request, reference=bridge_id)
        sent = []
        for step, leg in zip(plan.steps, legs, strict=True):
            pipeline.assert_affordable(session, step.chain, step.draft)
            sent.append(bridge_states.record_leg(session, bridge_id, step, plan.adapter, signer=signer, leg=leg))
        transaction = pipeline.new_transaction(bridge_id, movement)
        transaction.tx_hash = sent[-1][1].tx_hash
        lifecycle.record(session, transaction, status=MovementStatus.PENDING)
        bridge = tables.Bridge(
            id=bridge_id, wallet_id=wallet.id, adapter=plan.adapter.name, route=plan.offer.route,
            destination_chain=plan.offer.request.destination.value,
            fee_units=plan.offer.fee_units, terms=dict(plan.offer.terms), proof={},
            may_return=plan.offer.is_refundable,
            next_step_at=now + lifecycle.first_check_after(movement.chain), steps=0,
        )  # fmt: skip
        BRIDGES.add(session, bridge, BridgeStage.SOURCE)
        session.flush()
        return pipeline.bind_recorded(session, transaction, movement, claim), sent


def _movement(wallet: WalletView, order: BridgeOrder, *, value_nanos: int | None) -> Movement:
    # The recipient is the wallet itself, so no allowlist applies.
    return Movement(
        wallet=wallet, type=TransactionType.TRANSFER, kind=MovementKind.BRIDGE, chain=order.source,
        recipient=wallet.address_on(order.destination), payee=None, amount=order.amount,
        value_nanos=value_nanos, max_fee_nanos=order.max_fee_nanos,
    )  # fmt: skip


def write_off(actor: Actor, transaction_id: str, *, accept_partial_refund: bool) -> None:
    """Close a bridge that never pays out, or only a part: the rest is lost. Reads the network.

    With `accept_partial_refund`, a final payment that is too small to be a refund is accepted.

    Raises: NotFound; TransactionInProgress while it may arrive or be refunded, or if that is unknown.
    """
    missing = NotFound("No bridge has this id.")
    bridge_id = identifiers.require_id(transaction_id, missing)
    state = identifiers.require(bridge_states.read(bridge_id), missing)
    refund = _assert_unrecoverable(app_state().ports, state, accept_partial_refund=accept_partial_refund)
    with unit_of_work() as session:
        bridge = bridge_steps.lock(session, state)
        if bridge is None:
            raise TransactionInProgress("This bridge has ended in another way in the meantime.")
        if refund is not None and bridge_steps.is_claimed_by_another_bridge(session, bridge, refund):
            raise TransactionInProgress("The refund belongs to another bridge of the wallet.")
        bridge_states.move(
            session, bridge, BridgeStage.FAILED, reason=StatusReason.WRITTEN_OFF, next_step_at=None,
            **bridge_states.refund_columns(refund),
        )  # fmt: skip
        after = None if refund is None else {"came_back_units": str(refund.units)}
        trail.record(session, actor, AuditEvent(AuditAction.BRIDGE_WRITTEN_OFF, bridge_id, after=after))


def _assert_unrecoverable(ports: Ports, state: BridgeState, *, accept_partial_refund: bool) -> BridgeArrival | None:
    """Check that a bridge can never arrive or be refunded; return what is accepted as its partial refund."""
    try:
        progress = bridge_steps.adapter_of(ports, state).progress(state.crossing)
        refund = progress.arrival if progress.phase is BridgePhase.REFUNDED else None
        is_partial_refund = refund is not None and _is_final_partial_refund(ports, state, refund)
    except PortError:
        raise TransactionInProgress("The state of this bridge is unknown at the moment; try again later.") from None
    if state.stage is BridgeStage.CROSSING and progress.is_payout_missing:
        return None
    if state.stage is BridgeStage.CROSSING and is_partial_refund and accept_partial_refund:
        return refund
    raise TransactionInProgress(
        "A part of this bridge was refunded by its relayer. To write off the rest, use --accept-partial-refund."
        if is_partial_refund
        else "This bridge may still arrive or be refunded: its relayer reports no payment that is final and is"
        " known to have transferred nothing. If its error is `…_unreadable`, configure a node that keeps old states."
    )


def _is_final_partial_refund(ports: Ports, state: BridgeState, refund: BridgeArrival) -> bool:
    """Return whether a payment is final and too small to be a refund. Raises: Unreachable."""
    request, block = state.crossing.request, refund.block
    if block is None or bridge_states.is_sufficient_refund(refund.units, request.amount) is not False:
        return False
    orphaned, safe = ports.chains[request.source].orphaned_blocks([block])
    return block not in orphaned and block.number <= safe
