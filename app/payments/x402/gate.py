"""The gate of x402 and MPP: a payment is read, verified, claimed and settled before the call that it pays for.

The order is the protection: nothing is consumed before it is verified, and nothing is served before it is consumed.
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app import signing
from app.core import clock
from app.core.chains import USDC
from app.core.identifiers import new_id, require
from app.core.money import decimal_string
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import PaymentAlreadyUsed, PaymentInvalid, PaymentPending, ServiceError
from app.identity import limits
from app.identity.principal import Principal
from app.payments import claimed_payments, mpp, settlement_risks, treasury
from app.payments.claimed_payments import PaymentIsOpen, PaymentRail, PaymentRow, PaymentStatus
from app.payments.models import Payment
from app.payments.presented import HashPayment, PaymentHeaders, PaymentPrice, SignedPayment
from app.payments.x402 import metered, settlement, terms
from app.ports.errors import PortError, Rejected, Unreachable
from app.ports.facilitator import IncomingPayment, PaymentAuthorization
from app.state import app_state
from app.wallets.core import wallets
from app.wallets.transactions import relayed
from server.pool import ANONYMOUS

NOT_FINAL = "not_final_yet"
"""The transaction is unknown or lacks confirmations: it may be presented again later."""


def is_proven_by(payer: str, presented: HashPayment, fingerprint: str) -> bool:
    """Return whether a payment's proof is this payer's signature, for the request with this fingerprint."""
    text, proof = f"{presented.tx_hash}|{fingerprint}", presented.proof
    return proof is not None and presented.facilitator.is_signed_by(payer, text, proof)


def verify_and_claim(presented: HashPayment, price: PaymentPrice, *, agent_id: str | None) -> str:
    """Verify and claim a payment by hash; return its id. Raises: Rejected, Unreachable; IntegrityError in a race."""
    facilitator, recipient = presented.facilitator, treasury.recipient(presented.facilitator.name)
    incoming = require(facilitator.incoming_payment(presented.tx_hash, recipient), Rejected(NOT_FINAL))
    if not incoming.succeeded:
        raise Rejected("transaction_failed")
    if incoming.units == 0:
        raise Rejected("nothing_received")
    if incoming.units < price.units:
        details = {"received": decimal_string(incoming.units, USDC.decimals), "required": price.amount}
        raise Rejected("amount_too_low", details=details)
    if clock.now().timestamp() - incoming.block_time > app_state().settings.x402_max_age_seconds:
        raise Rejected("too_old")
    payers = sorted(incoming.payers)
    if presented.proof is not None:
        payers = [each for each in payers if is_proven_by(each, presented, price.fingerprint)]
        if not payers:
            raise Rejected("proof_not_by_payer")
    _assert_unused(presented, incoming, agent_id)
    if not incoming.is_final:
        raise Rejected(NOT_FINAL)
    payment = Payment(
        id=new_id(), rail=PaymentRail.HASH.value, chain=facilitator.name.value, payer=payers[0] if payers else None,
        units=incoming.units, required_units=price.units, provider=price.provider,
        fingerprint=claimed_payments.fingerprint_macs(price.fingerprint)[0], signed=presented.proof is not None,
        tx_hash=presented.tx_hash, recipient=recipient, terms={},
    )  # fmt: skip
    with unit_of_work() as session:
        claimed_payments.claim(session, [presented.claim_key(), *incoming.claims], payment.id)
        claimed_payments.add_payment(session, payment, status=PaymentStatus.PAID)
        return payment.id


def _assert_unused(presented: HashPayment, incoming: IncomingPayment, agent_id: str | None) -> None:
    """Check that the payment belongs to no other agent and was not used before. Raises: Rejected."""
    facilitator = presented.facilitator
    with read_only_unit() as session:
        holder_agents = {wallets.agent_with_address(session, payer) for payer in incoming.payers} - {None}
        own_kind = relayed.kind_of(session, facilitator.name, presented.tx_hash)
        is_consumed = claimed_payments.is_claimed(session, incoming.claims)
        cutoff = claimed_payments.restore_cutoff(session)
    # Hashes are public: only the agent itself can have intended a payment from its wallet for this call.
    if holder_agents - {agent_id}:
        raise Rejected("payer_is_a_wallet_of_another")
    if own_kind is not None or is_consumed:
        raise Rejected("already_used")
    if cutoff is not None and incoming.block_time <= cutoff.timestamp():
        raise Rejected("before_restore")


_log = structlog.get_logger(__name__)
_RETRY_SECONDS = 2
_MAX_RETRY_SECONDS = 300
_ALREADY_USED = "already_used"
_SETTLED_ELSEWHERE = "invalid_exact_evm_nonce_already_used"
_NOT_YET_VALID = "invalid_exact_evm_payload_authorization_valid_after"
_UNUSED = "An earlier payment by this payer paid for this request. The payment sent now will not be submitted."
_REFUSALS = tomllib.loads(Path(__file__).with_name("refusals.toml").read_text())
_MESSAGES: Mapping[str, str] = _REFUSALS["messages"]
_RETRYABLE_REASONS: frozenset[str] = frozenset(_REFUSALS["retryable"])


@dataclass(frozen=True, slots=True)
class PaymentGrant:
    """The right to one call: `start_attempt`, then `mark_served` or `release`; or `consume` alone."""

    payment_id: str
    price_nanos: int
    headers: Mapping[str, str]
    receipts: Mapping[str, str]
    """Headers of a successful response besides."""
    unused: PaymentAuthorization | None = None
    """What the client has presented, if an earlier payment for the same request serves it instead."""
    metered: tuple[SignedPayment, str] | None = None
    """The payment and its resource, if the call is held on the payment's account and paid for after it."""

    def headers_for(self, status: int) -> Mapping[str, str]:
        """Return the headers of a response with a status: receipts are for success only."""
        is_success = HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES
        return {**self.headers, **(self.receipts if is_success else {})}

    def start_attempt(self) -> None:
        """Count an attempt, just before the call. Raises: PaymentAlreadyUsed while another call uses the payment."""
        with unit_of_work() as session:
            self._start(session)

    def consume(self, session: Session) -> None:
        """Consume the payment for what the open unit records. Raises: PaymentAlreadyUsed."""
        self._start(session)
        claimed_payments.mark_served(session, self.payment_id)

    def _start(self, session: Session) -> None:
        if not claimed_payments.start_attempt(session, self.payment_id):
            raise _in_use_error()
        if self.unused is not None:
            # What was not needed is never submitted, and presents the payment that served its request.
            keys = [self.unused.claim, *self.unused.further_claims]
            claimed_payments.claim(session, keys, self.payment_id, only_unclaimed=True)

    def mark_served(self, record: Callable[[Session], None] | None = None) -> None:
        """Record that the call was served, and in the same unit what else there is to record of it, once."""
        with unit_of_work() as session:
            if claimed_payments.mark_served(session, self.payment_id) and record is not None:
                record(session)

    def release(self, record: Callable[[Session], None] | None = None) -> None:
        """Record that the call was not served, and in the same unit what else there is to record of it, once."""
        with unit_of_work() as session:
            if claimed_payments.release_attempt(session, self.payment_id) and record is not None:
                record(session)


