"""The story of a purchase in a worker: claimed once, carried out by the shopper, ended by what certainly happened.

The unit that writes `submitting` holds the total against the wallet's limits; only after its commit may the order
button be pressed. After that every end but a confirmation is `unknown`, and its hold stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import structlog
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError

from app.core import clock, logs, money
from app.core.identifiers import new_id
from app.core.unit_of_work import reading, unit_of_work
from app.errors import ServiceError
from app.extensions import db
from app.ports import provider
from app.ports.errors import Rejected
from app.ports.shopper import Bought, Errand, Failed, Product, Review, Shopper, Step, Trouble, Unclear
from app.shopping import lifecycle, orders, service
from app.shopping.lifecycle import Status
from app.shopping.models import Purchase, PurchaseEvidence, PurchaseStep
from app.spending import service as spending

LEASE = timedelta(seconds=60)
_MAX_EVIDENCE = 6
_MAX_EVIDENCE_BYTES = 4 * 1024 * 1024
_FOR_THE_CALLER = frozenset(
    {
        Trouble.HUMAN_CHECK,
        Trouble.OPTIONS_REQUIRED,
        Trouble.ADDRESS_INCOMPLETE,
        Trouble.ADDRESS_MISMATCH,
        Trouble.PAYMENT_DETAILS_REQUIRED,
    }
)
_log = structlog.get_logger(__name__)


def carry_out(purchase_id: str) -> None:
    """Carry a queued purchase to its end; one that is not queued, or whose shop account is in use, is left alone."""
    shopper = provider.current().shopper
    if shopper is None:
        return
    holder = new_id()
    claimed = _claim(purchase_id, holder)
    if claimed is None:
        return
    with logs.caused_by(claimed.request_id):
        desk = Desk(claimed, holder)
        try:
            errand = _errand_of(claimed)
        except (Rejected, ValueError, KeyError, TypeError):
            desk.fail(Failed(Trouble.BROWSER_ERROR, "The sealed order could not be opened."))
            return
        _send(shopper, errand, desk)


def _send(shopper: Shopper, errand: Errand, desk: Desk) -> None:
    try:
        bought = shopper.buy(errand, desk)
    except Failed as failure:
        desk.fail(failure)
    except Unclear as unclear:
        desk.leave_open(unclear.message)
    except Exception as error:
        # Its text may quote a page; its class says enough.
        _log.error("purchase_broken", purchase_id=desk.purchase_id, error=type(error).__name__)
        desk.fail(Failed(Trouble.BROWSER_ERROR, "The service failed while it was shopping."))
        raise
    else:
        desk.finish(bought)


class Desk:
    """Hears and decides for one purchase that this worker holds: a `ports.shopper.Sender`."""

    def __init__(self, purchase: Purchase, holder: str) -> None:
        """Take a purchase that was just claimed."""
        self.purchase_id = purchase.id
        self._wallet_id = purchase.wallet_id
        self._host = purchase.host
        self._quantity = purchase.quantity
        self._dry_run = purchase.dry_run
        self._max_total_nanos = purchase.max_total_nanos
        self._holder = holder
        self._goods_nanos: int | None = None
        self._step: Step | None = None
        self._pictures = 0
        # Kept here, for a refusal comes back through the browser's process, which is not believed.
        self._refusal: ServiceError | None = None

    def first_page(self) -> None:
        """Note that the shop was read: from here on the price is earned."""
        self._change(first_page=True)

    def found(self, product: Product) -> None:
        """Note the product, and refuse what its price alone makes too dear. Raises: Failed."""
        self._change(product=asdict(product))
        self._goods_nanos = product.price_nanos * self._quantity
        self._assert_affordable(self._goods_nanos, "The product alone")

    def may_order(self, review: Review) -> None:
        """Hold the total and write `submitting`, both or neither. Raises: Failed."""
        if self._dry_run:
            raise Failed(Trouble.BROWSER_ERROR, "A dry run does not order.")
        self._assert_capped(review.total_nanos, "The order")
        try:
            with unit_of_work():
                if self._wallet_id is not None:
                    spending.hold(
                        self._wallet_id,
                        reference=self.purchase_id,
                        value_nanos=review.total_nanos,
                        recipient=None,
                        family=None,
                        domain=self._host,
                    )
                submitted = lifecycle.move(
                    self.purchase_id,
                    source=Status.RUNNING,
                    target=Status.SUBMITTING,
                    holder=self._holder,
                    changes={
                        "total_nanos": review.total_nanos,
                        "outcome": _outcome(review),
                        "lease_until": clock.now() + LEASE,
                    },
                )
                if not submitted:
                    raise Failed(
                        Trouble.BROWSER_ERROR, "The purchase was given up before it could be ordered."
                    )
        except ServiceError as refusal:
            raise self._over(refusal) from None

    def stepped(self, step: Step) -> None:
        """Note a step."""
        self._step = step
        with unit_of_work() as session:
            session.add(
                PurchaseStep(
                    purchase_id=self.purchase_id, action=step.action[:40], text=_stored(step.text),
                    path=_stored(step.path), at=clock.now(),
                )
            )  # fmt: skip
            self._renew()

    def saw(self, name: str, png: bytes) -> None:
        """Keep a screenshot."""
        self._pictures += 1
        if self._pictures > _MAX_EVIDENCE or len(png) > _MAX_EVIDENCE_BYTES:
            return
        with unit_of_work() as session:
            session.add(
                PurchaseEvidence(
                    id=new_id(), purchase_id=self.purchase_id, name=name[:40], png=png, created_at=clock.now()
                )
            )
            self._renew()

    def alive(self) -> None:
        """Keep the purchase in this worker's hands."""
        with unit_of_work():
            self._renew()

    def finish(self, ended: Bought | Review) -> None:
        """End a purchase that was confirmed, or a dry run that came to its review."""
        if isinstance(ended, Review):
            self._finish_dry_run(ended)
            return
        changes = {"outcome": _outcome(ended), "total_nanos": ended.total_nanos, "error": None}
        with unit_of_work():
            if self._wallet_id is not None:
                # The shop may have confirmed more than its review said.
                spending.record(self._wallet_id, reference=self.purchase_id, value_nanos=ended.total_nanos)
                spending.spend(self.purchase_id)
            # A sweep that thought this worker dead may have been here.
            for source in (Status.SUBMITTING, Status.UNKNOWN):
                if lifecycle.move(
                    self.purchase_id,
                    source=source,
                    target=Status.COMPLETED,
                    holder=self._holder,
                    changes=changes,
                ):
                    return

    def fail(self, failure: Failed) -> None:
        """End a purchase that came to no order; one that may have been ordered is left open."""
        target = Status.ACTION_REQUIRED if failure.trouble in _FOR_THE_CALLER else Status.FAILED
        if not end_running(
            self.purchase_id, target=target, error=self._error_of(failure), holder=self._holder
        ):
            self.leave_open(failure.message)

    def leave_open(self, message: str) -> None:
        """End a purchase that may have been ordered; what it holds stays held."""
        error = self._error_of(Failed(Trouble.OUTCOME_UNKNOWN, message))
        with unit_of_work():
            if self._wallet_id is not None:
                spending.lock_accounts([self._wallet_id])
            for source in (Status.SUBMITTING, Status.RUNNING):
                if lifecycle.move(
                    self.purchase_id, source=source, target=Status.UNKNOWN, holder=self._holder,
                    reason=Trouble.OUTCOME_UNKNOWN.value, changes={"error": error},
                ):  # fmt: skip
                    if source is Status.RUNNING:
                        self._count_goods()
                    return

    def _count_goods(self) -> None:
        # A shop that ordered unasked: nothing was held, and the goods are what it has cost at least.
        if self._wallet_id is not None and self._goods_nanos is not None:
            spending.record(self._wallet_id, reference=self.purchase_id, value_nanos=self._goods_nanos)

    def _finish_dry_run(self, review: Review) -> None:
        """Show what the review said, and whether the order would have been allowed."""
        seen = {"outcome": _outcome(review), "total_nanos": review.total_nanos}
        try:
            self._assert_affordable(review.total_nanos, "The order")
        except Failed as refusal:
            target, changes = Status.FAILED, {**seen, "error": self._error_of(refusal)}
        else:
            target, changes = Status.PREVIEW, seen
        with unit_of_work():
            lifecycle.move(
                self.purchase_id, source=Status.RUNNING, target=target, holder=self._holder, changes=changes
            )

    def _assert_affordable(self, value_nanos: int, what: str) -> None:
        self._assert_capped(value_nanos, what)
        if self._wallet_id is None:
            return
        try:
            with reading():
                spending.check(
                    self._wallet_id, value_nanos=value_nanos, recipient=None, family=None, domain=self._host
                )
        except ServiceError as refusal:
            raise self._over(refusal) from None

    def _over(self, refusal: ServiceError) -> Failed:
        self._refusal = refusal
        return Failed(Trouble.LIMIT_EXCEEDED, f"{refusal.message} ({refusal.code.value})")

    def _error_of(self, failure: Failed) -> dict[str, Any]:
        refusal = self._refusal if failure.trouble is Trouble.LIMIT_EXCEEDED else None
        return error_of(failure, self._step, limit_code=None if refusal is None else refusal.code.value)

    def _assert_capped(self, value_nanos: int, what: str) -> None:
        if self._max_total_nanos is not None and value_nanos > self._max_total_nanos:
            value, cap = money.usd_from_nanos(value_nanos), money.usd_from_nanos(self._max_total_nanos)
            raise Failed(
                Trouble.LIMIT_EXCEEDED, f"{what} costs {value:f} USD, more than max_total_usd, {cap:f} USD."
            )

    def _change(self, **values: Any) -> None:
        with unit_of_work():
            self._renew(**values)

    def _renew(self, **values: Any) -> None:
        db.session.execute(
            update(Purchase)
            .where(
                Purchase.id == self.purchase_id,
                Purchase.holder == self._holder,
                Purchase.status.in_([Status.RUNNING.value, Status.SUBMITTING.value]),
            )
            .values(lease_until=clock.now() + LEASE, **values)
            .execution_options(synchronize_session=False)
        )


