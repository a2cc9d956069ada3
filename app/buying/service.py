"""Payment of a web service that answers 402, in the phases of a movement.

The unpaid request and the chain are read first. One unit then checks the limits, pins the payee, holds the amount,
signs, and stores the signed bytes under the idempotency key. Every attempt sends those bytes; a second authorization is
never signed. Whether they were used is read from the chain, whatever the seller answers. A request that ends without a
payment has a price: a free key must not send anything to anybody from our address.
"""

import json
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from http import HTTPStatus

import structlog
from sqlalchemy.exc import IntegrityError

from app import errors
from app.buying import offers, records, sellers
from app.buying.offers import PaymentOffer
from app.buying.records import ServicePurchase
from app.buying.sellers import SellerAnswer, SellerRequest
from app.capacity.limiter import Permit, quotas_of
from app.core import clock, money
from app.core.chains import ChainName
from app.core.checks import CheckedStep
from app.core.identifiers import new_id, new_ordered_id
from app.core.movement_kinds import MovementKind
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.idempotency.service import Claim
from app.ports.chain import AvailableFunds, Terms
from app.ports.errors import OutcomeUnknown, PortError, Rejected, Unreachable
from app.ports.facilitator import PaymentIntent, SignedPart
from app.spending import holds as spending_holds
from app.spending.policy import SpendingRequest
from app.state import app_state
from app.usage import service as usage
from app.usage.service import MeteredUsage, UsageCall
from app.wallets.core import custody, intents
from app.wallets.core.lifecycle import MovementStatus, TransactionType
from app.wallets.core.wallets import WalletView
from app.wallets.transactions import relayed
from app.wallets.transactions.pipeline import Movement, NotAffordable

PROVIDER = "x402"
PRICE_NANOS = 1_000_000
MAX_HOSTS = 50
MAX_UNCHARGED = 10
_UNCHARGED = f"{MAX_UNCHARGED} per day"
_LEASE = timedelta(minutes=5)
_log = structlog.get_logger(__name__)
# A seller needs its own time, and a facilitator one or two blocks.
_UNPAID_SECONDS = 30
_PAID_SECONDS = 60
_MAX_OFFERS_TEXT = 2_000
_NO_LIMIT = 10**30


@dataclass(slots=True)
class FetchMeter:
    """The charge of one request: due if it may have reached the service, and nothing was paid for it."""

    is_due: bool = False


@contextmanager
def metered(wallet: WalletView, host: str, *, key_id: str | None) -> Iterator[FetchMeter]:
    """Hold the price of an unpaid request, and charge it at the end if one was sent and nothing was paid.

    A wallet pays its sellers without credits, too: then some unpaid requests a day are free.

    Raises: InsufficientCredits after those; RateLimited for more hosts in a day than MAX_HOSTS that the wallet has
    never paid.
    """
    _count_host(wallet, host)
    meter, price, limiter = FetchMeter(), MeteredUsage(PRICE_NANOS), app_state().rate_limiter
    call, uncharged = UsageCall(key_id or wallet.agent_id, PROVIDER, host), ("fetched-uncharged", wallet.agent_id)
    hold_id: str | None = (new := new_ordered_id())
    try:
        with unit_of_work() as session:
            usage.begin(session, wallet.agent_id, call, hold_id=new, nanos=PRICE_NANOS, estimate=price, lease=_LEASE)
    except errors.InsufficientCredits as refusal:
        hold_id = None
        try:
            limiter.check(_UNCHARGED, *uncharged)
        except errors.RateLimited:
            raise refusal from None
    try:
        yield meter
    finally:
        if hold_id is not None:
            with unit_of_work() as session:
                if meter.is_due:
                    usage.settle(session, hold_id, price)
                else:
                    usage.cancel(session, hold_id)
        elif meter.is_due:
            with suppress(errors.RateLimited):
                limiter.count(_UNCHARGED, *uncharged)


