"""Payment of a web service that answers 402, in the phases of a movement.

The unpaid request and the chain are read first. One unit then checks the limits, pins the payee, holds the amount,
signs, and stores the signed bytes under the idempotency key. Every attempt sends those bytes; a second authorization is
never signed. Whether they were used is read from the chain, whatever the seller answers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from http import HTTPStatus

import structlog

from app.buying import offers, records, sellers
from app.buying.offers import PaymentOffer
from app.buying.sellers import SellerAnswer, SellerRequest
from app.capacity.limiter import Quota
from app.core import clock
from app.core.chains import ChainName
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import PaymentFailed
from app.idempotency.service import Claim
from app.ports.errors import PortError, Rejected, Unreachable
from app.ports.payment_signer import PaymentIntent
from app.spending import holds as spending_holds
from app.spending.policy import SpendingRequest
from app.state import app_state
from app.wallets.core import custody
from app.wallets.core.lifecycle import MovementKind, MovementStatus, TransactionType
from app.wallets.core.wallets import WalletView
from app.wallets.transactions import authorizations
from app.wallets.transactions.authorizations import AvailableFunds, SignedPaymentBytes
from app.wallets.transactions.pipeline import Movement, NotAffordable
from app.wallets.views.history import TransactionView

_log = structlog.get_logger(__name__)

# A seller needs its own time, and a facilitator one or two blocks.
_UNPAID_SECONDS = 30
_PAID_SECONDS = 60


@dataclass(frozen=True, slots=True)
class FetchOrder:
    """A request to a web service, and what it may cost; `networks` are those to pay on, empty for any."""

    request: SellerRequest
    max_nanos: int
    networks: Collection[ChainName]
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class FetchResult:
    """The answer of a web service, None if none came; and the payment, None if none was asked for."""

    answer: SellerAnswer | None
    payment: TransactionView | None = None
    version: int | None = None
    network: str | None = None


@dataclass(frozen=True, slots=True)
class FetchQuote:
    """The result of a dry run: what would be paid to whom; None if the service asks for no payment."""

    answer_status: int
    offer: PaymentOffer | None
    value_nanos: int | None


def fetch(
    wallet: WalletView, order: FetchOrder, *, wait_seconds: Decimal | None, claim: Claim
) -> FetchResult:
    """Request a resource, and pay for it once if the seller asks for that.

    Raises: the 403 errors of refused limits, PayeeChanged, TermsNotSupported, PaymentFailed, UpstreamError,
    UpstreamTimeout, InvalidInput: nothing was signed.
    """
    with _permit(wallet, order.request):
        unpaid = _ask_unpaid(wallet, order)
        if unpaid.status != HTTPStatus.PAYMENT_REQUIRED:
            return FetchResult(unpaid)
        offer, movement, funds = _choose(wallet, order, unpaid)
        payment = _record(wallet, order.request, offer, movement, funds, claim=claim)
        return _present(
            wallet, order.request, payment, offer.terms.version, offer.network, wait_seconds=wait_seconds
        )


def resume(
    wallet: WalletView, order: FetchOrder, transaction_id: str, *, wait_seconds: Decimal | None
) -> FetchResult:
    """Return the answer that was paid for, or send the same bytes again while they can be used."""
    purchase, answer = records.get(transaction_id)
    if answer is not None or purchase.payment.status == MovementStatus.FAILED:
        return FetchResult(answer, purchase.payment, purchase.version, purchase.network)
    # The seller may not have the signed bytes yet; what they take is counted already.
    with read_only_unit() as session:
        spending_holds.check(session, wallet.id, SpendingRequest(0, domain=order.request.host))
    with _permit(wallet, order.request):
        return _present(
            wallet,
            order.request,
            purchase.payment,
            purchase.version,
            purchase.network,
            wait_seconds=wait_seconds,
        )


def quote(wallet: WalletView, order: FetchOrder) -> FetchQuote:
    """Return what `fetch` would pay to whom, without signing. Raises: what `fetch` raises."""
    with _permit(wallet, order.request):
        unpaid = _ask_unpaid(wallet, order)
        if unpaid.status != HTTPStatus.PAYMENT_REQUIRED:
            return FetchQuote(unpaid.status, None, None)
        offer, movement, _funds = _choose(wallet, order, unpaid)
        return FetchQuote(unpaid.status, offer, movement.value_nanos)


@contextmanager
def _permit(wallet: WalletView, request: SellerRequest) -> Iterator[None]:
    """Hold a permit to wait for a seller: some that hang must not use up the threads. Raises: Overloaded."""
    quotas = (
        Quota("sellers", 2, "to web services"),
        Quota(f"seller:{request.host}", 4, "to this web service"),
        Quota(f"account:{wallet.agent_id}", 4, "from your account"),
    )
    permit = app_state().forwarding_limiter.acquire(wallet.agent_id, quotas)
    try:
        yield
    finally:
        permit.release()


def _ask_unpaid(wallet: WalletView, order: FetchOrder) -> SellerAnswer:
    # The price is not known yet; a freeze and the allowlist are.
    with read_only_unit() as session:
        spending_holds.check(
            session, wallet.id, SpendingRequest(0, domain=order.request.host, session_id=order.session_id)
        )
    try:
        return sellers.ask(order.request, seconds=_UNPAID_SECONDS)
    except PortError as error:
        raise sellers.no_answer(error) from None


def _choose(
    wallet: WalletView, order: FetchOrder, unpaid: SellerAnswer
) -> tuple[PaymentOffer, Movement, AvailableFunds]:
    """Return the cheapest offer that the wallet can pay, within its limits."""
    payable = offers.payable_offers(
        offers.read_terms(unpaid),
        app_state().ports.payment_signers,
        host=order.request.host,
        max_nanos=order.max_nanos,
        networks=order.networks,
        own_addresses=frozenset(wallet.addresses.values()),
    )
    failure: PortError | None = None
    for offer in payable:
        movement = _movement(wallet, order, offer)
        with read_only_unit() as session:
            spending_holds.check(session, wallet.id, movement.spending_request)
            records.check_payee(session, wallet.id, order.request.host, offer)
        try:
            funds = authorizations.read_funds(movement)
            with read_only_unit() as session:
                authorizations.assert_affordable(session, movement, funds)
        except (NotAffordable, Unreachable) as error:
            failure = failure or error
        else:
            return offer, movement, funds
    raise _payment_failed(failure or Rejected("insufficient_funds"))


def _movement(wallet: WalletView, order: FetchOrder, offer: PaymentOffer) -> Movement:
    return Movement(
        wallet=wallet, type=TransactionType.PAYMENT, kind=MovementKind.X402, chain=offer.chain,
        recipient=offer.recipient, payee=offer.recipient, amount=offer.amount, value_nanos=offers.price_nanos(offer),
        domain=order.request.host, session_id=order.session_id,
    )  # fmt: skip


def _record(
    wallet: WalletView,
    request: SellerRequest,
    offer: PaymentOffer,
    movement: Movement,
    funds: AvailableFunds,
    *,
    claim: Claim,
) -> TransactionView:
    """Hold, sign and store in one unit. Raises: what `_choose` raises."""
    signer = custody.signer_of(wallet.id)
    payment_signer = app_state().ports.payment_signers[offer.chain]

    def sign(transaction_id: str) -> SignedPaymentBytes:
        valid_before = int(clock.now().timestamp()) + offer.validity_seconds
        intent = PaymentIntent(offer.recipient, offer.amount.units, valid_before, funds.block)
        signed = payment_signer.authorize(intent, signer)
        header = offer.payment_header(signed, identifier=transaction_id)
        return SignedPaymentBytes(signed.reference, header.encode(), signed.terms)

    try:
        with unit_of_work() as session:
            payment = authorizations.record(session, movement, funds, sign, claim=claim)
            records.pin_payee(session, wallet.id, request.host, offer)
            records.add(session, payment.id, wallet.id, request, offer)
            return payment
    except NotAffordable as error:
        raise _payment_failed(error) from None


def _present(
    wallet: WalletView,
    request: SellerRequest,
    payment: TransactionView,
    version: int,
    network: str,
    *,
    wait_seconds: Decimal | None,
) -> FetchResult:
    """Send the stored bytes with the request. What is recorded is returned, whatever happens from here on."""
    signed = authorizations.stored(payment.id)
    answer = None
    try:
        header = (offers.header_name(version), signed.raw.decode())
        answer = sellers.ask(request, seconds=_PAID_SECONDS, payment=header)
        if answer.is_complete and answer.status < HTTPStatus.BAD_REQUEST:
            records.store_answer(payment.id, answer)
    except PortError as error:
        _log.warning("seller_gave_no_answer", transaction_id=payment.id, reason=error.reason)
    if answer is None or answer.status != HTTPStatus.PAYMENT_REQUIRED:
        payment = authorizations.wait(payment, wait_seconds=wait_seconds, account_id=wallet.agent_id)
    return FetchResult(answer, payment, version, network)


def _payment_failed(error: PortError) -> PaymentFailed:
    details = {"reason": error.reason, **error.details}
    if isinstance(error, NotAffordable):
        missing, symbol = error.details["missing"], error.details["currency"]
        return PaymentFailed(
            f"The wallet does not hold enough {symbol} on a network that the web service accepts; missing: {missing}. "
            "Nothing was paid.",
            details=details,
        )
    return PaymentFailed("The chain cannot be read at the moment. Nothing was paid.", details=details)
