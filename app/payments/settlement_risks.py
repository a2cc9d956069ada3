"""Bounds of what submissions cost that their payers make fail: refusals of payers, and a daily budget; sponsoring.

Between its simulation and its block, a payer can move the funds, or let the code of its account answer differently. A
submission that then fails costs its network fee, and nothing is paid.
"""

from collections import Counter
from datetime import timedelta

import structlog
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.core import clock
from app.core.chains import ChainName
from app.core.money import nanos_from_usd
from app.db.leases import once_per_period
from app.db.prepared import PreparedInsert
from app.db.tables import delete_rows, sums, update_rows
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.events import outbox
from app.events.outbox import EventType
from app.payments import claimed_payments, settlement_capacity, treasury
from app.payments.claimed_payments import PaymentRow
from app.payments.models import Payment, SettlementRisk
from app.payments.treasury import WalletRole
from app.ports.chain import TransactionDraft
from app.ports.errors import Rejected
from app.ports.facilitator import GasSponsor
from app.state import app_state
from app.wallets import gas
from app.wallets.transactions import relayed
from app.wallets.transactions.relayed import BlockDecision

_log = structlog.get_logger(__name__)
PERIOD = timedelta(hours=24)
# A key's funds can be gone by mistake; code that accepts what then fails was written for that.
_FAILURES_OF_KEYS = 3
_INSERT = PreparedInsert(SettlementRisk, unique=[SettlementRisk.payment_id])
PAUSED = "risky_payments_paused"
PAYER_REFUSED = "payer_refused"
_FAILED = "settlement_failed"
FUNDS_IN_USE = "funds_in_use"


def assert_accepted(session: Session, payer: str | None, claim: str) -> None:
    """Check that an authorization did not fail on the chain before, and its payer's others did not within a day.

    Raises: Rejected("settlement_failed"), Rejected("payer_refused").
    """
    rows = (
        select(SettlementRisk.claim, SettlementRisk.risky, SettlementRisk.created_at)
        .where(SettlementRisk.payer == payer, SettlementRisk.failed.is_(True))
        .order_by(SettlementRisk.created_at)
    )
    failures = session.execute(rows).all()
    if claim in {row.claim for row in failures}:
        raise Rejected(_FAILED)
    recent = [row for row in failures if row.created_at > clock.now() - PERIOD]
    if any(row.risky for row in recent) or len(recent) >= _FAILURES_OF_KEYS:
        until = recent[-1].created_at + PERIOD
        raise Rejected(PAYER_REFUSED, details={"refused_until": until.isoformat(timespec="seconds")})


def reserve(session: Session, payment: Payment, draft: TransactionDraft, most_nanos: int) -> None:
    """Check that a new payment has funds in addition to its payer's open ones, and reserve the cost of its failure.

    The unit must have locked the payer, and `risky_payments` of the chain, and must not have added the payment.

    Raises: as `assert_accepted`; Rejected("funds_in_use"); Rejected("risky_payments_paused") if the budget does not
    cover `most_nanos`.
    """
    assert_accepted(session, payment.payer, payment.terms["claim"])
    open_units = claimed_payments.open_units(session, payment.payer, payment.chain)
    if draft.payer_units is not None and draft.payer_units < payment.units + open_units:
        raise Rejected(FUNDS_IN_USE)
    if not draft.is_risky:
        return
    # What such payments of a day cost by failing, and can still cost.
    is_counted = SettlementRisk.risky.is_(True), SettlementRisk.created_at > clock.now() - PERIOD
    of_chain = SettlementRisk.chain == payment.chain
    [spent_nanos] = sums(session, SettlementRisk.cost_nanos, where=[of_chain, *is_counted])
    if spent_nanos + most_nanos > budget_nanos():
        raise Rejected(PAUSED)
    _insert(session, payment, risky=True, failed=False, nanos=most_nanos)


