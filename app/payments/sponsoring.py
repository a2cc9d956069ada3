"""The service as the sponsor of transfers: the settlement wallet submits them, the treasury receives their fees."""

from __future__ import annotations

from app.core.chains import ChainName
from app.payments import settlement_capacity, treasury
from app.payments.treasury import WalletRole
from app.ports.errors import Rejected
from app.ports.sponsor import GasSponsor


def gas_sponsor(chain: ChainName, sold_units: int = 0) -> GasSponsor:
    """Return who submits transfers on a chain, and sells `sold_units` of its native token.

    Raises: Rejected("gas_unavailable") if that would leave too little gas for settling payments.
    """
    reserve_units = settlement_capacity.reserve_for_payments(chain, sold_units)
    if reserve_units is None:
        raise Rejected("gas_unavailable")
    wallet = treasury.wallet(WalletRole.SETTLEMENT, chain)
    return GasSponsor(wallet.id, wallet.address_on(chain), treasury.recipient(chain), reserve_units)
