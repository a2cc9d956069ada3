"""The jobs of funding: the deposit scan, and payments by the sandbox's faucet."""

from __future__ import annotations

from datetime import timedelta

from app.core.chains import ChainName
from app.db.leases import lease
from app.wallets.deposits import funding, scanner
from workers.context import job

_LEASE = timedelta(seconds=60)


@job
def find(chain: str) -> None:
    """Scan a chain for deposits once; do nothing while another process holds the lease."""
    with lease(f"deposits:{chain}", duration=_LEASE) as acquired:
        if acquired:
            scanner.scan(ChainName(chain))


@job
def pay_from_faucet(request_id: str) -> None:
    """Pay a funding request from the sandbox's faucet."""
    funding.pay_from_faucet(request_id)