@contextmanager
def attach_terms(load_price: Callable[[], PaymentPrice]) -> Iterator[None]:
    """Attach the terms of payment to every refusal with status 402 that the block raises."""
    try:
        yield
    except ServiceError as refusal:
        if refusal.status == HTTPStatus.PAYMENT_REQUIRED:
            attach(load_price(), refusal)
        raise


def attach(price: PaymentPrice, refusal: ServiceError) -> ServiceError:
    """Add the terms to a refusal with status 402, as each protocol states them; return it."""
    terms.attach(price, refusal)
    refusal.headers |= mpp.challenge_headers(price)
    return refusal


def read_payment(headers: PaymentHeaders) -> HashPayment | SignedPayment:
    """Parse the payment that a request presents. Raises: Rejected."""
    return terms.read_payment(headers) if headers.credential is None else mpp.read_credential(headers.credential)


def accept_payment(price: PaymentPrice, *, payer: Principal | None) -> PaymentGrant:
    """Accept the payment of the request with this price; return the right to its call.

    Raises: PaymentInvalid (nothing is consumed), PaymentAlreadyUsed, PaymentPending, RateLimited.
    """
    presented: HashPayment | SignedPayment | None = None
    account_id = payer.account_id if payer else ANONYMOUS
    with limits.count_failed_payment(limits.client_network(price.remote_address)):
        try:
            presented = read_payment(price.headers)
            if presented.is_metered and not price.is_metered:
                raise Rejected("unsupported_scheme")
            claimed = _find_claimed(presented, price.fingerprint)
            if claimed is not None:
                settled = settlement.await_submitted(claimed, account_id=account_id, yields=False)
                return _build_grant(settled, presented, price)
            return _accept_new(presented, price, payer, account_id)
        except PortError as error:
            raise _refusal(error, presented) from None


