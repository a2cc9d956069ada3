"""The jobs of funding: the deposit scan, and payments by the sandbox's faucet."""

from datetime import timedelta

from app.core.chains import ChainName
from app.db.leases import lease, once_per_period
from app.wallets.deposits import funding, scan_states, scanner
from app.wallets.deposits.scan_states import Tier
from workers.context import job

_LEASE = timedelta(seconds=60)


@job
def find(chain: str, tier: str = Tier.OPEN.value) -> None:
    """Scan a chain for deposits to the wallets of a tier once; do nothing while another process does or has done it."""
    name, of_tier = ChainName(chain), Tier(tier)
    lease_name = scan_states.lease_name(name, of_tier)
    period = scan_states.pause(name, of_tier)
    with once_per_period(period, lease_name, duration=_LEASE) if period else lease(lease_name, duration=_LEASE) as due:
        if due:
            scanner.scan(name, of_tier)


@job
def pay_from_faucet(request_id: str) -> None:
    """Pay a funding request from the sandbox's faucet."""
    funding.pay_from_faucet(request_id)
