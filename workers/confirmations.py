"""The job that confirms the pending movements of a chain, and the payments made with them."""

from datetime import timedelta

from app.catalog.models import Payout
from app.catalog.payouts import service as payouts
from app.core.chains import ChainName
from app.db import leases
from app.db.leases import lease
from app.payments import jobs as payments
from app.wallets.transactions import confirmation
from workers.context import job

_LEASE = timedelta(seconds=60)


@job
def confirm(chain: str) -> None:
    """Poll the pending movements of a chain once; do nothing while another process holds the lease."""
    with lease(f"confirm:{chain}", duration=_LEASE) as acquired:
        if acquired:
            confirmation.confirm(ChainName(chain))
            payments.resume_settlements(ChainName(chain))
            payouts.settle(Payout.chain == chain)
    leases.record()
