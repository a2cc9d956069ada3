"""The execution of a purchase in a worker: claimed once, executed by the shopper, ended by what is known.

The unit that writes `submitting` holds the total against the wallet's limits; the order button may be clicked only
after its commit. After that every end without a confirmation is `unknown`, and its hold stays.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Any

import structlog
from sqlalchemy import ColumnElement, and_, case, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.core import clock, money
from app.core.identifiers import new_id
from app.db import leases
from app.db.leases import ProcessKind
from app.db.tables import update_rows
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import ServiceError
from app.observability import telemetry
from app.ports import shopper as port
from app.ports.errors import Rejected
from app.ports.shopper import FailureCode, OrderConfirmation, OrderReview, PurchaseFailed
from app.shopping import models, orders, page_choices, service
from app.shopping.models import PURCHASES, Purchase, PurchaseStatus
from app.shopping.page_choices import ModelAdviser
from app.spending import accounts as spending_accounts
from app.spending import holds as spending_holds
from app.spending.policy import ApprovedPayment, SpendingRequest
from app.state import app_state

LEASE = timedelta(seconds=60)
_MAX_EVIDENCE = 6
_MAX_EVIDENCE_BYTES = 4 * 1024 * 1024
_ACTION_REQUIRED_CODES = frozenset(
    {
        FailureCode.HUMAN_CHECK, FailureCode.OPTIONS_REQUIRED, FailureCode.COUPON_NOT_APPLIED,
        FailureCode.DELIVERY_METHOD_NOT_OFFERED, FailureCode.ADDRESS_INCOMPLETE, FailureCode.ADDRESS_MISMATCH,
        FailureCode.PAYMENT_DETAILS_REQUIRED,
    }
)  # fmt: skip
_log = structlog.get_logger(__name__)


def run_purchase(purchase_id: str) -> None:
    """Execute a queued purchase; skip one that is not queued, or one for a shop account in use."""
    shopper = app_state().ports.shopper
    if shopper is None:
        return
    holder = new_id()
    states = PurchaseStatus.QUEUED, PurchaseStatus.RUNNING
    try:
        with unit_of_work() as unit:
            if not PURCHASES.move(unit, purchase_id, *states, holder=holder, lease_until=clock.now() + LEASE):
                return
            claimed = unit.get_one(Purchase, purchase_id)
    except IntegrityError:
        # Another purchase uses the same shop account; the sweep enqueues this one again.
        return
    with telemetry.caused_by(claimed.request_id):
        session = PurchaseSession(claimed, holder)
        try:
            request, session.spending_session_id, key_id = orders.unseal(claimed)
        except (Rejected, ValueError, KeyError, TypeError):
            session.fail(PurchaseFailed(FailureCode.BROWSER_ERROR, "The sealed order could not be opened."))
            return
        session.coupon_code = request.coupon_code
        session.adviser = page_choices.adviser(claimed, key_id)
        try:
            confirmation = shopper.buy(request, session)
        except PurchaseFailed as failure:
            session.fail(failure)
        except port.PurchaseOutcomeUnknown as unknown:
            session.mark_unknown(unknown.message)
        except Exception as error:
            # Its text may quote a page; its class is enough.
            _log.error("purchase_crashed", purchase_id=purchase_id, error=type(error).__name__)
            session.fail(PurchaseFailed(FailureCode.BROWSER_ERROR, "The service failed while it was shopping."))
            raise
        else:
            session.complete(confirmation)


class PurchaseSession:
    """The handler of one purchase that this worker holds: a `ports.shopper.PurchaseHandler`."""

    def __init__(self, purchase: Purchase, holder: str) -> None:
        self.purchase_id = purchase.id
        self._purchase, self._wallet_id = purchase, purchase.wallet_id
        self.spending_session_id: str | None = None
        self.coupon_code: str | None = None
        self.adviser: ModelAdviser | None = None
        self._has_first_page = False
        self._approved = None
        if purchase.approval_id is not None:
            self._approved = ApprovedPayment(purchase.approval_id, purchase.approved_nanos or 0, None, purchase.host)
        # The row, as long as this worker holds it.
        self._row = and_(Purchase.id == purchase.id, Purchase.holder == holder)
        self._goods_nanos: int | None = None
        self._step: port.ShoppingStep | None = None
        self._evidence = 0
        # Kept here: a refusal comes back through the browser's process, which is not trusted.
        self._refusal: ServiceError | None = None

    def on_first_page(self) -> None:
        self._update(first_page=True)
        self._has_first_page = True

    def on_product(self, product: port.Product) -> None:
        """Record the product, and refuse it if its price alone exceeds a limit. Raises: PurchaseFailed."""
        self._update(product=asdict(product))
        self._goods_nanos = product.price_nanos * self._purchase.quantity
        self._assert_affordable(self._goods_nanos, "The product alone")

    def authorize_order(self, review: OrderReview) -> None:
        """Hold the total and write `submitting`, both or neither. Raises: PurchaseFailed."""
        if self._purchase.dry_run:
            raise PurchaseFailed(FailureCode.BROWSER_ERROR, "A dry run does not order.")
        self._assert_within_max_total(review.total_nanos, "The order")
        try:
            with unit_of_work() as session:
                if self._wallet_id is not None:
                    request = self._spending(review.total_nanos)
                    spending_holds.hold(session, self._wallet_id, request, reference=self.purchase_id)
                if not PURCHASES.move(
                    session, self._row, PurchaseStatus.RUNNING, PurchaseStatus.SUBMITTING,
                    total_nanos=review.total_nanos, outcome=self._outcome(review), lease_until=clock.now() + LEASE,
                ):  # fmt: skip
                    problem = "The purchase was ended before it could be ordered."
                    raise PurchaseFailed(FailureCode.BROWSER_ERROR, problem)
        except ServiceError as refusal:
            raise self._limit_failure(refusal) from None

    def choose(self, question: port.ElementQuestion) -> int | None:
        # Before the first page, the whole cost of a failed purchase is refunded.
        if self.adviser is None or not self._has_first_page:
            return None
        self.heartbeat()
        index, cost_nanos = self.adviser.choose(question)
        self._update(cost_nanos=Purchase.cost_nanos + cost_nanos)
        return index

    def on_step(self, step: port.ShoppingStep) -> None:
        self._step = step
        with unit_of_work() as session:
            session.add(
                models.PurchaseStep(
                    purchase_id=self.purchase_id, action=step.action[:40], text=_printable(step.text),
                    path=_printable(step.path), at=clock.now(),
                )
            )  # fmt: skip
            self._renew_lease(session)

    def on_screenshot(self, name: str, png: bytes) -> None:
        self._store_evidence(name, models.SCREENSHOT_TYPE, png)

    def on_page(self, document: str) -> None:
        self._store_evidence("page", models.PAGE_TYPE, document.encode(errors="replace"))

    def heartbeat(self) -> None:
        with unit_of_work() as session:
            self._renew_lease(session)
        leases.record(ProcessKind.SHOPPER)

    def complete(self, result: OrderConfirmation | OrderReview) -> None:
        """End a purchase that was confirmed, or a dry run that reached its review."""
        if isinstance(result, OrderReview):
            self._complete_dry_run(result)
            return
        with unit_of_work() as session:
            if self._wallet_id is not None:
                # The shop may have confirmed more than its review showed.
                spending_holds.record_without_limits(
                    session, self._wallet_id, reference=self.purchase_id, value_nanos=result.total_nanos
                )
                spending_holds.spend(session, self.purchase_id)
            # The sweep may have taken this worker for dead.
            sources = {PurchaseStatus.SUBMITTING, PurchaseStatus.UNKNOWN}
            PURCHASES.move(
                session, self._row, sources, PurchaseStatus.COMPLETED,
                outcome=self._outcome(result), total_nanos=result.total_nanos, error=None,
            )  # fmt: skip

    def fail(self, failure: PurchaseFailed) -> None:
        """End a purchase without an order; one that may have been ordered becomes unknown."""
        is_for_owner = failure.code in _ACTION_REQUIRED_CODES
        target = PurchaseStatus.ACTION_REQUIRED if is_for_owner else PurchaseStatus.FAILED
        if not end_unordered(self.purchase_id, target, self._stored_error(failure), row=self._row):
            self.mark_unknown(failure.message)

    def mark_unknown(self, message: str) -> None:
        """End a purchase that may have been ordered; its hold stays."""
        error = self._stored_error(PurchaseFailed(FailureCode.OUTCOME_UNKNOWN, message))
        code = FailureCode.OUTCOME_UNKNOWN.value
        with unit_of_work() as session:
            if self._wallet_id is not None:
                spending_accounts.lock_accounts(session, [self._wallet_id])
            for source in (PurchaseStatus.SUBMITTING, PurchaseStatus.RUNNING):
                if PURCHASES.move(session, self._row, source, PurchaseStatus.UNKNOWN, reason=code, error=error):
                    wallet_id, nanos = self._wallet_id, self._goods_nanos
                    if source is PurchaseStatus.RUNNING and wallet_id is not None and nanos is not None:
                        # The shop ordered without permission: nothing was held, and it costs at least the goods.
                        spending_holds.record_without_limits(
                            session, wallet_id, reference=self.purchase_id, value_nanos=nanos
                        )
                    return

    def _outcome(self, result: OrderReview | OrderConfirmation) -> dict[str, Any]:
        number = result.order_number if isinstance(result, OrderConfirmation) else None
        return {
            "number": _printable(number or "") or None,
            "payment_method": _printable(result.payment_method or "") or None,
            "payment_pending": result.payment_pending,
            "shipping_method": _printable(result.shipping_method or "") or None,
            "coupon_code": self.coupon_code,
            "amounts": [{**asdict(amount), "label": _printable(amount.label)} for amount in result.amounts],
        }

    def _complete_dry_run(self, review: OrderReview) -> None:
        """Store the review, and whether the order would have been allowed."""
        seen: dict[str, Any] = {"outcome": self._outcome(review), "total_nanos": review.total_nanos}
        try:
            self._assert_affordable(review.total_nanos, "The order")
        except PurchaseFailed as refusal:
            target, seen["error"] = PurchaseStatus.FAILED, self._stored_error(refusal)
        else:
            target = PurchaseStatus.PREVIEW
        with unit_of_work() as session:
            PURCHASES.move(session, self._row, PurchaseStatus.RUNNING, target, **seen)

    def _assert_affordable(self, value_nanos: int, subject: str) -> None:
        self._assert_within_max_total(value_nanos, subject)
        if self._wallet_id is None:
            return
        try:
            with read_only_unit() as session:
                spending_holds.check(session, self._wallet_id, self._spending(value_nanos))
        except ServiceError as refusal:
            raise self._limit_failure(refusal) from None

    def _spending(self, value_nanos: int) -> SpendingRequest:
        return SpendingRequest(
            value_nanos, domain=self._purchase.host, session_id=self.spending_session_id, approved=self._approved
        )

    def _limit_failure(self, refusal: ServiceError) -> PurchaseFailed:
        self._refusal = refusal
        return PurchaseFailed(FailureCode.LIMIT_EXCEEDED, f"{refusal.message} ({refusal.code})")

    def _stored_error(self, failure: PurchaseFailed) -> dict[str, Any]:
        refusal = self._refusal if failure.code is FailureCode.LIMIT_EXCEEDED else None
        return stored_error(failure, self._step, limit_code=None if refusal is None else refusal.code)

    def _assert_within_max_total(self, value_nanos: int, subject: str) -> None:
        if self._purchase.max_total_nanos is not None and value_nanos > self._purchase.max_total_nanos:
            value, cap = money.usd_from_nanos(value_nanos), money.usd_from_nanos(self._purchase.max_total_nanos)
            problem = f"{subject} costs {value:f} USD, more than max_total_usd, {cap:f} USD."
            raise PurchaseFailed(FailureCode.LIMIT_EXCEEDED, problem)

    def _store_evidence(self, name: str, media_type: str, content: bytes) -> None:
        self._evidence += 1
        if self._evidence > _MAX_EVIDENCE or len(content) > _MAX_EVIDENCE_BYTES:
            return
        with unit_of_work() as session:
            session.add(
                models.PurchaseEvidence(
                    id=new_id(), purchase_id=self.purchase_id, name=name[:40], media_type=media_type,
                    content=content, created_at=clock.now(),
                )
            )  # fmt: skip
            self._renew_lease(session)

    def _update(self, **values: Any) -> None:
        with unit_of_work() as session:
            self._renew_lease(session, **values)

    def _renew_lease(self, session: Session, **values: Any) -> None:
        is_at_work = Purchase.status.in_([PurchaseStatus.RUNNING.value, PurchaseStatus.SUBMITTING.value])
        update_rows(session, Purchase, self._row, is_at_work, lease_until=clock.now() + LEASE, **values)


def end_unordered(
    purchase_id: str,
    target: PurchaseStatus,
    error: dict[str, Any],
    *,
    row: ColumnElement[bool],
    source: PurchaseStatus = PurchaseStatus.RUNNING,
) -> bool:
    """End a purchase that was not ordered, and refund its price unless a page was read."""
    with unit_of_work() as session:
        ended = PURCHASES.move(
            session, row, source, target, reason=str(error["code"]), error=error,
            cost_nanos=case((Purchase.first_page, Purchase.cost_nanos), else_=0),
        )  # fmt: skip
        # From here on, the row is locked.
        if ended and not session.scalar(select(Purchase.first_page).where(Purchase.id == purchase_id)):
            service.refund_price(session, purchase_id)
        return bool(ended)


def stored_error(
    failure: PurchaseFailed, step: port.ShoppingStep | None, *, limit_code: str | None = None
) -> dict[str, Any]:
    """Return a failure as it is stored and shown; `limit_code` is the code of the wallet's refusal."""
    return {
        "code": failure.code.value, "limit_code": limit_code, "message": _printable(failure.message, 1_500),
        "step": None if step is None else step.action, "missing": list(failure.missing),
        "choices": [_printable(choice) for choice in failure.choices], "is_permanent": failure.is_permanent,
    }  # fmt: skip


def _printable(text: str, length: int = 200) -> str:
    # PostgreSQL stores neither NUL nor lone surrogates; a page may contain both.
    return "".join(char for char in text if char.isprintable())[:length]