def settle_metered(grant: PaymentGrant, *, waits: bool) -> PaymentGrant:
    """Submit what the call on a metered payment has cost; return its grant with the outcome. Raises: Unreachable."""
    payment = metered.settle(grant.payment_id, waits=waits)
    if grant.metered is None or payment.tx_hash is None:
        return grant
    presented, resource = grant.metered
    if payment.status == PaymentStatus.SERVED:
        headers, receipts = presented.report(payment, terms.sign_payment(resource, payment), None)
        return replace(grant, headers={**grant.headers, **headers}, receipts=receipts)
    reason = "settlement_pending" if payment.status == PaymentStatus.SETTLING else "settlement_failed"
    members = {"errorReason": reason, "transaction": payment.tx_hash, "payer": payment.payer}
    return replace(grant, headers={**grant.headers, **presented.failure(payment.chain, **members)})


def find_served_payment(price: PaymentPrice) -> str | None:
    """Return the payment of the request with this price if this request consumed it. Reads no chain."""
    try:
        payment = _find_claimed(read_payment(price.headers), price.fingerprint)
    except PortError:
        return None
    return payment.id if payment is not None and payment.status == PaymentStatus.SERVED else None


def _find_claimed(presented: HashPayment | SignedPayment, fingerprint: str) -> PaymentRow | None:
    """Return the payment claimed for this request, or None. Raises: Rejected if the claim is of another."""
    key = presented.claim_key()
    with read_only_unit() as session:
        payment = claimed_payments.find_claimed(session, key)
    if payment is not None and (payment.id is None or not _matches_request(payment, presented, fingerprint)):
        raise Rejected(_ALREADY_USED)
    return payment


def _matches_request(payment: PaymentRow, presented: HashPayment | SignedPayment, fingerprint: str) -> bool:
    """Return whether a payment was made for this request, and is presented by its payer if the payer was proven."""
    if not claimed_payments.matches_fingerprint(payment, fingerprint):
        return False
    if isinstance(presented, SignedPayment) or not payment.signed:
        return True
    return is_proven_by(payment.payer or "", presented, fingerprint)


def _accept_new(
    presented: HashPayment | SignedPayment, price: PaymentPrice, payer: Principal | None, account_id: str
) -> PaymentGrant:
    """Verify a payment that nothing claimed before, and claim it; settle a signed one unless another one serves it.

    Only a new payment is verified: a claimed one stays valid when it has expired or the price has changed.
    """
    try:
        if isinstance(presented, HashPayment):
            payment_id = verify_and_claim(presented, price, agent_id=payer.agent_id if payer else None)
        elif presented.is_metered:
            payment_id = metered.accept(presented, price)
            unshared = {"Cache-Control": "no-store"}
            return PaymentGrant(payment_id, price.nanos, unshared, {}, metered=(presented, price.resource))
        else:
            authorization = settlement.verify(presented, price)
            if grant := _grant_of_open_payment(presented, authorization, price, account_id):
                return grant
            payment_id = settlement.settle(presented.facilitator, authorization, price, account_id=account_id)
    except IntegrityError:
        # A concurrent request was first, with the same payment or with another one of the same authorization.
        claimed = _find_claimed(presented, price.fingerprint)
        if claimed is None:
            raise Rejected(_ALREADY_USED) from None
        payment_id = claimed.id
    except PaymentIsOpen:
        with read_only_unit() as session:
            first = claimed_payments.find_open(session, authorization.payer, price.fingerprint)
        raise _pending_error(first, presented) from None
    return _build_grant(settlement.resolve(payment_id), presented, price)


