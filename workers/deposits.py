"""The jobs about funding: finding deposits, and asking the sandbox's faucet for them."""

from __future__ import annotations

from datetime import timedelta

from app.core.chains import ChainName
from app.core.leases import lease
from app.wallets import deposits, funding
from workers.context import job

_LEASE = timedelta(seconds=60)


@job
def find(chain: str) -> None:
    """Look once for deposits on a chain; nothing to do while another process does."""
    with lease(f"deposits:{chain}", duration=_LEASE) as free:
        if free:
            deposits.find(ChainName(chain))


@job
def pay_from_faucet(request_id: str) -> None:
    """Let the sandbox's faucet pay a funding request."""
    funding.pay_from_faucet(request_id)
