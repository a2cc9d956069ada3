"""The use cases of shopping: buy, read, cancel. `purchase_runner` executes a purchase.

A token in the address of a purchase that a payment paid for lets the payer read it. Without a key, the payment's id is
the account that pays. After a refund, the payment is valid again for the same request.
"""

import base64
import hmac
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from http import HTTPStatus
from typing import Any

from sqlalchemy import ColumnElement, Select, Text, cast, func, or_, select
from sqlalchemy.orm import Session

from app.core import clock, identifiers
from app.core.pagination import Page, PageRequest
from app.credits import accounts as credit_accounts
from app.db.leases import ProcessKind, is_alive
from app.db.tables import page_of
from app.db.unit_of_work import after_commit, read_only_unit, unit_of_work
from app.errors import NotFound, PurchaseInProgress, ServiceError, TransactionInProgress
from app.idempotency.service import Claim
from app.identity.principal import KeyKind, Principal
from app.jobs import JobName
from app.observability import telemetry
from app.payments import claimed_payments
from app.payments.presented import PayableRequest, PaymentPrice
from app.payments.x402 import gate, guard
from app.shopping import models, orders
from app.shopping.models import OPEN_STATUSES, PURCHASES, Purchase, PurchaseStatus
from app.shopping.orders import PurchaseOrder
from app.state import app_state
from app.usage import service as usage
from app.usage.service import MeteredUsage, UsageCall

PROVIDER = "shopping"
PRICE_NANOS = 250_000_000
"""The price of a purchase, in credits."""
ACCESS_PARAMETER = "token"
_OPEN = [status.value for status in OPEN_STATUSES]


def is_configured() -> bool:
    with read_only_unit() as session:
        return is_alive(session, ProcessKind.SHOPPER)


def provider_listing() -> dict[str, Any]:
    """Return shopping's row in `GET /v1/providers`."""
    price = {"model": "per_call", "nanos": PRICE_NANOS, "prices": {}, "table": None}
    return {
        "slug": PROVIDER, "aliases": [], "kind": PROVIDER, "configured": is_configured(), "chains": [],
        "routes": ["POST"], "route": f"{app_state().settings.public_url}/v1/gateway/{PROVIDER}/buy",
        "pricing": price, "x402_price_usd": PRICE_NANOS,
    }  # fmt: skip


def buy(
    caller: Principal,
    order: PurchaseOrder,
    *,
    allow_duplicate: bool,
    claim: Claim,
    fund: Callable[[Session], None] | None = None,
) -> Purchase:
    """Accept a purchase: charge, seal and queue it. `allow_duplicate` permits an order identical to an open one.

    `fund` credits the account with the charge, in the same unit.

    Raises: InvalidInput, the 403 classes, NotFound, InsufficientCredits, PurchaseInProgress.
    """
    wallet_id = orders.assert_allowed(caller, order)
    purchase_id, now = identifiers.new_ordered_id(), clock.now()
    sealed = order.seal(purchase_id, key_id=caller.key_id)
    call = UsageCall(caller.key_id, PROVIDER, "buy")
    with unit_of_work() as session:
        if fund is not None:
            usage.lock_budgets(session, caller.account_id, call)
            fund(session)
        # Locks the account's row: of two concurrent requests, the second sees the purchase of the first.
        usage.charge(
            session, caller.account_id, call, charge_id=purchase_id, metered=MeteredUsage(PRICE_NANOS),
            is_paid=fund is not None,
        )  # fmt: skip
        digests = order.order_digests()
        if not allow_duplicate:
            _assert_no_duplicate(session, caller.account_id, digests)
        purchase = Purchase(
            id=purchase_id, account_id=caller.account_id, wallet_id=wallet_id,
            url=order.url, host=order.host, quantity=order.quantity, dry_run=order.dry_run,
            max_total_nanos=order.max_total_nanos, sealed=sealed, order_digest=digests[0],
            shop_account_digest=order.shop_account_digest(purchase_id), first_page=False,
            cost_nanos=PRICE_NANOS, lease_until=now + timedelta(minutes=15), created_at=now,
            approval_id=None if order.approved is None else order.approved.reference,
            approved_nanos=None if order.approved is None else order.approved.max_nanos,
            request_id=telemetry.originating_request_id(),
        )  # fmt: skip
        PURCHASES.add(session, purchase, PurchaseStatus.QUEUED)
        claim.bind(session, purchase_id)
        after_commit(lambda: app_state().ports.queue.enqueue(JobName.BUY, purchase_id))
    return view(purchase_id)


