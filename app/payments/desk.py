"""The story of a payment for one call: read, verify, claim, settle; then a ticket, on which the call is made.

Order is everything here (decision 0071): nothing is burned before it is verified, and nothing is served before it is
burned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import structlog
from sqlalchemy.exc import IntegrityError

from app.core import clock
from app.core.identifiers import new_id
from app.core.unit_of_work import reading, unit_of_work
from app.errors import InsufficientCredits, PaymentAlreadyUsed, PaymentInvalid, PaymentRequired, ServiceError
from app.identity import limits
from app.payments import claims, presentation, settlement, terms, treasury, verification
from app.payments.claims import Held, Rail, Status
from app.payments.models import Payment
from app.payments.presentation import ByHash, Signed
from app.payments.terms import Price
from app.ports.errors import PortError, Rejected, Unreachable
from app.ports.till import Demand

_log = structlog.get_logger(__name__)
_LATER_SECONDS = 2
_SENTENCES: Mapping[str, str] = {
    verification.NOT_YET: "The transaction is not known yet, or not deep enough; present it again shortly.",
    "chain_unreachable": "The chain cannot be read at the moment; nothing was consumed. Present it again shortly.",
    "transaction_failed": "This transaction failed on the chain.",
    "nothing_received": "This transaction brought no USDC to the recipient.",
    "amount_too_low": "This transaction brought less than this call costs. Nothing was consumed.",
    "too_old": "This transaction is too old.",
    "before_restore": "This payment is from before the service was set back to an earlier state, and may have been used"
    " already. Its operator can look into it.",
    "proof_not_by_payer": "X-Payment-Signature is not the payer's signature over this hash and this request.",
    "payer_is_a_wallet_of_another": "This payment came from a wallet of this service; only its own agent can use it.",
    "hash_of_another_chain": "This is not a transaction's hash on that chain.",
    "invalid_network": "Payments are not accepted on this chain or network.",
    "settlement_pending": "The payment was sent to the chain and has not landed yet; present it again shortly.",
    "settlement_failed": "The payment did not take place; nothing was taken.",
    "chain_not_offered": "Signed payments are not taken on this chain at the moment. Nothing was taken.",
}
_ASK_AGAIN = frozenset({verification.NOT_YET, "chain_unreachable", "settlement_pending", "insufficient_gas"})


@dataclass(frozen=True, slots=True)
class Ticket:
    """The right to one call. `begin` uses a try up; then either `finish` or `give_back`."""

    payment_id: str
    headers: Mapping[str, str]
    price: Price

    def begin(self) -> None:
        """Use a try up, just before the call. Raises: PaymentAlreadyUsed when somebody else is at it."""
        with unit_of_work():
            begun = claims.begin(self.payment_id)
        if not begun:
            raise _in_use(self.price)

    def use_up(self) -> None:
        """Take the payment for what the current unit records. Raises: PaymentAlreadyUsed."""
        if not claims.begin(self.payment_id):
            raise _in_use(self.price)
        claims.finish(self.payment_id)

    def finish(self) -> None:
        """Note that the call was served."""
        with unit_of_work():
            claims.finish(self.payment_id)

    def give_back(self) -> None:
        """Note that the call was certainly not served."""
        with unit_of_work():
            claims.give_back(self.payment_id)


def required(price: Price) -> PaymentRequired:
    """Make the answer to who brings neither a key nor a payment."""
    message = PaymentRequired.default_message
    asked = presentation.asked_chain()
    return PaymentRequired(
        message, members=terms.members(price, asked), headers=terms.headers(price, asked, error=message)
    )


def accept(price: Price, *, agent_id: str | None) -> Ticket:
    """Take the payment of the present request; return the right to its call.

    Raises: PaymentInvalid (nothing is consumed), PaymentAlreadyUsed, RateLimited.
    """
    limits.count_failing_payment()
    presented: ByHash | Signed | None = None
    try:
        presented = presentation.read()
        if isinstance(presented, ByHash):
            return _ticket(_by_hash(presented, price, agent_id), price, presented)
        return _ticket(_signed(presented, price), price, presented)
    except Unreachable:
        raise _invalid(price, "chain_unreachable", presented) from None
    except Rejected as refusal:
        if refusal.reason in {"already_used", "invalid_exact_evm_nonce_already_used"}:
            raise _used(price) from None
        raise _invalid(price, refusal.reason, presented, refusal.details) from None
    except PortError as error:
        raise _invalid(price, error.reason, presented) from None


def served(price: Price) -> str | None:
    """Return the payment of the present request if exactly this request has used it up already. Asks no chain."""
    try:
        presented = presentation.read()
        if isinstance(presented, ByHash):
            held = _taken(claims.key_of_hash(presented.till.name, presented.tx_hash))
        else:
            held = _taken(presented.till.claim_of(presented.payload))
    except PortError:
        return None
    if held is None or held.status is not Status.SERVED or not _is_for(held, price, presented):
        return None
    return held.id


def take_back(payment_id: str) -> None:
    """Make a payment good for the same request again, if it is one, in the current unit."""
    claims.reopen(payment_id)


def with_terms(refusal: InsufficientCredits, price: Price) -> InsufficientCredits:
    """Add the terms on which it can be paid for without credits."""
    asked = presentation.asked_chain()
    return InsufficientCredits(
        refusal.message,
        details=refusal.details,
        members=terms.members(price, asked),
        headers=terms.headers(price, asked, error=refusal.message),
    )


def _by_hash(presented: ByHash, price: Price, agent_id: str | None) -> Held:
    key = claims.key_of_hash(presented.till.name, presented.tx_hash)
    held = _taken(key)
    if held is not None:
        return _again(held, price, presented)
    arrival = verification.verify(presented, price, agent_id=agent_id)
    payment = Payment(
        id=new_id(), rail=Rail.HASH.value, chain=presented.till.name.value,
        payer=verification.payer_of(presented, price, arrival), units=arrival.units, required_units=price.units,
        provider=price.provider, fingerprint=claims.binding_of(price.fingerprint), signed=presented.proof is not None,
        tx_hash=presented.tx_hash, recipient=treasury.recipient(presented.till.name), terms={},
    )  # fmt: skip
    try:
        with unit_of_work():
            claims.claim([key, *arrival.claims], payment.id)
            claims.open_payment(payment, status=Status.PAID)
            return claims.get(payment.id)
    except IntegrityError:
        return _lost_race(key, price, presented)


def _signed(presented: Signed, price: Price) -> Held:
    till = presented.till
    # What was settled is paid: neither its own time nor another price since then says anything against it.
    claim = till.claim_of(presented.payload)
    held = _taken(claim)
    if held is not None:
        return _again(held, price, presented)
    demand = Demand(price.units, treasury.recipient(till.name), treasury.settler(till.name))
    authorization = till.read(presented.payload, demand, now=int(clock.now().timestamp()))
    try:
        return settlement.settle(till, authorization, price)
    except IntegrityError:
        return _lost_race(claim, price, presented)


def _lost_race(key: str, price: Price, presented: ByHash | Signed) -> Held:
    held = _taken(key)
    if held is None:
        # Another claim of it was taken, such as an authorization that it used.
        raise _used(price)
    return _again(held, price, presented)


def _taken(key: str) -> Held | None:
    with reading():
        held = claims.find(key)
        if held is None and claims.is_claimed([key]):
            raise Rejected("already_used")
        return held


def _again(held: Held, price: Price, presented: ByHash | Signed) -> Held:
    """Return a payment that was claimed before, if it is presented again for the same request.

    Raises: PaymentAlreadyUsed.
    """
    if not _is_for(held, price, presented):
        raise _used(price)
    return settlement.resolve(held.id)


def _is_for(held: Held, price: Price, presented: ByHash | Signed) -> bool:
    """Tell whether a payment was taken for this very request, and comes from its payer where that was proven."""
    if not claims.is_bound(held, price.fingerprint):
        return False
    if isinstance(presented, Signed) or not held.signed:
        return True
    text = verification.proof_text(presented.tx_hash, price.fingerprint)
    proof = presented.proof
    return proof is not None and presented.till.is_signed_by(held.payer or "", text, proof)


def _ticket(held: Held, price: Price, presented: ByHash | Signed) -> Ticket:
    if held.status is Status.SETTLING:
        raise _invalid(price, "settlement_pending", presented, tx_hash=held.tx_hash or "")
    if held.status is Status.VOID:
        raise _invalid(price, "settlement_failed", presented, tx_hash=held.tx_hash or "")
    if held.status is Status.SERVING:
        raise _in_use(price)
    if not held.may_be_served:
        raise _used(price)
    return Ticket(held.id, _receipt(held, presented), price)


def _receipt(held: Held, presented: ByHash | Signed) -> dict[str, str]:
    """Return the header that tells a client of the standard how its payment was settled."""
    if isinstance(presented, ByHash):
        return {}
    settled = {
        "success": True,
        "transaction": held.tx_hash,
        "network": _network(presented),
        "payer": held.payer,
    }
    return {_response_header(presented): terms.encoded(settled), "Cache-Control": "private"}


def _invalid(
    price: Price,
    reason: str,
    presented: ByHash | Signed | None,
    details: Mapping[str, str] | None = None,
    *,
    tx_hash: str = "",
) -> PaymentInvalid:
    message = _SENTENCES.get(reason, "This payment is not valid for this call; nothing was taken.")
    _log.info("payment_refused", reason=reason)
    asked = presentation.asked_chain()
    headers = terms.headers(price, asked, error=reason)
    if isinstance(presented, Signed):
        failed = {
            "success": False, "errorReason": reason, "errorMessage": message, "transaction": tx_hash,
            "network": _network(presented),
        }  # fmt: skip
        headers[_response_header(presented)] = terms.encoded(failed)
    shown = {"reason": reason, **(details or {}), **({"tx_hash": tx_hash} if tx_hash else {})}
    return PaymentInvalid(
        message,
        details=shown,
        members=terms.members(price, asked),
        headers=headers,
        retry_after_seconds=_LATER_SECONDS if reason in _ASK_AGAIN else None,
    )


def _used(price: Price) -> ServiceError:
    return _already_used(price, PaymentAlreadyUsed.default_message)


def _in_use(price: Price) -> ServiceError:
    return _already_used(
        price, "This payment is being used by a call that has not ended.", retry=_LATER_SECONDS
    )


def _already_used(price: Price, message: str, *, retry: int | None = None) -> ServiceError:
    asked = presentation.asked_chain()
    return PaymentAlreadyUsed(
        message,
        members=terms.members(price, asked),
        headers=terms.headers(price, asked, error="already_used"),
        retry_after_seconds=retry,
    )


def _network(presented: Signed) -> str:
    asset = presented.till.asset
    return (asset.legacy_network if presented.version == 1 else None) or asset.network


def _response_header(presented: Signed) -> str:
    return "X-PAYMENT-RESPONSE" if presented.version == 1 else "PAYMENT-RESPONSE"
