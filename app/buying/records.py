"""Records of payments to web services: for which request each was signed, what was answered, and whom a wallet pays.

The only writer of `service_purchases` and `pinned_payees`.
"""

from collections.abc import Sequence
from datetime import datetime
from http import HTTPStatus

from sqlalchemy import ColumnElement, Index, String, Text, delete, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from app.audit_log import trail
from app.audit_log.actors import Actor
from app.audit_log.trail import AuditAction, AuditEvent
from app.authenticated import SealedColumn
from app.buying.offers import PaymentOffer
from app.buying.sellers import SellerAnswer, SellerRequest
from app.core import clock, identifiers
from app.core.pagination import Page, PageRequest
from app.db.tables import ID, UtcDateTime, count, delete_rows, in_list, page_of, partial_index, update_rows
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import ControlsLocked, NotFound, PayeeChanged
from app.extensions import Model
from app.spending import accounts as spending_accounts
from app.spending import controls as spending_controls
from app.wallets.core.lifecycle import MovementStatus
from app.wallets.core.wallets import WalletView
from app.wallets.views import history
from app.wallets.views.history import TransactionView


class ServicePurchase(Model):
    """What a payment buys: one request to a web service, and its answer once it is complete."""

    __tablename__ = "service_purchases"
    __allow_unmapped__ = True
    __table_args__ = (
        Index("ix_service_purchases_wallet_id", "wallet_id", "created_at"),
        partial_index("ix_service_purchases_answered", "answered_at", where="answer_sealed IS NOT NULL"),
    )

    # The hash of the transaction that pays.
    id: Mapped[str] = mapped_column(ID, primary_key=True)
    wallet_id: Mapped[str] = mapped_column(ID)
    host: Mapped[str] = mapped_column(String(253))
    url: Mapped[str] = mapped_column(Text)
    method: Mapped[str] = mapped_column(String(10))
    # The version of x402 in which the seller is paid, 0 for MPP: it names the header.
    version: Mapped[int]
    network: Mapped[str] = mapped_column(String(100))
    answer_sealed: Mapped[str | None] = mapped_column(Text)
    answer_status: Mapped[int | None]
    answered_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)

    payment: TransactionView
    """What pays for it, as it was when this row was read."""


class PinnedPayee(Model):
    """The address that a wallet pays at a host on a chain: that of the first payment."""

    __tablename__ = "pinned_payees"

    wallet_id: Mapped[str] = mapped_column(ID, primary_key=True)
    host: Mapped[str] = mapped_column(String(253), primary_key=True)
    chain: Mapped[str] = mapped_column(String(20), primary_key=True)
    address: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


_ANSWERS = SealedColumn("service_purchases", "answer_sealed")


def add(
    session: Session, payment: TransactionView, wallet_id: str, request: SellerRequest, offer: PaymentOffer
) -> ServicePurchase:
    row = ServicePurchase(
        id=payment.id, wallet_id=wallet_id, host=request.host, method=request.method,
        # Queries may hold secrets.
        url=request.url.partition("?")[0],
        version=offer.terms.version, network=offer.network, created_at=clock.now(),
    )  # fmt: skip
    row.payment = payment
    session.add(row)
    return row


def pin_payee(session: Session, wallet_id: str, host: str, offer: PaymentOffer) -> None:
    """Pin the first payee of a host on a chain. The wallet's account must be locked. Raises: PayeeChanged."""
    if not check_payee(session, wallet_id, host, offer):
        key = {"wallet_id": wallet_id, "host": host, "chain": offer.chain.value}
        session.add(PinnedPayee(**key, address=offer.recipient, created_at=clock.now()))


def check_payee(session: Session, wallet_id: str, host: str, offer: PaymentOffer) -> bool:
    """Refuse a payee other than the pinned one; return whether one is pinned. Raises: PayeeChanged."""
    pinned = session.get(PinnedPayee, (wallet_id, host, offer.chain.value))
    if pinned is not None and pinned.address != offer.recipient:
        raise PayeeChanged(
            f"So far, {host} was paid at {pinned.address} on {offer.chain.value}; now it asks for a payment to "
            f"{offer.recipient}. Nothing was signed. If the change is expected, remove the stored payee with "
            f"DELETE /v1/wallets/{{id}}/x402/payees/{host} and repeat the request.",
            details={
                "domain": host, "chain": offer.chain.value, "stored": pinned.address, "requested": offer.recipient,
            },
        )  # fmt: skip
    return pinned is not None


def payees_of(wallet_id: str) -> Sequence[PinnedPayee]:
    with read_only_unit() as session:
        pinned = select(PinnedPayee).where(PinnedPayee.wallet_id == wallet_id)
        return session.scalars(pinned.order_by(PinnedPayee.host, PinnedPayee.chain)).all()