def release(session: Session, payment_id: str) -> None:
    """Release what was reserved for a submission that did not fail on the chain."""
    delete_rows(session, SettlementRisk, SettlementRisk.payment_id == payment_id)


def settle(session: Session, payment: PaymentRow, outcome: BlockDecision, spent: int | None) -> None:
    """Record that a submission failed on the chain and cost `spent` nano-dollars (None: unknown), or release it."""
    if not outcome.is_reverted:
        release(session, payment.id)
        return
    _log.warning("settlement_failed", payment_id=payment.id, chain=payment.chain, payer=payment.payer, cost_nanos=spent)
    values = {"failed": True} if spent is None else {"failed": True, "cost_nanos": spent}
    if not update_rows(session, SettlementRisk, SettlementRisk.payment_id == payment.id, **values):
        _insert(session, payment, risky=False, failed=True, nanos=spent or 0)


def failed_by_chain(session: Session, *, of_budget: bool = False) -> Counter[str]:
    """Return the nano-dollars that submissions of a day cost, by chain, which failed on it.

    With `of_budget`, what risky ones have used and reserved of its budget.
    """
    is_counted = SettlementRisk.risky if of_budget else SettlementRisk.failed
    rows = (
        select(SettlementRisk.chain, func.sum(SettlementRisk.cost_nanos))
        .where(is_counted.is_(True), SettlementRisk.created_at > clock.now() - PERIOD)
        .group_by(SettlementRisk.chain)
    )
    return Counter({chain: int(nanos) for chain, nanos in session.execute(rows)})


def announce_pause(chain: ChainName) -> None:
    """Record the event, once a day, that a chain's risky payments are refused."""
    with once_per_period(PERIOD, f"risky-payments-paused:{chain.value}", duration=PERIOD) as is_due:
        if not is_due:
            return
        budget_usd = str(app_state().settings.x402_failed_gas_usd_per_day)
        _log.error("risky_payments_paused", chain=chain, budget_usd=budget_usd)
        data = {"chain": chain.value, "budget_usd": budget_usd}
        with unit_of_work() as session:
            outbox.record(session, EventType.RISKY_PAYMENTS_PAUSED, agent_id=None, object_id=chain.value, data=data)


def budget_nanos() -> int:
    """Return what risky payments of a chain may cost in a day by failing."""
    return nanos_from_usd(app_state().settings.x402_failed_gas_usd_per_day)


def _insert(session: Session, payment: PaymentRow, *, risky: bool, failed: bool, nanos: int) -> None:
    row = {
        "payment_id": payment.id, "chain": payment.chain, "payer": payment.payer, "claim": payment.terms["claim"],
        "risky": risky, "failed": failed, "cost_nanos": nanos, "created_at": clock.now(),
    }  # fmt: skip
    _INSERT.execute(session, row)


def gas_sponsor(chain: ChainName, sold_units: int = 0) -> GasSponsor:
    """Return who submits transfers on a chain, and sells `sold_units` of its native token.

    Raises: Rejected("gas_unavailable") if that would leave too little gas for settling payments, or if submissions that
    failed have cost the budget of a day.
    """
    reserve_units = settlement_capacity.reserve_for_payments(chain, sold_units)
    wallet = treasury.wallet(WalletRole.SETTLEMENT, chain)
    with read_only_unit() as session:
        failed_units = relayed.failed_fee_units(
            session, wallet.id, chain, kind=gas.SUBMISSION_KIND, since=clock.now() - PERIOD
        )
    # Another party that submits a transfer first makes ours fail: agents cost nothing, so all of them share a budget.
    failed_nanos = settlement_capacity.fee_nanos(chain, failed_units) if failed_units else 0
    if reserve_units is None or (failed_nanos or 0) > budget_nanos():
        raise Rejected("gas_unavailable")
    return GasSponsor(wallet.id, wallet.address_on(chain), treasury.recipient(chain), reserve_units)
