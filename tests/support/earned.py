"""Earnings of a service without its calls: charges and counters as calls write them."""

from __future__ import annotations

from app.catalog import statistics
from app.catalog.models import PROVIDER_PREFIX
from app.core.identifiers import new_id
from app.core.money import NANOS_PER_USD
from app.db.unit_of_work import unit_of_work
from app.usage import service as usage
from app.usage.service import MeteredUsage, UsageCall

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
