"""What submissions cost that their payers make fail: bounded by refusals of payers, and by a budget for contracts.

Between its simulation and its block, a payer can move the funds, or let the code of its account answer differently. A
submission that then fails costs its network fee, and nothing is paid.
"""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import structlog
from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from app.core import clock
from app.core.chains import ChainName, native
from app.core.money import TokenAmount, nanos_from_usd, usd_from_nanos
from app.db.leases import once_per_period
from app.db.statements import insert_into
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.events import outbox
from app.events.types import EventType
from app.payments.consumed import PaymentRow, PaymentStatus
from app.payments.models import Payment, SettlementRisk
from app.ports.chain import TransactionDraft
from app.ports.errors import Rejected
from app.state import app_state
from app.wallets.core import network_fees
from app.wallets.transactions.relayed import FinalOutcome

_log = structlog.get_logger(__name__)
_PERIOD = timedelta(hours=24)
# A key's funds can be gone by mistake; code that accepts what then fails was written for that.
_FAILURES_OF_KEYS = 3
PAUSED = "contract_payments_paused"
PAYER_REFUSED = "payer_refused"
FUNDS_IN_USE = "funds_in_use"


def assert_payer_accepted(payer: str) -> None:
    """Check that a payer's submissions did not fail within a day. Raises: Rejected("payer_refused")."""
    rows = (
        select(SettlementRisk.runs_code, SettlementRisk.created_at)
        .where(
            SettlementRisk.payer == payer,
            SettlementRisk.failed.is_(True),
            SettlementRisk.created_at > clock.now() - _PERIOD,
        )
        .order_by(SettlementRisk.created_at)
    )
    with read_only_unit() as session:
        failures = session.execute(rows).all()
    if any(row.runs_code for row in failures) or len(failures) >= _FAILURES_OF_KEYS:
        until = failures[-1].created_at + _PERIOD
        raise Rejected(PAYER_REFUSED, details={"refused_until": until.isoformat(timespec="seconds")})


def cost_nanos(chain: ChainName, fee_units: int) -> int:
    """Return the dollar value of a network fee. Reads the network. Raises: Rejected while no price is known."""
    value = network_fees.usd_value_nanos(TokenAmount(fee_units, native(chain)))
    if value is None:
        raise Rejected("network_fee_too_high")
    return value


def reserve(session: Session, payment: Payment, draft: TransactionDraft, most_nanos: int) -> None:
    """Check that a new payment has funds beside its payer's open ones, and reserve the cost of its failure.

    The unit must hold what lets one submission of a chain be recorded at a time, and must not have added the payment.

    Raises: Rejected("funds_in_use"); Rejected("contract_payments_paused") once the budget does not cover `most_nanos`.
    """
    open_units = select(func.coalesce(func.sum(Payment.units), 0)).where(
        Payment.status == PaymentStatus.SETTLING.value,
        Payment.payer == payment.payer,
        Payment.chain == payment.chain,
    )
    if draft.payer_units is not None and draft.payer_units < payment.units + int(
        session.scalar(open_units) or 0
    ):
        raise Rejected(FUNDS_IN_USE)
    if not draft.runs_payer_code:
        return
    if spent_nanos(session, ChainName(payment.chain)) + most_nanos > _budget_nanos():
        raise Rejected(PAUSED)
    _insert(session, payment, runs_code=True, failed=False, nanos=most_nanos)


def release(session: Session, payment_id: str) -> None:
    """Release what was reserved for a submission that did not fail on the chain."""
    session.execute(delete(SettlementRisk).where(SettlementRisk.payment_id == payment_id))


def settle(session: Session, payment: PaymentRow, outcome: FinalOutcome, spent: int | None) -> None:
    """Record that a submission failed on the chain and cost `spent` nano-dollars (None: unknown), or release it."""
    is_open = SettlementRisk.payment_id == payment.id
    if not outcome.is_reverted:
        release(session, payment.id)
        return
    _log.warning(
        "settlement_failed", payment_id=payment.id, chain=payment.chain, payer=payment.payer, cost_nanos=spent
    )
    values = {"failed": True} if spent is None else {"failed": True, "cost_nanos": spent}
    if not session.execute(update(SettlementRisk).where(is_open).values(values)).rowcount:  # type: ignore[attr-defined]
        _insert(session, payment, runs_code=False, failed=True, nanos=spent or 0)


def spent_nanos(session: Session, chain: ChainName) -> int:
    """Return what contract payments of a day cost by failing, and can still cost, on a chain."""
    rows = select(func.coalesce(func.sum(SettlementRisk.cost_nanos), 0)).where(
        SettlementRisk.chain == chain.value,
        SettlementRisk.runs_code.is_(True),
        SettlementRisk.created_at > clock.now() - _PERIOD,
    )
    return int(session.scalar(rows) or 0)


def failed_by_chain(session: Session) -> dict[str, Decimal]:
    """Return what submissions of a day cost that failed on the chain, in dollars by chain."""
    rows = (
        select(SettlementRisk.chain, func.sum(SettlementRisk.cost_nanos))
        .where(SettlementRisk.failed.is_(True), SettlementRisk.created_at > clock.now() - _PERIOD)
        .group_by(SettlementRisk.chain)
    )
    return {chain: usd_from_nanos(int(nanos)) for chain, nanos in session.execute(rows)}


def announce_pause(chain: ChainName) -> None:
    """Tell the operators, once a day, that a chain's payments by contract signatures are refused."""
    with once_per_period(_PERIOD, f"contract-payments-paused:{chain.value}", duration=_PERIOD) as is_due:
        if not is_due:
            return
        budget_usd = str(app_state().settings.x402_failed_gas_usd_per_day)
        _log.error("contract_payments_paused", chain=chain, budget_usd=budget_usd)
        data = {"chain": chain.value, "budget_usd": budget_usd}
        with unit_of_work() as session:
            outbox.record(
                session, EventType.CONTRACT_PAYMENTS_PAUSED, agent_id=None, object_id=chain.value, data=data
            )


def _budget_nanos() -> int:
    return nanos_from_usd(app_state().settings.x402_failed_gas_usd_per_day)


def _insert(session: Session, payment: PaymentRow, *, runs_code: bool, failed: bool, nanos: int) -> None:
    session.execute(
        insert_into(session, SettlementRisk)
        .values(
            payment_id=payment.id, chain=payment.chain, payer=payment.payer, runs_code=runs_code, failed=failed,
            cost_nanos=nanos, created_at=clock.now(),
        )
        .on_conflict_do_nothing(index_elements=["payment_id"])
    )  # fmt: skip
