"""Reading whether a transaction pays for a request. Nothing is written, so nothing is burned by looking."""

from __future__ import annotations

from app.core import clock
from app.core.chains import USDC
from app.core.money import decimal_string
from app.core.unit_of_work import reading
from app.payments import claims, horizon, treasury
from app.payments.presentation import ByHash
from app.payments.terms import Price
from app.ports import provider
from app.ports.errors import Rejected
from app.ports.till import Arrival
from app.wallets import service, submissions

NOT_YET = "not_final_yet"
"""The transaction is not known, or not deep enough: asking again later is right."""


def proof_text(tx_hash: str, fingerprint: str) -> str:
    """Return what a payer signs to show that a hash is theirs and meant for this request."""
    return f"{tx_hash}|{fingerprint}"


def payer_of(presented: ByHash, price: Price, arrival: Arrival) -> str | None:
    """Return who paid; where somebody proves it, that one, and nobody where the proof is none."""
    proof, text = presented.proof, proof_text(presented.tx_hash, price.fingerprint)
    payers = sorted(arrival.payers)
    if proof is not None:
        payers = [payer for payer in payers if presented.till.is_signed_by(payer, text, proof)]
    return payers[0] if payers else None


def verify(presented: ByHash, price: Price, *, agent_id: str | None) -> Arrival:
    """Return what a transaction brought, if that pays for the request.

    Raises: Rejected, Unreachable.
    """
    till = presented.till
    arrival = till.arrival(presented.tx_hash, treasury.recipient(till.name))
    if arrival is None:
        raise Rejected(NOT_YET)
    if not arrival.succeeded:
        raise Rejected("transaction_failed")
    if arrival.units == 0:
        raise Rejected("nothing_received")
    if arrival.units < price.units:
        details = {
            "received": decimal_string(arrival.units, USDC.decimals),
            "required": decimal_string(price.units, USDC.decimals),
        }
        raise Rejected("amount_too_low", details=details)
    if clock.now().timestamp() - arrival.landed_at > provider.settings().x402_max_age_seconds:
        raise Rejected("too_old")
    if presented.proof is not None and payer_of(presented, price, arrival) is None:
        raise Rejected("proof_not_by_payer")
    _assert_unused(presented, arrival, agent_id)
    if not arrival.is_final:
        raise Rejected(NOT_YET)
    return arrival


def _assert_unused(presented: ByHash, arrival: Arrival, agent_id: str | None) -> None:
    """See that nobody else has a right to it, and that it was not taken before. Raises: Rejected."""
    till = presented.till
    with reading():
        holders = {service.holder_of(payer) for payer in arrival.payers} - {None}
        ours = submissions.kind_of(till.name, presented.tx_hash)
        taken = claims.is_claimed(arrival.claims)
        counts_from = horizon.drawn_at()
    # Whoever watches the chain sees it: only the agent itself can have meant a payment from its wallet.
    if holders - {agent_id}:
        raise Rejected("payer_is_a_wallet_of_another")
    if ours is not None or taken:
        raise Rejected("already_used")
    if counts_from is not None and arrival.landed_at <= counts_from.timestamp():
        raise Rejected("before_restore")
