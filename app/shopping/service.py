"""The verbs of shopping towards callers: buy, read, cancel. Carrying a purchase out is `carrying`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import func, select

from app.core import clock, identifiers
from app.core.heartbeats import Heart, is_fresh
from app.core.money import nanos_from_usd
from app.core.unit_of_work import after_commit, reading, unit_of_work
from app.errors import NotFound, ProviderNotConfigured, PurchaseInProgress, TransactionInProgress
from app.extensions import db
from app.identity import guards
from app.identity.caller import Caller
from app.jobs import JobName
from app.payments import desk
from app.ports import provider
from app.shopping import lifecycle, orders
from app.shopping.lifecycle import OPEN, Status
from app.shopping.models import Purchase, PurchaseEvidence, PurchaseStep
from app.shopping.orders import Order
from app.usage import service as usage
from app.usage.service import Call, Metered
from app.web import budgets, idempotency
from app.web.budgets import Use

PROVIDER = "shopping"
NO_WAIT = Decimal(0)
_FIRST_LEASE = timedelta(minutes=15)
_LOOKS_PER_SECOND = 4


@dataclass(frozen=True, slots=True)
class EvidenceView:
    """A screenshot that can be fetched."""

    id: str
    name: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class StepView:
    """Something the browser did."""

    action: str
    text: str
    path: str
    at: datetime


@dataclass(frozen=True, slots=True)
class PurchaseView:
    """A purchase as its owner sees it."""

    id: str
    status: Status
    url: str
    dry_run: bool
    quantity: int
    max_total_nanos: int | None
    product: dict[str, Any] | None
    outcome: dict[str, Any] | None
    total_nanos: int | None
    error: dict[str, Any] | None
    cost_nanos: int
    steps: Sequence[StepView]
    evidence: Sequence[EvidenceView]
    created_at: datetime
    finished_at: datetime | None

    @property
    def is_open(self) -> bool:
        """Tell whether it will still change by itself."""
        return self.status in OPEN


def is_configured() -> bool:
    """Tell whether somebody is there who buys."""
    with reading():
        return is_fresh(Heart.SHOPPER)


def assert_configured() -> None:
    """See that somebody is there who buys. Raises: ProviderNotConfigured."""
    if is_configured():
        return
    raise ProviderNotConfigured(
        "Shopping is not set up on this service: no shopping worker with a browser is running."
    )


def listed() -> dict[str, Any]:
    """Return shopping's row in `GET /v1/providers`."""
    with reading():
        configured = is_fresh(Heart.SHOPPER)
    price = {"model": "per_call", "nanos": price_nanos(), "prices": {}, "table": None}
    return {
        "slug": PROVIDER, "aliases": [], "kind": PROVIDER, "configured": configured, "chains": [],
        "route": f"{provider.settings().public_url}/v1/gateway/{PROVIDER}/buy",
        "pricing": price, "x402_price_usd": price_nanos(),
    }  # fmt: skip


def price_nanos() -> int:
    """Return what an accepted purchase costs, in credits."""
    return nanos_from_usd(provider.settings().shopping_price_usd)


def buy(caller: Caller, order: Order, *, twice: bool, fund: Callable[[], None] | None = None) -> PurchaseView:
    """Accept a purchase, charged, sealed and queued. `twice` says that the same may be bought again on purpose.

    `fund` gives the account what is charged, in the same unit.

    Raises: InvalidInput, the 403 classes, NotFound, InsufficientCredits, PurchaseInProgress.
    """
    wallet_id = orders.assert_allowed(caller, order)
    purchase_id, now = identifiers.new_id(), clock.now()
    sealed = order.seal(purchase_id)
    cost_nanos = price_nanos()
    with unit_of_work():
        if fund is not None:
            fund()
        # Touches the account's row: of two requests at once, the second sees the first one's purchase.
        usage.charge(
            caller.account_id,
            Call(caller.key_id, PROVIDER, "buy"),
            charge_id=purchase_id,
            metered=Metered(cost_nanos),
        )
        digests = order.order_digests()
        if not twice:
            _assert_not_ordered_already(caller.account_id, digests)
        lifecycle.record(
            Purchase(
                id=purchase_id, account_id=caller.account_id, wallet_id=wallet_id, status=Status.QUEUED.value,
                url=order.url, host=order.host, quantity=order.quantity, dry_run=order.dry_run,
                max_total_nanos=order.max_total_nanos, sealed=sealed, order_digest=digests[0],
                shop_account_digest=order.shop_account_digest(purchase_id), first_page=False,
                cost_nanos=cost_nanos, lease_until=now + _FIRST_LEASE, created_at=now,
            )
        )  # fmt: skip
        idempotency.bind(purchase_id)
        after_commit(lambda: provider.current().queue.put(JobName.BUY, purchase_id))
    return view(purchase_id)


def owned(purchase_id: str, caller: Caller) -> PurchaseView:
    """Return a purchase of the caller's. Raises: NotFound for malformed, unknown and foreign ids alike."""
    with reading() as session:
        canonical = identifiers.parse_id(purchase_id)
        purchase = session.get(Purchase, canonical) if canonical else None
        if purchase is None or purchase.account_id != caller.account_id:
            raise NotFound("This key has no such purchase.")
        return _view(purchase)


def view(purchase_id: str) -> PurchaseView:
    """Return a purchase. Raises: NotFound."""
    with reading() as session:
        purchase = session.get(Purchase, purchase_id)
        if purchase is None:
            raise NotFound("There is no such purchase.")
        return _view(purchase)