def get_owned(purchase_id: str, caller: Principal) -> Purchase:
    """Return a purchase of the account, and of the wallet of an application. Raises: NotFound, for all other ids."""
    missing = NotFound("No purchase with this id belongs to this key.")
    canonical = identifiers.require_id(purchase_id, missing)
    query = select(Purchase).where(Purchase.id == canonical, Purchase.account_id == caller.account_id)
    if caller.grant is not None:
        query = query.where(Purchase.wallet_id == caller.only_wallet_id)
    return _find(query, missing)


def list_of(
    page: PageRequest, *, statuses: Collection[str] = (), text: str = "", **values: str | None
) -> Page[Purchase]:
    """Return a page of the purchases with these values of columns, newest first, without steps and screenshots."""
    conditions: list[ColumnElement[bool]] = [Purchase.status.in_(statuses)] if statuses else []
    found_in = (Purchase.url, cast(Purchase.product, Text))
    conditions += [or_(*(each.icontains(text, autoescape=True) for each in found_in))] if text else []
    with read_only_unit() as session:
        return page_of(session, Purchase, page, *conditions, newest_first=True, **values)


def view(purchase_id: str) -> Purchase:
    """Return a purchase. Raises: NotFound."""
    return _find(select(Purchase).where(Purchase.id == purchase_id), NotFound("No purchase has this id."))


def refund_price(session: Session, purchase_id: str) -> None:
    """Refund the price of a purchase; a payment that paid for it can be used again."""
    usage.refund(session, purchase_id)
    account_id = session.scalar(select(Purchase.account_id).where(Purchase.id == purchase_id))
    if account_id is not None:
        claimed_payments.reopen(session, account_id)


def cancel(purchase: Purchase) -> Purchase:
    """Cancel a queued purchase and refund its price. Raises: PurchaseInProgress."""
    with unit_of_work() as session:
        cancelled = PURCHASES.move(session, purchase.id, PurchaseStatus.QUEUED, PurchaseStatus.CANCELLED, cost_nanos=0)
        if cancelled:
            refund_price(session, purchase.id)
    current = view(purchase.id)
    if not cancelled and current.status != PurchaseStatus.CANCELLED:
        raise PurchaseInProgress(
            f"This purchase is {current.status}; only a queued one can be cancelled.",
            details={"purchase_id": current.id, "status": current.status},
        )
    return current


def evidence(purchase: Purchase, evidence_id: str) -> bytes:
    """Return a screenshot of a purchase. Raises: NotFound."""
    with read_only_unit() as session:
        canonical = identifiers.parse_id(evidence_id)
        found = session.get(models.PurchaseEvidence, canonical) if canonical else None
        if found is None or found.purchase_id != purchase.id or found.media_type != models.SCREENSHOT_TYPE:
            raise NotFound("This purchase has no such screenshot; screenshots are kept for 30 days.")
        return found.content


def failed_page(purchase_id: str) -> str | None:
    """Return the document of the page on which a purchase failed, if it was recorded and is still kept."""
    with read_only_unit() as session:
        pages = select(models.PurchaseEvidence.content).filter_by(purchase_id=purchase_id, media_type=models.PAGE_TYPE)
        content = session.scalar(pages.order_by(models.PurchaseEvidence.created_at.desc()).limit(1))
        return None if content is None else content.decode()


def deletion_conflict(session: Session, wallet_id: str) -> TransactionInProgress | None:
    """Return the refusal of a wallet's deletion while a purchase is open, or None."""
    is_open = Purchase.wallet_id == wallet_id, Purchase.status.in_(_OPEN)
    found = session.scalar(select(Purchase.id).where(*is_open).limit(1))
    problem = "A purchase from this wallet has not ended yet; delete the wallet once it has."
    return None if found is None else TransactionInProgress(problem, details={"purchase_id": found})


def count_open_by_status(session: Session) -> dict[str, int]:
    counts = select(Purchase.status, func.count()).where(Purchase.status.in_(_OPEN)).group_by(Purchase.status)
    return dict.fromkeys(_OPEN, 0) | dict(session.execute(counts).all())


def _assert_no_duplicate(session: Session, account_id: str, digests: Sequence[str]) -> None:
    is_same = Purchase.account_id == account_id, Purchase.order_digest.in_(digests)
    may_be_bought = Purchase.status.in_([*_OPEN, PurchaseStatus.UNKNOWN.value])
    found = select(Purchase.id, Purchase.status).where(*is_same, may_be_bought)
    duplicate = session.execute(found.limit(1)).one_or_none()
    if duplicate is not None:
        raise PurchaseInProgress(
            f"An identical purchase is {duplicate.status}. To buy it twice on purpose, send a new Idempotency-Key.",
            details={"purchase_id": duplicate.id, "status": duplicate.status},
        )