def remove_payees(wallet: WalletView, host: str, *, actor: Actor) -> None:
    """Remove the payees of a host, so that the next payment stores a new one. Raises: NotFound, ControlsLocked."""
    with unit_of_work() as session:
        spending_accounts.lock_account(session, wallet.id)
        controls = spending_controls.find_controls(session, wallet.id)
        if controls is not None and controls.locked:
            problem = "The owner or the operator has locked the controls; this key cannot change whom the wallet pays."
            raise ControlsLocked(problem)
        of_host = delete(PinnedPayee).where(PinnedPayee.wallet_id == wallet.id, PinnedPayee.host == host)
        removed = session.scalars(of_host.returning(PinnedPayee.address)).all()
        if not removed:
            raise NotFound("This wallet has no stored payee for this domain.")
        before = {"wallet_id": wallet.id, "domain": host, "payees": sorted(removed)}
        trail.record(session, actor, AuditEvent(AuditAction.PAYEE_REMOVED, wallet.agent_id, before=before))


def get(wallet_id: str, transaction_id: str) -> tuple[ServicePurchase, SellerAnswer | None]:
    """Return a purchase of a wallet, and its answer if one is stored. Raises: NotFound."""
    canonical = identifiers.parse_id(transaction_id)
    with read_only_unit() as session:
        row = session.get(ServicePurchase, canonical) if canonical else None
        if row is None or row.wallet_id != wallet_id:
            raise NotFound("This wallet has no such purchase.")
        row.payment = history.views_of(session, [row.id])[row.id]
    sealed = row.answer_sealed
    return row, None if sealed is None else SellerAnswer.from_json(_ANSWERS.open(sealed, row.id))


def list_of(wallet_id: str, page: PageRequest) -> Page[ServicePurchase]:
    """Return a page of a wallet's purchases, newest first."""
    with read_only_unit() as session:
        found = page_of(session, ServicePurchase, page, newest_first=True, wallet_id=wallet_id)
        payments = history.views_of(session, [row.id for row in found.items])
    for row in found.items:
        row.payment = payments[row.id]
    return found


def requests_of(transaction_ids: Sequence[str]) -> dict[str, str]:
    """Return the method and URL that payments among some transactions bought, by transaction id."""
    with read_only_unit() as session:
        is_asked = in_list(session, ServicePurchase.id, transaction_ids)
        rows = session.execute(select(ServicePurchase.id, ServicePurchase.method, ServicePurchase.url).where(is_asked))
        return {row.id: f"{row.method} {row.url}" for row in rows}


def payments_for(wallet_ids: Sequence[str], text: str) -> Sequence[str]:
    """Return the ids of the payments of some wallets for requests with a text in their URLs."""
    of_wallets = ServicePurchase.wallet_id.in_(wallet_ids), ServicePurchase.url.icontains(text, autoescape=True)
    with read_only_unit() as session:
        return session.scalars(select(ServicePurchase.id).where(*of_wallets)).all()


def bought_answer(purchase: ServicePurchase, answer: SellerAnswer | None) -> SellerAnswer | None:
    """Return a stored answer if it is what the payment bought: a refusal is that only if the chain shows it used."""
    is_paid = purchase.payment.status == MovementStatus.CONFIRMED
    return answer if answer is not None and (is_paid or answer.status < HTTPStatus.BAD_REQUEST) else None


def has_payee(wallet_id: str, host: str) -> bool:
    with read_only_unit() as session:
        return count(session, PinnedPayee, PinnedPayee.wallet_id == wallet_id, PinnedPayee.host == host) > 0


def store_answer(transaction_id: str, answer: SellerAnswer) -> None:
    """Store a complete answer to a payment. A first one is kept, but for a refusal that is followed by more."""
    sealed = _ANSWERS.seal(answer.to_json(), transaction_id)
    is_missing: ColumnElement[bool] = ServicePurchase.answered_at.is_(None)
    if answer.status < HTTPStatus.BAD_REQUEST:
        is_missing |= ServicePurchase.answer_status >= HTTPStatus.BAD_REQUEST
    with unit_of_work() as session:
        stored = {"answer_sealed": sealed, "answer_status": answer.status, "answered_at": clock.now()}
        update_rows(session, ServicePurchase, ServicePurchase.id == transaction_id, is_missing, **stored)


def remove_rows_of(session: Session, wallet_id: str) -> None:
    for table in (ServicePurchase, PinnedPayee):
        delete_rows(session, table, table.wallet_id == wallet_id)
