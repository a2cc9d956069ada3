"""Top-ups: USDC transferred from a wallet to the treasury, and credits granted once the transfer is final.

The transfer counts against the wallet's limits like any other. The grant is keyed by it, so it is made once.
"""

from dataclasses import dataclass, replace
from decimal import Decimal

import structlog
from sqlalchemy import ColumnElement, exists, select
from sqlalchemy.orm import Session

from app.core import clock
from app.core.chains import USDC, ChainName
from app.core.movement_kinds import MovementKind
from app.credits import accounts as credit_accounts
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import InvalidInput, TransactionInProgress
from app.idempotency.service import Claim
from app.observability import logs
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
from app.wallets.transfers import TransferOrder
from app.wallets.views import history
from app.wallets.views.history import TransactionView

_log = structlog.get_logger(__name__)
REFERENCE_PREFIX = "topup:"
_GRANT_BATCH = 200


@dataclass(frozen=True, slots=True)
class TopUpOrder:
    chain: str
    amount: str


def send(wallet: WalletView, order: TopUpOrder, *, wait_seconds: Decimal | None, claim: Claim) -> TransactionView:
    """Transfer USDC to the treasury; its value is granted once that is final. Raises: what a transfer raises."""
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
    return exists().where(TopUp.chain == chain.value, TopUp.closed_at.is_(None))


def grant_due(chain: ChainName) -> int:
    """Grant the credits of final top-ups on a chain; return how many top-ups were closed. For a worker."""
    with read_only_unit() as session:
        open_topups = session.scalars(
            select(TopUp.transaction_id)
            .where(TopUp.chain == chain.value, TopUp.closed_at.is_(None))
            .order_by(TopUp.created_at)
            .limit(_GRANT_BATCH)
        ).all()
        final_statuses = {each: relayed.final_status(session, each) for each in open_topups}
    closed = 0
    for transaction_id, final_status in final_statuses.items():
        if final_status is None:
            continue
        try:
            closed += _close_topup(transaction_id, final_status)
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
    return [each for each in closed if relayed.final_status(session, each) == MovementStatus.CONFIRMED]


def _close_topup(transaction_id: str, final_status: MovementStatus) -> bool:
    view = history.current_view(transaction_id)
    with read_only_unit() as session:
        topup = session.get_one(TopUp, transaction_id)
    units, keys = 0, []
    if final_status is MovementStatus.CONFIRMED and view.tx_hash is not None:
        chain = ChainName(topup.chain)
        incoming = app_state().ports.facilitators[chain].incoming_payment(view.tx_hash, topup.recipient)
        if incoming is None or not incoming.is_final:
            return False
        # A token contract may deduct a fee: the amount received counts.
        units = min(incoming.units, topup.units) if incoming.succeeded else 0
        keys = [claimed_payments.transaction_claim_key(chain, view.tx_hash)]
    with unit_of_work() as session:
        row = session.get_one(TopUp, transaction_id, with_for_update=True)
        # A transfer that was considered failed may have been reopened while the chain was read.
        if row.closed_at is not None or relayed.final_status(session, transaction_id) is not final_status:
            return False
        # A replacement has another hash than the one that was claimed when the transfer was recorded.
        if keys and not claimed_payments.is_claimed(session, keys):
            claimed_payments.claim(session, keys, transaction_id)
        nanos = units * claimed_payments.NANOS_PER_UNIT
        credit_accounts.grant(session, row.account_id, nanos, reference=grant_reference(transaction_id))
        row.granted_nanos, row.closed_at = nanos, clock.now()
    with logs.caused_by(view.request_id):
        _log.info("topup_closed", transaction_id=transaction_id, granted_nanos=nanos)
    return True
