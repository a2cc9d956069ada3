"""Earnings of a service, and payments, without their calls: charges, counters and claims as calls write them."""

from __future__ import annotations

from app.catalog import statistics
from app.catalog.models import PROVIDER_PREFIX
from app.core.chains import USDC, ChainName
from app.core.identifiers import new_id
from app.core.money import NANOS_PER_USD
from app.db.unit_of_work import unit_of_work
from app.payments import claimed_payments, treasury
from app.payments.claimed_payments import PaymentRail, PaymentStatus
from app.payments.models import Payment
from app.state import app_state
from app.usage import service as usage
from app.usage.service import MeteredUsage, UsageCall
from sandbox.evm import EvmNode
from tests.support.chains import usdc
from tests.support.evm import sent
from tests.support.payments import person_with

SETTINGS = {
    "payouts_enabled": "1", "payout_minimum_usd": "0.1", "payout_holding_hours": "0", "payout_commission_bps": "1000",
}  # fmt: skip


def earn(service_id: str, account_id: str, *, calls: int, usd: float = 0.25) -> list[str]:
    """Charge an account for calls of a service; return their ids."""
    nanos, ids = round(usd * NANOS_PER_USD), [new_id() for _ in range(calls)]
    for call_id in ids:
        with unit_of_work() as session:
            call = UsageCall(account_id, f"{PROVIDER_PREFIX}{service_id}", "/weather")
            usage.charge(session, account_id, call, charge_id=call_id, metered=MeteredUsage(nanos))
            statistics.record_answered_call(session, service_id, wallet_id=None, charged_nanos=nanos, microseconds=1000)
    return ids


def receive(node: EvmNode, *, dollars: float = 1) -> tuple[str, str]:
    """Pay the treasury for a call that is not served; return the payer's address and the payment, which is final."""
    chain, person = app_state().ports.chains[ChainName.BASE], person_with(node, dollars=dollars)
    recipient = treasury.recipient(ChainName.BASE)
    done = sent(getattr(chain, "real", chain), person, recipient, usdc(dollars), token=USDC)
    node.mine(80)
    payment = Payment(
        id=new_id(), rail=PaymentRail.HASH.value, chain=ChainName.BASE.value, payer=person.address, units=usdc(dollars),
        required_units=usdc(dollars), provider="brave", fingerprint="0" * 64, signed=False, tx_hash=done.tx_hash,
        recipient=recipient, terms={},
    )  # fmt: skip
    with unit_of_work() as session:
        key = claimed_payments.transaction_claim_key(ChainName.BASE, done.tx_hash)
        claimed_payments.claim(session, [key], payment.id)
        claimed_payments.add_payment(session, payment, status=PaymentStatus.PAID)
        return person.address, payment.id