def _grant_of_open_payment(
    presented: SignedPayment, authorization: PaymentAuthorization, price: PaymentPrice, account_id: str
) -> PaymentGrant | None:
    """Return the right to the call by the payer's open payment for this request, None if there is none."""
    with read_only_unit() as session:
        first = claimed_payments.find_open(session, authorization.payer, price.fingerprint)
        if first is None:
            # Again when it is recorded: here it costs no call to the chain.
            settlement_risks.assert_accepted(session, authorization.payer, authorization.claim)
            return None
    if authorization.further_claims:
        presented.facilitator.assert_signed(authorization)
    first = settlement.await_submitted(first, account_id=account_id, yields=True)
    if first.status == PaymentStatus.SETTLING or settlement.is_awaited(first):
        raise _pending_error(first, presented)
    return _build_grant(first, presented, price, authorization) if claimed_payments.can_be_served(first) else None


def _build_grant(
    payment: PaymentRow, presented: HashPayment | SignedPayment, price: PaymentPrice,
    unused: PaymentAuthorization | None = None,
) -> PaymentGrant:  # fmt: skip
    if payment.status == PaymentStatus.SETTLING:
        raise _pending_error(payment, presented)
    if payment.status == PaymentStatus.VOID:
        raise Rejected("settlement_failed", details={"tx_hash": payment.tx_hash} if payment.tx_hash else {})
    if payment.status == PaymentStatus.SERVING:
        raise _in_use_error()
    if not claimed_payments.can_be_served(payment):
        raise Rejected(_ALREADY_USED)
    price_nanos = payment.required_units * claimed_payments.NANOS_PER_UNIT
    receipt = terms.sign_payment(price.resource, payment)
    if isinstance(presented, HashPayment):
        return PaymentGrant(payment.id, price_nanos, {}, signing.header(receipt))
    headers, successful = presented.report(payment, receipt, _UNUSED if unused else None)
    return PaymentGrant(payment.id, price_nanos, {**headers, "Cache-Control": "no-store"}, successful, unused)


def _pending_error(payment: PaymentRow | None, presented: HashPayment | SignedPayment) -> PaymentPending:
    details = {"reason": "settlement_pending"}
    headers: Mapping[str, str] = {}
    if payment is not None:
        details |= {"chain": payment.chain, "tx_hash": payment.tx_hash or ""}
        headers = _failure_headers(
            presented, payment.chain, errorReason="settlement_pending", transaction=payment.tx_hash or "",
            payer=payment.payer,
        )  # fmt: skip
    return PaymentPending(details=details, headers=headers, retry_after_seconds=_RETRY_SECONDS)


def _refusal(error: PortError, presented: HashPayment | SignedPayment | None) -> ServiceError:
    reason = "chain_unreachable" if isinstance(error, Unreachable) else error.reason
    if reason in {_ALREADY_USED, _SETTLED_ELSEWHERE}:
        return PaymentAlreadyUsed()
    _log.info("payment_refused", reason=reason)
    message = _MESSAGES.get(reason, "This payment is not valid for this call; nothing was charged.")
    details = error.details if isinstance(error, Rejected) else {}
    transaction = details.get("tx_hash", "")
    headers = _failure_headers(presented, None, errorReason=reason, errorMessage=message, transaction=transaction)
    return PaymentInvalid(
        message,
        details={"reason": reason, **details},
        headers=headers,
        retry_after_seconds=_retry_after(reason, details),
    )


def _retry_after(reason: str, details: Mapping[str, str]) -> int | None:
    if reason == _NOT_YET_VALID:
        seconds = int(details.get("valid_after", 0)) - int(clock.now().timestamp()) + _RETRY_SECONDS
        return max(_RETRY_SECONDS, seconds) if seconds <= _MAX_RETRY_SECONDS else None
    return _RETRY_SECONDS if reason in _RETRYABLE_REASONS else None


def _in_use_error() -> PaymentAlreadyUsed:
    return PaymentAlreadyUsed("A call that is still running uses this payment.", retry_after_seconds=_RETRY_SECONDS)


def _failure_headers(
    presented: HashPayment | SignedPayment | None, chain: str | None, **members: Any
) -> Mapping[str, str]:
    return presented.failure(chain, **members) if isinstance(presented, SignedPayment) else {}