def _count_host(wallet: WalletView, host: str) -> None:
    limiter, seen = app_state().rate_limiter, f"{wallet.agent_id}:{host}"
    hosts = (f"{MAX_HOSTS} per day", "fetched-hosts", wallet.agent_id)
    try:
        limiter.check("1 per day", "fetched-host", seen)
    except errors.RateLimited:
        return
    if records.has_payee(wallet.id, host):
        return
    try:
        limiter.check(*hosts)
    except errors.RateLimited as refusal:
        raise errors.RateLimited(
            f"Today this agent has sent requests to {MAX_HOSTS} hosts that it has never paid, which is the maximum. "
            "Hosts that it has paid are not counted. Try another host tomorrow.",
            retry_after_seconds=refusal.retry_after_seconds,
        ) from None
    # Only the first of concurrent requests to one host counts it.
    with suppress(errors.RateLimited):
        limiter.count("1 per day", "fetched-host", seen)
        limiter.count(*hosts)


@dataclass(frozen=True, slots=True)
class FetchOrder:
    """A request to a web service, and what it may cost; `networks` are those to pay on, empty for any."""

    request: SellerRequest
    max_nanos: int
    networks: Collection[ChainName]
    session_id: str | None = None
    key_id: str | None = None


@dataclass(frozen=True, slots=True)
class FetchResult:
    """The answer of a web service, None if none came; and what was paid for, None if no payment was asked for."""

    answer: SellerAnswer | None
    purchase: ServicePurchase | None = None


def fetch(wallet: WalletView, order: FetchOrder, *, wait_seconds: Decimal | None, claim: Claim) -> FetchResult:
    """Request a resource, and pay for it once if the seller asks for that.

    A request that ends without a payment is charged, in credits.

    Raises: the 403 errors of refused limits, PayeeChanged, TermsNotSupported, PaymentFailed, UpstreamError,
    UpstreamTimeout, InvalidInput, InsufficientCredits, RateLimited: nothing was signed.
    """
    with _permit(wallet, order.request):
        with metered(wallet, order.request.host, key_id=order.key_id) as meter:
            unpaid = _ask_unpaid(wallet, order, meter)
            if unpaid.status != HTTPStatus.PAYMENT_REQUIRED:
                return FetchResult(unpaid)
            purchase = _record(wallet, order.request, _choose(wallet, order, unpaid), claim=claim)
            meter.is_due = False
        return _present(wallet, order.request, purchase, wait_seconds=wait_seconds)


def resume(wallet: WalletView, order: FetchOrder, transaction_id: str, *, wait_seconds: Decimal | None) -> FetchResult:
    """Return the answer that was paid for, or send the same bytes again while they can be used."""
    purchase, answer = records.get(wallet.id, transaction_id)
    if answer is not None and records.bought_answer(purchase, answer) is None:
        # The chain may show by now that this refusal was paid for.
        relayed.wait_for_authorized(purchase.payment, wait_seconds=wait_seconds, account_id=wallet.agent_id)
        purchase, answer = records.get(wallet.id, transaction_id)
    bought = records.bought_answer(purchase, answer)
    if bought is not None or purchase.payment.status == MovementStatus.FAILED:
        return FetchResult(bought, purchase)
    # The seller may not have the signed bytes yet; what they take is counted already.
    with read_only_unit() as session:
        spending_holds.check(session, wallet.id, SpendingRequest(0, domain=order.request.host))
    with _permit(wallet, order.request):
        return _present(wallet, order.request, purchase, wait_seconds=wait_seconds)


def ask(wallet: WalletView, order: FetchOrder) -> SellerAnswer:
    """Return the answer to a request without a payment, which is charged as `quote` is. Raises: as `fetch`."""
    with _permit(wallet, order.request), metered(wallet, order.request.host, key_id=order.key_id) as meter:
        return _ask_unpaid(wallet, order, meter)


def quote(wallet: WalletView, order: FetchOrder) -> tuple[int, PaymentOffer | None]:
    """Return the status of the answer, and the offer that `fetch` would accept; nothing is signed.

    Raises: what `fetch` raises.
    """
    unpaid = ask(wallet, order)
    is_asked = unpaid.status == HTTPStatus.PAYMENT_REQUIRED
    return unpaid.status, _choose(wallet, order, unpaid).offer if is_asked else None


@dataclass(frozen=True, slots=True)
class _PreparedPayment:
    offer: PaymentOffer
    movement: Movement
    funds: AvailableFunds
    intent: PaymentIntent
    prepared: Terms


