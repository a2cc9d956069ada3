"""What may be kept of what goes over a bridge, on its way there or back: one rule for quotes and for refunds."""

from __future__ import annotations

from app.core.money import TokenAmount, nanos_from_usd
from app.ports import provider
from app.wallets import movements

_WHOLE_BPS = 10_000


def are_fair(kept_units: int, amount: TokenAmount) -> bool | None:
    """Tell whether a share of the amount and the operator's cap for network fees together cover what is kept.

    Asks the network for a price, and returns None where there is none and it takes one to tell.
    """
    settings = provider.settings()
    over = kept_units - amount.units * settings.max_bridge_fee_bps // _WHOLE_BPS
    if over <= 0:
        return True
    worth = movements.worth_nanos(TokenAmount(over, amount.token))
    return None if worth is None else worth <= nanos_from_usd(settings.max_network_fee_usd)


def cover(came_back_units: int, amount: TokenAmount) -> bool | None:
    """Tell whether what came back is a refund: all but what may be kept, and half at least, however small the amount.

    None where no price is known that it takes to tell.
    """
    if 2 * came_back_units < amount.units:
        return False
    return are_fair(amount.units - came_back_units, amount)
