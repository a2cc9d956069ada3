"""Top-ups: USDC transferred from a wallet to the treasury, and credits granted once the transfer is confirmed.

The transfer counts against the wallet's limits like any other. The grant is keyed by it, so it is made once.

A block at the depth of confirmed movements can still be replaced. The service then sends the same bytes again, and
only if they can no longer land, the account owes what it was granted. Grants that are not final are limited.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial

import structlog
from sqlalchemy import ColumnElement, exists, select
from sqlalchemy.orm import Session

from app.core import clock
from app.core.chains import USDC, ChainName
from app.core.identifiers import new_id
from app.core.money import nanos_from_usd
from app.core.movement_kinds import MovementKind
from app.credits import accounts as credit_accounts
from app.db import leases
from app.db.tables import sums
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import InvalidInput, TransactionInProgress
from app.idempotency.service import Claim
from app.observability import telemetry
from app.payments import claimed_payments, treasury
from app.payments.models import TopUp
from app.state import app_state
from app.wallets import transfers
from app.wallets.core import parsing
from app.wallets.core.lifecycle import MovementStatus, TransactionType
from app.wallets.core.wallets import WalletView
from app.wallets.kinds.transfer import parse_movement
from app.wallets.transactions import relayed
from app.wallets.transactions.pipeline import MovementQuote
from app.wallets.transactions.relayed import BlockDecision
from app.wallets.transfers import TransferOrder
from app.wallets.views import history
from app.wallets.views.history import TransactionView

_log = structlog.get_logger(__name__)
REFERENCE_PREFIX = "topup:"
_GRANT_BATCH = 200
_OWED = TopUp.owed_nanos > 0


@dataclass(frozen=True, slots=True)
class TopUpOrder:
    chain: str
    amount: str


def send(wallet: WalletView, order: TopUpOrder, *, wait_seconds: Decimal | None, claim: Claim) -> TransactionView:
    """Transfer USDC to the treasury; its value is granted once that is confirmed. Raises: what a transfer raises."""
    transfer = _transfer(wallet, order)

    def record(session: Session, movement: TransactionView) -> None:
        session.add(
            TopUp(
                transaction_id=movement.id, wallet_id=wallet.id, chain=transfer.chain.value,
                recipient=transfer.recipient,
                # The account of an agent's credits has its id.
                account_id=wallet.agent_id, units=transfer.amount.units, created_at=clock.now(),
            )
        )  # fmt: skip
        # It pays the treasury as a payment for a call does, and must not be accepted as one.
        key = claimed_payments.transaction_claim_key(transfer.chain, movement.tx_hash or "")
        claimed_payments.claim(session, [key], movement.id)

    return transfers.send(wallet, transfer, wait_seconds=wait_seconds, claim=claim, on_recorded=record)


def quote(wallet: WalletView, order: TopUpOrder) -> MovementQuote:
    """Check the limits and the balance like `send`, without signing. Raises: what a transfer raises."""
    return transfers.quote(wallet, _transfer(wallet, order))


def _transfer(wallet: WalletView, order: TopUpOrder) -> TransferOrder:
    name, _ = parsing.parse_deposit(chain=order.chain, amount=order.amount, currency=USDC.symbol)
    recipient = treasury.recipient(name)
    if recipient == wallet.address_on(name):
        raise InvalidInput.field("wallet_id", "is the treasury")
    body = {"chain": order.chain, "to": recipient, "amount": order.amount, "currency": USDC.symbol}
    transfer = parse_movement(TransactionType.TRANSFER, body)
    return replace(transfer, kind=MovementKind.TOPUP, needs_allowlist=False)


def grant_reference(transaction_id: str) -> str:
    return f"{REFERENCE_PREFIX}{transaction_id}"


def owed_nanos(session: Session, account_id: str) -> int:
    """Return what an account was granted for transfers that can no longer land, and has not repaid."""
    return sums(session, TopUp.owed_nanos, where=[TopUp.account_id == account_id])[0]


def open_topup_error(session: Session, wallet_id: str) -> TransactionInProgress | None:
    """Return the error that prevents deleting a wallet with a pending top-up, or None."""
    found = session.scalar(
        select(TopUp.transaction_id).where(TopUp.wallet_id == wallet_id, TopUp.closed_at.is_(None)).limit(1)
    )
    if found is None:
        return None
    return TransactionInProgress(
        "A top-up from this wallet is still pending; delete the wallet once its credits are granted.",
        details={"transaction_id": found},
    )


def has_open(chain: ChainName) -> ColumnElement[bool]:
    """Return the condition that a top-up on a chain is open, or that credits could repay what one left owing."""
    owing = exists().where(_OWED, TopUp.chain == chain.value, credit_accounts.has_available(TopUp.account_id))
    return exists().where(TopUp.chain == chain.value, TopUp.closed_at.is_(None)) | owing


def grant_due(chain: ChainName) -> int:
    """Grant confirmed top-ups on a chain, close final ones, and collect what is owed; return how many were closed.

    For a worker. A grant before the transfer is final waits if it would exceed a limit of credit risk.
    """
    closed, on_chain = 0, TopUp.chain == chain.value
    with read_only_unit() as session:
        # Those without a grant first: final ones may wait, and must not delay them.
        topups = [
            each
            for is_granted in (TopUp.granted_nanos.is_(None), TopUp.granted_nanos.is_not(None))
            for each in session.scalars(
                select(TopUp)
                .where(on_chain, TopUp.closed_at.is_(None), is_granted)
                .order_by(TopUp.created_at)
                .limit(_GRANT_BATCH)
            )
        ]
        decisions = relayed.decisions(session, [each.transaction_id for each in topups])
        owing = session.scalars(
            select(TopUp.transaction_id).where(_OWED, on_chain, credit_accounts.has_available(TopUp.account_id))
        ).all()
    decided = [(each, decisions[each.transaction_id]) for each in topups if each.transaction_id in decisions]
    # What is owed first, before new credits can be spent.
    steps: list[tuple[str, Callable[[], bool]]] = [(each, partial(_collect, each)) for each in owing]
    steps += [(each.transaction_id, partial(_grant_or_close, each, decision)) for each, decision in decided]
    for transaction_id, step in steps:
        try:
            closed += step()
        except Exception:
            # One faulty top-up must not block the others.
            _log.exception("topup_close_failed", transaction_id=transaction_id)
    return closed


def reopen_grant(session: Session, transaction_id: str) -> None:
    """Let a top-up without granted credits be closed again because its transfer's outcome was reversed."""
    topup = session.get(TopUp, transaction_id, with_for_update=True)
    if topup is not None and not topup.granted_nanos:
        topup.granted_nanos = topup.closed_at = None