def _permit(wallet: WalletView, request: SellerRequest) -> closing[Permit]:
    """Hold a permit to wait for a seller: some that hang must not use up the threads. Raises: Overloaded."""
    quotas = quotas_of("web service", request.host, wallet.agent_id)
    return closing(app_state().forwarding_limiter.acquire(wallet.agent_id, quotas))


def _ask_unpaid(wallet: WalletView, order: FetchOrder, meter: FetchMeter) -> SellerAnswer:
    # The price is not known yet; a freeze and the allowlist are.
    asked = SpendingRequest(0, domain=order.request.host, session_id=order.session_id)
    with read_only_unit() as session:
        spending_holds.check(session, wallet.id, asked)
    meter.is_due = True
    try:
        return sellers.ask(order.request, seconds=_UNPAID_SECONDS)
    except PortError as error:
        meter.is_due = isinstance(error, OutcomeUnknown)
        raise sellers.no_answer(error) from None


def _choose(wallet: WalletView, order: FetchOrder, unpaid: SellerAnswer) -> _PreparedPayment:
    """Return the first offer, by the order of `payable_offers`, that the wallet can pay within its limits."""
    payable = offers.payable_offers(
        offers.read_terms(unpaid), app_state().ports.payment_signers, host=order.request.host,
        max_nanos=order.max_nanos, networks=order.networks, own_addresses=frozenset(wallet.addresses.values()),
    )  # fmt: skip
    failures: list[errors.ServiceError] = []
    for offer in payable:
        movement = Movement(
            wallet=wallet, type=TransactionType.PAYMENT, kind=MovementKind.X402, chain=offer.chain,
            recipient=offer.recipient, payee=offer.recipient, amount=offer.amount, value_nanos=offer.price_nanos,
            domain=order.request.host, session_id=order.session_id,
        )  # fmt: skip
        try:
            try:
                with read_only_unit() as session:
                    spending_holds.check(session, wallet.id, movement.spending_request)
            except errors.ApprovalRequired:
                # The owner is not asked for what the balance does not cover, as far as the chain can be read now.
                with suppress(Unreachable):
                    relayed.read_funds(movement)
                raise
            with read_only_unit() as session:
                records.check_payee(session, wallet.id, order.request.host, offer)
            return _prepare(movement, offer)
        except errors.AddressNotAllowed as error:
            # The address of another chain may be allowed; other limits apply to all of them.
            failures.append(error)
        except (Rejected, Unreachable) as error:
            failures.append(_payment_failed(error))
    raise failures[0]


def _prepare(movement: Movement, offer: PaymentOffer) -> _PreparedPayment:
    """Read the balance and what signing needs of the chain. Raises: NotAffordable, Rejected, Unreachable."""
    funds = relayed.read_funds(movement)
    intent = PaymentIntent(
        movement.sender, offer.recipient, offer.amount.units, offer.validity_seconds,
        offer.extra, offer.terms.answerable, funds.block, offer.nonce,
    )  # fmt: skip
    prepared = app_state().ports.payment_signers[offer.chain].prepare(intent)
    return _PreparedPayment(offer, movement, funds, intent, prepared)


def _record(wallet: WalletView, request: SellerRequest, chosen: _PreparedPayment, *, claim: Claim) -> ServicePurchase:
    """Hold, sign and store in one unit. Raises: what `_choose` raises."""
    signer, payment_id = custody.signer_of(wallet.id, wallet.addresses), new_id()
    offer = chosen.offer
    payment_signer = app_state().ports.payment_signers[offer.chain]

    def sign(transaction_id: str) -> SignedPart:
        now = int(clock.now().timestamp())
        signed = payment_signer.authorize(chosen.intent, chosen.prepared, signer, now=now)
        header = offer.payment_header(signed, identifier=transaction_id)
        return SignedPart(signed.reference, signed.terms, header.encode())

    try:
        with intents.recording(chosen.movement.intent(payment_id)) as session:
            payment = relayed.record_authorized(session, payment_id, chosen.movement, chosen.funds, sign, claim=claim)
            records.pin_payee(session, wallet.id, request.host, offer)
            return records.add(session, payment, wallet.id, request, offer)
    except NotAffordable as error:
        raise _payment_failed(error) from None
    except IntegrityError:
        if offer.terms.version:
            raise
        problem = "The web service asks with a challenge that this wallet has answered already. Nothing was signed."
        raise errors.TermsNotSupported(problem, details={"offers": []}) from None


