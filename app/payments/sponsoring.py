"""The service as the sponsor of transfers: the settlement wallet submits them, the treasury receives their fees."""

from app.core import clock
from app.core.chains import ChainName
from app.db.unit_of_work import read_only_unit
from app.payments import settlement_capacity, settlement_risks, treasury
from app.payments.treasury import WalletRole
from app.ports.errors import Rejected
from app.ports.facilitator import GasSponsor
from app.wallets import gas
from app.wallets.transactions import relayed


def gas_sponsor(chain: ChainName, sold_units: int = 0) -> GasSponsor:
    """Return who submits transfers on a chain, and sells `sold_units` of its native token.

    Raises: Rejected("gas_unavailable") if that would leave too little gas for settling payments, or if submissions that
    failed have cost the budget of a day.
    """
    reserve_units = settlement_capacity.reserve_for_payments(chain, sold_units)
    wallet = treasury.wallet(WalletRole.SETTLEMENT, chain)
    with read_only_unit() as session:
        failed_units = relayed.failed_fee_units(
            session, wallet.id, chain, kind=gas.SUBMISSION_KIND, since=clock.now() - settlement_risks.PERIOD
        )
    # Another party that submits a transfer first makes ours fail: agents cost nothing, so all of them share a budget.
    if reserve_units is None or settlement_risks.exceeds_budget(chain, failed_units):
        raise Rejected("gas_unavailable")
    return GasSponsor(wallet.id, wallet.address_on(chain), treasury.recipient(chain), reserve_units)
