"""Payments by hash: verified first, which only reads, then claimed."""

from __future__ import annotations

from app.core import clock
from app.core.chains import USDC
from app.core.identifiers import new_id
from app.core.money import decimal_string
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.payments import consumed, treasury
from app.payments.consumed import PaymentRail, PaymentStatus
from app.payments.models import Payment
from app.payments.x402.headers import HashPayment
from app.payments.x402.terms import PaymentPrice
from app.ports.errors import Rejected
from app.ports.facilitator import IncomingPayment
from app.state import app_state
from app.wallets.core import wallets
from app.wallets.transactions import relayed

NOT_FINAL = "not_final_yet"
"""The transaction is unknown or lacks confirmations: it may be presented again later."""


def is_proven_by(payer: str, presented: HashPayment, fingerprint: str) -> bool:
    """Return whether a payment's proof is this payer's signature, for the request with this fingerprint."""
    text, proof = f"{presented.tx_hash}|{fingerprint}", presented.proof
    return proof is not None and presented.facilitator.is_signed_by(payer, text, proof)


def claim(presented: HashPayment, price: PaymentPrice, *, agent_id: str | None) -> str:
    """Verify a payment by hash and claim it; return the payment's id.

    Raises: Rejected, Unreachable; IntegrityError when it was claimed concurrently.
    """
    facilitator, recipient = presented.facilitator, treasury.recipient(presented.facilitator.name)
    incoming = facilitator.incoming_payment(presented.tx_hash, recipient)
    if incoming is None:
        raise Rejected(NOT_FINAL)
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
        fingerprint=consumed.fingerprint_macs(price.fingerprint)[0], signed=presented.proof is not None,
        tx_hash=presented.tx_hash, recipient=recipient, terms={},
    )  # fmt: skip
    with unit_of_work() as session:
        consumed.claim(session, [presented.claim_key(), *incoming.claims], payment.id)
        consumed.add_payment(session, payment, status=PaymentStatus.PAID)
        return payment.id


def _assert_unused(presented: HashPayment, incoming: IncomingPayment, agent_id: str | None) -> None:
    """Check that the payment belongs to no other agent and was not used before. Raises: Rejected."""
    facilitator = presented.facilitator
    with read_only_unit() as session:
        holder_agents = {wallets.agent_with_address(session, payer) for payer in incoming.payers} - {None}
        own_kind = relayed.kind_of(session, facilitator.name, presented.tx_hash)
        is_consumed = consumed.is_claimed(session, incoming.claims)
        cutoff = consumed.restore_cutoff(session)
    # Hashes are public: only the agent itself can have intended a payment from its wallet for this call.
    if holder_agents - {agent_id}:
        raise Rejected("payer_is_a_wallet_of_another")
    if own_kind is not None or is_consumed:
        raise Rejected("already_used")
    if cutoff is not None and incoming.block_time <= cutoff.timestamp():
        raise Rejected("before_restore")
