"""Credits for USDC: a movement of a wallet to the treasury, and the grant of what arrived once it is final.

The movement is one like all others, under the wallet's limits. The grant is keyed by it, so it is made once.
"""

from __future__ import annotations

from decimal import Decimal

import structlog
from sqlalchemy import select

from app.core import clock, logs
from app.core.chains import USDC, ChainName
from app.core.money import NANOS_PER_USD
from app.core.unit_of_work import reading, unit_of_work
from app.credits import service as credits_service
from app.errors import InvalidInput, TransactionInProgress
from app.extensions import db
from app.payments import claims, treasury
from app.payments.models import TopUp
from app.ports import provider
from app.wallets import history, orders, submissions, transfers
from app.wallets.history import TransactionView
from app.wallets.lifecycle import Status, TransactionType
from app.wallets.service import WalletView

_log = structlog.get_logger(__name__)
KIND = "topup"
REFERENCE = "topup:"
_AT_ONCE = 200
_NANOS_PER_UNIT = NANOS_PER_USD // 10**USDC.decimals


def make(
    wallet: WalletView, account_id: str, *, chain: str, amount: str, wait_seconds: Decimal
) -> TransactionView:
    """Move USDC from a wallet to the treasury; its worth is granted when the movement is final.

    Raises: what a transfer raises.
    """
    name, _ = orders.parse_deposit(chain=chain, amount=amount, currency=USDC.symbol)
    recipient = treasury.recipient(name)
    if recipient == wallet.address_on(name):
        raise InvalidInput.field("wallet_id", "is the treasury itself")
    order = orders.parse_movement(
        TransactionType.TRANSFER, chain=chain, to=recipient, amount=amount, currency=USDC.symbol
    )
    order = orders.to_the_service(order, kind=KIND)

    def record(movement: TransactionView) -> None:
        db.session.add(
            TopUp(
                transaction_id=movement.id, wallet_id=wallet.id, account_id=account_id, chain=name.value,
                recipient=recipient,
                units=order.amount.units, created_at=clock.now(),
            )
        )  # fmt: skip
        # It pays the treasury like a payment for a call, and must not be taken for one.
        claims.claim([claims.key_of_hash(name, movement.tx_hash or "")], movement.id)

    return transfers.send(wallet, order, wait_seconds=wait_seconds, record_beside=record)


def reference_of(transaction_id: str) -> str:
    """Return what names a top-up's grant in the ledger."""
    return f"{REFERENCE}{transaction_id}"


def open_topup_of(wallet_id: str) -> TransactionInProgress | None:
    """Return what refuses a wallet's deletion: a top-up whose credits are not granted yet. In the current unit."""
    found = db.session.scalar(
        select(TopUp.transaction_id).where(TopUp.wallet_id == wallet_id, TopUp.closed_at.is_(None)).limit(1)
    )
    if found is None:
        return None
    return TransactionInProgress(
        "Credits for a top-up from this wallet are not granted yet; delete it once they are.",
        details={"transaction_id": found},
    )


def grant_due(chain: ChainName) -> int:
    """Grant what has arrived for good on a chain; return how many top-ups came to their end. For a worker."""
    with reading() as session:
        open_ones = session.scalars(
            select(TopUp.transaction_id)
            .where(TopUp.chain == chain.value, TopUp.closed_at.is_(None))
            .order_by(TopUp.created_at)
            .limit(_AT_ONCE)
        ).all()
        ends = {each: submissions.final_status(each) for each in open_ones}
    closed = 0
    for transaction_id, end in ends.items():
        if end is None:
            continue
        try:
            closed += _close(transaction_id, end)
        except Exception:
            # One odd top-up must not keep the others from their end.
            _log.exception("topup_not_closed", transaction_id=transaction_id)
    return closed


def reopen(transaction_id: str) -> None:
    """Grant by the next end of a movement, for the one that it had does not stand; in the current unit.

    What was granted something, and what is no top-up, is left alone.
    """
    topup = db.session.get(TopUp, transaction_id, with_for_update=True)
    if topup is not None and not topup.granted_nanos:
        topup.granted_nanos = topup.closed_at = None


def confirmed_for_nothing() -> list[str]:
    """Return top-ups whose movement stands for good and that were closed without a grant. In a reading unit."""
    closed = db.session.scalars(
        select(TopUp.transaction_id).where(TopUp.closed_at.is_not(None), TopUp.granted_nanos == 0)
    )
    return [each for each in closed if submissions.final_status(each) == Status.CONFIRMED]


def _close(transaction_id: str, end: Status) -> bool:
    view = history.movement(transaction_id)
    with reading() as session:
        topup = session.get_one(TopUp, transaction_id)
    units, keys = 0, []
    if end is Status.CONFIRMED and view.tx_hash is not None:
        chain = ChainName(topup.chain)
        arrival = provider.current().tills[chain].arrival(view.tx_hash, topup.recipient)
        if arrival is None or not arrival.is_final:
            return False
        # A contract may keep a part of what is sent; what came in is what counts.
        units = min(arrival.units, topup.units) if arrival.succeeded else 0
        keys = [claims.key_of_hash(chain, view.tx_hash)]
    with unit_of_work() as session:
        row = session.get_one(TopUp, transaction_id, with_for_update=True)
        # A movement that was taken for failed may have been reopened while the chain was asked.
        if row.closed_at is not None or submissions.final_status(transaction_id) is not end:
            return False
        # Sent again at a higher fee, it has another hash than the one that was claimed when it was made.
        if keys and not claims.is_claimed(keys):
            claims.claim(keys, transaction_id)
        credits_service.grant(row.account_id, units * _NANOS_PER_UNIT, reference=reference_of(transaction_id))
        row.granted_nanos = units * _NANOS_PER_UNIT
        row.closed_at = clock.now()
    with logs.caused_by(view.request_id):
        _log.info("topup_closed", transaction_id=transaction_id, granted_nanos=units * _NANOS_PER_UNIT)
    return True