def _find(query: Select[Purchase], missing: NotFound) -> Purchase:
    with read_only_unit() as session:
        purchase = identifiers.require(session.scalar(query), missing)
        step, shot = models.PurchaseStep, models.PurchaseEvidence
        steps = select(step.action, step.text, step.path, step.at).where(step.purchase_id == purchase.id)
        purchase.steps = session.execute(steps.order_by(step.id)).all()
        is_shot = shot.purchase_id == purchase.id, shot.media_type == models.SCREENSHOT_TYPE
        shots = select(shot.id, shot.name).where(*is_shot).order_by(shot.created_at, shot.id)
        purchase.evidence = session.execute(shots).all()
        return purchase


def accept(
    caller: Principal | None,
    order: PurchaseOrder,
    request: PayableRequest,
    body: bytes,
    *,
    allow_duplicate: bool,
    claim: Claim,
) -> tuple[Purchase, Mapping[str, str]]:
    """Accept a purchase, paid for by credits or by the request's payment; return it with the payment's headers.

    Raises: what `buy` raises; PaymentInvalid, PaymentAlreadyUsed, PaymentPending.
    """
    price = purchase_price(request, body)

    def prepaid(holder: Principal | None) -> tuple[Purchase, Mapping[str, str]]:
        if holder is None:
            orders.assert_max_total(order)
            if (previous_account_id := gate.find_served_payment(price)) is not None:
                # The response was lost: the same request with the same payment gets the same purchase.
                of_account = select(Purchase).filter_by(account_id=previous_account_id)
                newest_first = of_account.order_by(Purchase.created_at.desc(), Purchase.id.desc())
                return _find(newest_first.limit(1), NotFound("No purchase has this id.")), {}
        grant = gate.accept_payment(price, payer=holder)
        payer = holder or Principal(KeyKind.GATEWAY, grant.payment_id, grant.payment_id, None)

        def fund(session: Session) -> None:
            grant.consume(session)
            if not credit_accounts.balances(session, [payer.account_id]):
                credit_accounts.open_account(session, payer.account_id)
            # Once per payment: what a refunded purchase has left there pays for its repetition.
            credit_accounts.grant(session, payer.account_id, price.nanos, reference=f"payment:{grant.payment_id}")

        may_repeat = allow_duplicate or holder is None
        purchase = buy(payer, order, allow_duplicate=may_repeat, claim=claim, fund=fund)
        return purchase, grant.headers_for(HTTPStatus.OK)

    return guard.choose_payer(
        caller, lambda: price, has_payment=request.headers.has_payment, prepaid=prepaid,
        on_credits=lambda holder: (buy(holder, order, allow_duplicate=allow_duplicate, claim=claim), {}),
    )  # fmt: skip


def purchase_price(request: PayableRequest, body: bytes, *, unavailable_reason: str | None = None) -> PaymentPrice:
    return request.price(
        PRICE_NANOS, body, provider_name=PROVIDER, description="One purchase in a web shop",
        unavailable_reason=unavailable_reason,
    )  # fmt: skip


def refusal_reason(parse_order: Callable[[], PurchaseOrder]) -> str | None:
    """Return why an order would be refused, paid for or not; None if it would be accepted."""
    if not is_configured():
        return "shopping is not available on this service."
    try:
        orders.assert_max_total(parse_order())
    except ServiceError as refusal:
        return f"this request would be refused. {refusal.message}"
    return None


def access_token(purchase_id: str) -> str:
    """Return the token that lets a client without a key read a purchase."""
    return _tokens(purchase_id)[0]


def account_of_token(purchase_id: str, token: str) -> str | None:
    """Return the account that pays for a purchase, None if the token is not its own or there is no such purchase."""
    if not any(hmac.compare_digest(token.encode(), each.encode()) for each in _tokens(purchase_id)):
        return None
    with read_only_unit() as session:
        return session.scalar(select(Purchase.account_id).where(Purchase.id == identifiers.parse_id(purchase_id)))


def _tokens(purchase_id: str) -> list[str]:
    """Return the token under the current secret, then those under secrets that are still accepted."""
    digests = identifiers.keyed_digests("purchases", purchase_id.encode(), app_state().settings.secret_key_list())
    return [base64.urlsafe_b64encode(digest).decode()[:32] for digest in digests]