def _present(
    wallet: WalletView, request: SellerRequest, purchase: ServicePurchase, *, wait_seconds: Decimal | None
) -> FetchResult:
    """Send the stored bytes with the request. What is recorded is returned, whatever happens from here on."""
    payment, answer = purchase.payment, None
    header = (offers.HEADERS[purchase.version], relayed.stored_authorization(payment.id).raw.decode())
    try:
        answer = sellers.ask(request, seconds=_PAID_SECONDS, payment=header)
        if answer.is_complete and answer.status != HTTPStatus.PAYMENT_REQUIRED:
            records.store_answer(payment.id, answer)
    except PortError as error:
        _log.warning("seller_gave_no_answer", transaction_id=payment.id, reason=error.reason)
    if answer is None or answer.status != HTTPStatus.PAYMENT_REQUIRED:
        purchase.payment = relayed.wait_for_authorized(payment, wait_seconds=wait_seconds, account_id=wallet.agent_id)
    return FetchResult(answer, purchase)


def _payment_failed(error: PortError) -> errors.PaymentFailed:
    details = {"reason": error.reason, **error.details}
    if isinstance(error, NotAffordable):
        missing, symbol = error.details["missing"], error.details["currency"]
        return errors.PaymentFailed(
            f"The wallet does not hold enough {symbol} on a network that the web service accepts; missing: {missing}. "
            "Nothing was paid.",
            details=details,
        )
    problem = "The chain cannot be read at the moment. Nothing was paid."
    if isinstance(error, Rejected):
        problem = "The payment would fail on every network that the wallet could pay on. Nothing was paid."
    return errors.PaymentFailed(problem, details=details)


def check_steps(
    wallet: WalletView, *, resource: str, method: str, session_id: str | None, key_id: str | None
) -> Iterator[CheckedStep]:
    """Yield the steps of buying a resource, without a signature, up to the first that fails.

    What the service wrote appears in no step except the terms that cannot be paid: shortened, and escaped as JSON.

    Raises: what `quote` raises before the request is sent.
    """
    try:
        request = sellers.parse_request(url=resource, method=method, headers={}, body=None)
    except errors.InvalidInput as error:
        yield CheckedStep("address", f"The address {error.details['fields']['url'][0]}.", ok=False)
        return
    yield CheckedStep("address", "The address is a public one.")
    try:
        answer = ask(wallet, FetchOrder(request, 0, (), session_id, key_id))
    except (errors.InvalidInput, errors.UpstreamError, errors.UpstreamTimeout) as error:
        yield CheckedStep("response", error.message, ok=False)
        return
    yield CheckedStep("response", "The service answers.")
    is_asking = answer.status == HTTPStatus.PAYMENT_REQUIRED
    is_redirect = HTTPStatus.MULTIPLE_CHOICES <= answer.status < HTTPStatus.BAD_REQUEST
    followed = " Redirects are not followed: name the address that it leads to." if is_redirect else ""
    detail = f"The status is {answer.status}; a resource that is sold has 402.{followed}"
    yield CheckedStep("payment_required", detail, ok=is_asking)
    if not is_asking:
        return
    try:
        terms = offers.read_terms(answer)
        stated = ", ".join(offers.PROTOCOLS[each.version] for each in terms)
        yield CheckedStep("terms", f"The terms are those of {stated}.")
        payable = offers.payable_offers(
            terms, app_state().ports.payment_signers, host=request.host, max_nanos=_NO_LIMIT, networks=(),
            own_addresses=frozenset(wallet.addresses.values()),
        )  # fmt: skip
    except errors.TermsNotSupported as error:
        refused = error.details["offers"]
        shown = f" Terms of the service: {json.dumps(refused)[:_MAX_OFFERS_TEXT]}" if refused else ""
        yield CheckedStep("offer" if refused else "terms", error.message + shown, ok=False)
        return
    best = payable[0]
    price = money.usd_from_nanos(best.price_nanos)
    detail = f"{price:f} USD in USDC on {best.chain.value} to {best.recipient}."
    yield CheckedStep("offer", detail)
    detail = "Facilitators list resources that have extensions.bazaar in their terms."
    yield CheckedStep("discovery", detail, ok=any("bazaar" in each.answerable for each in terms), required=False)
