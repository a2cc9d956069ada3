"""The price of a request that ends without a payment: a free key must not send anything to anybody from our address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

from app.buying import records
from app.core.identifiers import new_id
from app.db.unit_of_work import unit_of_work
from app.errors import InsufficientCredits, RateLimited
from app.state import app_state
from app.usage import service as usage
from app.usage.service import MeteredUsage, UsageCall
from app.wallets.core.wallets import WalletView

PROVIDER = "x402"
PRICE_NANOS = 1_000_000
MAX_HOSTS = 50
MAX_UNCHARGED = 10
_UNCHARGED = f"{MAX_UNCHARGED} per day"
_LEASE = timedelta(minutes=5)


@dataclass(slots=True)
class FetchMeter:
    """What became of one request: whether it may have reached the service, and whether it was paid for."""

    was_sent: bool = False
    is_paid: bool = False


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
    hold_id: str | None = (new := new_id())
    try:
        with unit_of_work() as session:
            usage.begin(session, wallet.agent_id, call, hold_id=new, nanos=PRICE_NANOS, estimate=price, lease=_LEASE)
    except InsufficientCredits as refusal:
        hold_id = None
        try:
            limiter.check(_UNCHARGED, *uncharged)
        except RateLimited:
            raise refusal from None
    try:
        yield meter
    finally:
        is_due = meter.was_sent and not meter.is_paid
        if hold_id is not None:
            with unit_of_work() as session:
                if is_due:
                    usage.settle(session, hold_id, price)
                else:
                    usage.cancel(session, hold_id)
        elif is_due:
            with suppress(RateLimited):
                limiter.count(_UNCHARGED, *uncharged)


def _count_host(wallet: WalletView, host: str) -> None:
    limiter, seen = app_state().rate_limiter, f"{wallet.agent_id}:{host}"
    hosts = (f"{MAX_HOSTS} per day", "fetched-hosts", wallet.agent_id)
    try:
        limiter.check("1 per day", "fetched-host", seen)
    except RateLimited:
        return
    if records.has_payee(wallet.id, host):
        return
    try:
        limiter.check(*hosts)
    except RateLimited as refusal:
        raise RateLimited(
            f"This agent has requested resources of {MAX_HOSTS} hosts today without ever paying them. Hosts that it "
            "has paid are not counted; another one can be requested tomorrow.",
            retry_after_seconds=refusal.retry_after_seconds,
        ) from None
    # Only the first of concurrent requests to one host counts it.
    with suppress(RateLimited):
        limiter.count("1 per day", "fetched-host", seen)
        limiter.count(*hosts)