def end_running(
    purchase_id: str, *, target: Status, error: Mapping[str, Any], holder: str | None = None
) -> bool:
    """End a purchase that certainly was not ordered, and give its price back unless a page was read."""
    with unit_of_work() as session:
        purchase = session.get(Purchase, purchase_id)
        free = purchase is not None and not purchase.first_page
        ended = lifecycle.move(
            purchase_id,
            source=Status.RUNNING,
            target=target,
            holder=holder,
            reason=str(error["code"]),
            changes={"error": dict(error), **({"cost_nanos": 0} if free else {})},
        )
        if ended and free:
            service.give_price_back(purchase_id)
        return ended


def error_of(failure: Failed, step: Step | None, *, limit_code: str | None = None) -> dict[str, Any]:
    """Return a failure as it is stored and shown; `limit_code` is the wallet's own refusal behind it."""
    return {
        "code": failure.trouble.value,
        "limit_code": limit_code,
        "message": _stored(failure.message, 600),
        "step": None if step is None else step.action,
        "missing": list(failure.missing),
        "choices": [_stored(choice) for choice in failure.choices],
    }


def _claim(purchase_id: str, holder: str) -> Purchase | None:
    try:
        with unit_of_work() as session:
            claimed = lifecycle.move(
                purchase_id,
                source=Status.QUEUED,
                target=Status.RUNNING,
                changes={"holder": holder, "lease_until": clock.now() + LEASE},
            )
            return session.get(Purchase, purchase_id) if claimed else None
    except IntegrityError:
        # Another purchase works with the same account of the shop; the sweep brings this one up again.
        return None


def _errand_of(purchase: Purchase) -> Errand:
    with reading():
        domains = orders.allowed_domains_of(purchase.wallet_id)
    return orders.unseal(
        purchase.sealed or "",
        purchase_id=purchase.id,
        url=purchase.url,
        quantity=purchase.quantity,
        dry_run=purchase.dry_run,
        allowed_domains=domains,
    )


def _outcome(found: Review | Bought) -> dict[str, Any]:
    return {
        "number": _stored(found.order_number) if isinstance(found, Bought) and found.order_number else None,
        "payment_method": _stored(found.payment_method) if found.payment_method else None,
        "payment_pending": found.payment_pending,
        "shipping_method": _stored(found.shipping_method) if found.shipping_method else None,
    }


def _stored(text: str, length: int = 200) -> str:
    # PostgreSQL has no NUL in texts and no lone surrogates; both can come out of a page.
    return "".join(letter for letter in text if letter.isprintable())[:length]
