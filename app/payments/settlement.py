"""Submitting payments that others have signed, with our own key and our own nonces, in the beats of every movement.

Claimed, signed and recorded in one unit; sent after it. What was sent is never given up before it certainly cannot
land. The workers carry on what a process left behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import structlog

from app.core import clock, logs
from app.core.chains import ChainName
from app.core.identifiers import new_id
from app.core.unit_of_work import reading, unit_of_work
from app.payments import claims, readiness, treasury
from app.payments.claims import Held, Rail
from app.payments.models import Payment
from app.payments.terms import Price
from app.payments.treasury import Role
from app.ports import provider
from app.ports.errors import PortError, Rejected
from app.ports.till import Authorization, Till
from app.wallets import custody, history, network_fees, submissions
from app.wallets.history import TransactionView

_log = structlog.get_logger(__name__)
KIND = "settlement"
OPENING = "opening"
_RESOLVED_AT_ONCE = 200
# No reorganisation of these chains reaches that far back, and no authorization is sent again for so long.
_LOST_WITHIN = timedelta(hours=24)


def settle(till: Till, authorization: Authorization, price: Price) -> Held:
    """Claim a signed payment, submit it and wait for it; return it as it stands then.

    Raises: Rejected before anything was claimed; Unreachable; IntegrityError when it was claimed meanwhile.
    """
    chain = provider.current().chains[till.name]
    wallet = treasury.wallet(Role.SETTLEMENT)
    draft = till.draft(authorization, settler=wallet.address_on(till.name))
    if not network_fees.is_within_cap(till.name, draft.fee_units):
        raise Rejected("network_fee_too_high")
    if not readiness.takes_signed(till.name, price.nanos):
        raise Rejected("chain_not_offered")
    signer = custody.signer_of(wallet.id)
    payment = Payment(
        id=new_id(), rail=Rail.SIGNED.value, chain=till.name.value, payer=authorization.payer,
        units=authorization.units, required_units=price.units, provider=price.provider,
        fingerprint=claims.binding_of(price.fingerprint), signed=True, recipient=authorization.recipient,
        terms={**authorization.terms, "claim": authorization.claim},
    )  # fmt: skip
    with unit_of_work():
        # The claim goes first: of many at once, all but one end here, before any takes a nonce.
        claims.claim([authorization.claim], payment.id)
        recorded, signed = submissions.record(chain, wallet, draft, signer, kind=KIND)
        payment.transaction_id, payment.tx_hash = recorded.id, signed.tx_hash
        claims.claim([claims.key_of_hash(till.name, signed.tx_hash)], payment.id)
        claims.open_payment(payment, status=claims.Status.SETTLING)
        payment_id = payment.id
    wait = provider.settings().confirmation_wait_seconds
    submissions.carry_out(chain, recorded, signed, wait_seconds=wait)
    return resolve(payment_id)


def resolve(payment_id: str) -> Held:
    """Carry the outcome of a submission into its payment, if there is one; return the payment as it stands."""
    with reading():
        held = claims.get(payment_id)
    if held.status is not claims.Status.SETTLING or held.transaction_id is None:
        return held
    view = history.movement(held.transaction_id)
    with logs.caused_by(view.request_id):
        return _resolve(held, held.transaction_id, view)


def _resolve(held: Held, transaction_id: str, view: TransactionView) -> Held:
    landed: str | None = None
    if view.status == "pending":
        return held
    if view.status == "confirmed":
        landed = view.tx_hash
    else:
        try:
            # Somebody else may have submitted it first, which makes ours fail and is a payment all the same.
            landed = provider.current().tills[held.chain].carried_out(_authorization(held))
        except PortError as error:
            _log.warning("payment_unreadable", payment_id=held.id, reason=error.reason)
            return held
    with unit_of_work():
        if landed is None:
            # A reorganisation can still make a failure a success, after claims that were given back.
            if submissions.is_beyond_change(transaction_id):
                claims.void(held.id)
        else:
            claims.arrive(held.id, tx_hash=landed)
    with reading():
        return claims.get(held.id)


def resolve_all(chain: ChainName) -> int:
    """Resolve what requests have left behind on a chain; return how many were looked at. For a worker.

    Chain by chain: one that cannot be read must not hold up the others' movements.
    """
    with reading():
        waiting = claims.settling(chain, _RESOLVED_AT_ONCE)
    for payment_id in waiting:
        try:
            resolve(payment_id)
        except Exception:
            # One odd payment must not keep the others from their end.
            _log.exception("payment_not_resolved", payment_id=payment_id)
    return len(waiting)


def look_for_lost(chain: ChainName) -> int:
    """Tell of payments that were served, and whose submission a reorganisation undid and nothing repeats.

    The same bytes are sent again by whoever watches movements; what is found here failed for good in spite of that,
    because its payer had moved the money meanwhile. Returns how many. For a worker.
    """
    since = clock.now() - _LOST_WITHIN
    with reading():
        failed = submissions.failed_hashes(treasury.OWNER, chain, kind=KIND, since=since)
        undone = claims.taken_by(failed, since=since) if failed else []
    return sum(_look_into(held) for held in undone)


def _look_into(held: Held) -> bool:
    try:
        landed = provider.current().tills[held.chain].carried_out(_authorization(held))
    except PortError as error:
        _log.warning("payment_unreadable", payment_id=held.id, reason=error.reason)
        return False
    with unit_of_work():
        if landed is not None:
            claims.landed_elsewhere(held.id, tx_hash=landed)
            return False
        lost = claims.lose(held.id)
    if lost:
        _log.critical(
            "payment_lost", payment_id=held.id, chain=held.chain, units=held.units, payer=held.payer,
            tx_hash=held.tx_hash,
        )  # fmt: skip
    return lost


def _authorization(held: Held) -> Authorization:
    terms: Mapping[str, Any] = held.terms
    return Authorization(
        str(terms["claim"]), held.payer or "", held.recipient, held.units, {**terms, "claim": None}
    )