def find_confirmed_without_grant(session: Session) -> list[str]:
    """Return top-ups that were closed without a grant although their transfer is final."""
    closed = session.scalars(select(TopUp.transaction_id).where(TopUp.closed_at.is_not(None), TopUp.granted_nanos == 0))
    decisions = {each: relayed.final_decision(session, each) for each in closed}
    return [each for each, found in decisions.items() if found and found.status is MovementStatus.CONFIRMED]


def _grant_or_close(topup: TopUp, decision: BlockDecision) -> bool:
    is_final, chain, nanos, keys = decision.is_final, ChainName(topup.chain), 0, []
    if not is_final and (decision.status is MovementStatus.FAILED or topup.granted_nanos is not None):
        return False
    if not is_final:
        with read_only_unit() as session:
            # It waits for finality before anything is read from the chain for it.
            if _exceeds_risk(session, topup.account_id, topup.units * claimed_payments.NANOS_PER_UNIT):
                return False
    view = history.current_view(topup.transaction_id)
    if decision.status is MovementStatus.CONFIRMED and view.tx_hash is not None:
        incoming = app_state().ports.facilitators[chain].incoming_payment(view.tx_hash, topup.recipient)
        if incoming is None or (is_final and not incoming.is_final):
            return False
        # A token contract may deduct a fee: the amount received counts.
        units = min(incoming.units, topup.units) if incoming.succeeded else 0
        nanos, keys = (
            units * claimed_payments.NANOS_PER_UNIT,
            [claimed_payments.transaction_claim_key(chain, view.tx_hash)],
        )
    with unit_of_work() as session:
        if not is_final:
            # Of all chains: their workers run concurrently.
            leases.lock(session, "topups_before_finality")
            if _exceeds_risk(session, topup.account_id, nanos):
                return False
        row = session.get_one(TopUp, topup.transaction_id, with_for_update=True)
        # The transfer may have been reopened while the chain was read.
        found = relayed.decisions(session, [row.transaction_id]).get(row.transaction_id)
        if row.closed_at is not None or found != decision:
            return False
        # A replacement has another hash than the one that was claimed when the transfer was recorded.
        claimed_payments.claim(session, keys, row.transaction_id, only_unclaimed=True)
        _set_granted(session, row, nanos)
        row.closed_at = clock.now() if is_final else None
        owed_nanos = row.owed_nanos
    with telemetry.caused_by(view.request_id):
        _log.info("topup_granted", transaction_id=topup.transaction_id, granted_nanos=nanos, is_final=is_final)
        if owed_nanos:
            _log.critical("topup_reversed", transaction_id=topup.transaction_id, owed_nanos=owed_nanos)
    return is_final


def _exceeds_risk(session: Session, account_id: str, nanos: int) -> bool:
    """Return whether a grant before finality would exceed a limit."""
    rows = session.execute(
        select(TopUp.account_id, TopUp.granted_nanos, TopUp.owed_nanos).where(
            TopUp.closed_at.is_(None) & TopUp.granted_nanos.is_not(None) | _OWED
        )
    ).all()
    unfinal = sum(row.granted_nanos or 0 for row in rows if not row.owed_nanos)
    of_agent = sum((row.granted_nanos or 0) + row.owed_nanos for row in rows if row.account_id == account_id)
    settings = app_state().settings
    return unfinal + nanos > nanos_from_usd(settings.topup_unfinal_usd) or of_agent + nanos > nanos_from_usd(
        settings.topup_unfinal_usd_per_agent
    )


def _set_granted(session: Session, row: TopUp, nanos: int) -> None:
    """Grant the difference to what the ledger has for a top-up, or owe it."""
    before = (row.granted_nanos or 0) + row.owed_nanos
    row.granted_nanos, row.owed_nanos = nanos, max(0, before - nanos)
    reference = grant_reference(row.transaction_id)
    if nanos > before and not credit_accounts.grant(session, row.account_id, nanos - before, reference=reference):
        # It was granted before, and taken back.
        again = f"{reference}:{new_id()}"
        credit_accounts.grant(session, row.account_id, nanos - before, reference=again)


def _collect(transaction_id: str) -> bool:
    """Repay what a top-up left owing as far as credits are available; it closes nothing."""
    with unit_of_work() as session:
        row = session.get_one(TopUp, transaction_id, with_for_update=True)
        reference = f"{grant_reference(transaction_id)}:{new_id()}"
        taken = credit_accounts.revoke(session, row.account_id, row.owed_nanos, reference=reference)
        row.owed_nanos -= taken
    _log.info("topup_debt_collected", transaction_id=transaction_id, taken_nanos=taken)
    return False