def newest_of(account_id: str) -> PurchaseView:
    """Return what an account bought last. Raises: NotFound."""
    with reading() as session:
        purchase = session.scalar(
            select(Purchase)
            .where(Purchase.account_id == account_id)
            .order_by(Purchase.created_at.desc(), Purchase.id.desc())
            .limit(1)
        )
        if purchase is None:
            raise NotFound("There is no such purchase.")
        return _view(purchase)


def account_of(purchase_id: str) -> str | None:
    """Return the account that pays for a purchase, None where there is no such purchase."""
    canonical = identifiers.parse_id(purchase_id)
    with reading() as session:
        return session.scalar(select(Purchase.account_id).where(Purchase.id == canonical))


def give_price_back(purchase_id: str) -> None:
    """Give the price of a purchase back, in the current unit: what a payment has paid makes that payment good again."""
    usage.refund(purchase_id)
    account_id = db.session.scalar(select(Purchase.account_id).where(Purchase.id == purchase_id))
    if account_id is not None:
        desk.take_back(account_id)


def cancel(purchase: PurchaseView) -> PurchaseView:
    """Take back a purchase that no worker has begun, and its price. Raises: PurchaseInProgress."""
    with unit_of_work():
        cancelled = lifecycle.move(
            purchase.id, source=Status.QUEUED, target=Status.CANCELLED, changes={"cost_nanos": 0}
        )
        if cancelled:
            give_price_back(purchase.id)
    now = view(purchase.id)
    if not cancelled and now.status is not Status.CANCELLED:
        raise PurchaseInProgress(
            f"This purchase is {now.status.value}; only a queued one can be cancelled.",
            details={"purchase_id": now.id, "status": now.status.value},
        )
    return now


def wait(purchase: PurchaseView, *, seconds: Decimal) -> PurchaseView:
    """Wait for a purchase to end, as long as asked and while there is a thread for it."""
    if seconds <= 0:
        return purchase
    with budgets.threads().place(Use.OUTCOME, guards.account_or_stranger()) as has_place:
        for _ in range(int(seconds) * _LOOKS_PER_SECOND if has_place else 0):
            if not purchase.is_open:
                break
            time.sleep(1 / _LOOKS_PER_SECOND)
            if not _is_open(purchase.id):
                purchase = view(purchase.id)
    return purchase


def evidence(purchase: PurchaseView, evidence_id: str) -> bytes:
    """Return a screenshot of a purchase. Raises: NotFound."""
    with reading() as session:
        canonical = identifiers.parse_id(evidence_id)
        found = session.get(PurchaseEvidence, canonical) if canonical else None
        if found is None or found.purchase_id != purchase.id:
            raise NotFound("This purchase has no such evidence; it is kept for 30 days.")
        return found.png


def open_purchase_of(wallet_id: str) -> TransactionInProgress | None:
    """Return what refuses a wallet's deletion: a purchase that has not ended. In the current unit."""
    found = db.session.scalar(
        select(Purchase.id)
        .where(Purchase.wallet_id == wallet_id, Purchase.status.in_([status.value for status in OPEN]))
        .limit(1)
    )
    if found is None:
        return None
    return TransactionInProgress(
        "A purchase under this wallet's limits has not ended yet; delete it once that has.",
        details={"purchase_id": found},
    )


def open_by_status() -> dict[str, int]:
    """Return how many purchases are under way, in the current unit."""
    statuses = [status.value for status in OPEN]
    counts = (
        select(Purchase.status, func.count()).where(Purchase.status.in_(statuses)).group_by(Purchase.status)
    )
    found = dict.fromkeys(statuses, 0)
    for status, number in db.session.execute(counts):
        found[status] = number
    return found


def _assert_not_ordered_already(account_id: str, digests: Sequence[str]) -> None:
    in_question = [Status.QUEUED, Status.RUNNING, Status.SUBMITTING, Status.UNKNOWN]
    same = db.session.execute(
        select(Purchase.id, Purchase.status)
        .where(
            Purchase.account_id == account_id,
            Purchase.order_digest.in_(digests),
            Purchase.status.in_([status.value for status in in_question]),
        )
        .limit(1)
    ).one_or_none()
    if same is not None:
        raise PurchaseInProgress(
            f"The same purchase is {same.status}. To buy it twice on purpose, send an Idempotency-Key of its own.",
            details={"purchase_id": same.id, "status": same.status},
        )


def _is_open(purchase_id: str) -> bool:
    with reading() as session:
        found = session.scalar(select(Purchase.status).where(Purchase.id == purchase_id))
        return found in {status.value for status in OPEN}


def _view(purchase: Purchase) -> PurchaseView:
    steps = db.session.execute(
        select(PurchaseStep.action, PurchaseStep.text, PurchaseStep.path, PurchaseStep.at)
        .where(PurchaseStep.purchase_id == purchase.id)
        .order_by(PurchaseStep.id)
    )
    pictures = db.session.execute(
        select(PurchaseEvidence.id, PurchaseEvidence.name, PurchaseEvidence.created_at)
        .where(PurchaseEvidence.purchase_id == purchase.id)
        .order_by(PurchaseEvidence.created_at, PurchaseEvidence.id)
    )
    return PurchaseView(
        id=purchase.id, status=Status(purchase.status), url=purchase.url, dry_run=purchase.dry_run,
        quantity=purchase.quantity, max_total_nanos=purchase.max_total_nanos, product=purchase.product,
        outcome=purchase.outcome, total_nanos=purchase.total_nanos, error=purchase.error,
        cost_nanos=purchase.cost_nanos, steps=[StepView(*row) for row in steps],
        evidence=[EvidenceView(*row) for row in pictures], created_at=purchase.created_at,
        finished_at=purchase.finished_at,
    )  # fmt: skip
