"""The job that carries a chain's open movements on, and what was paid with them."""

from __future__ import annotations

from datetime import timedelta

from app.core import heartbeats
from app.core.chains import ChainName
from app.core.leases import lease
from app.payments import upkeep as payments
from app.wallets import tracking
from workers.context import job

_LEASE = timedelta(seconds=60)


@job
def confirm(chain: str) -> None:
    """Look once at the open movements of a chain; nothing to do while another process does."""
    with lease(f"confirm:{chain}", duration=_LEASE) as free:
        if free:
            tracking.confirm(ChainName(chain))
            payments.carry_on(ChainName(chain))
    heartbeats.beat()
