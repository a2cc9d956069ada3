"""The names of the kinds of movements, as the API and the database have them."""

from enum import StrEnum


class MovementKind(StrEnum):
    """What moves money. Approvals store it; transactions store it where their type does not say it."""

    TRANSFER = "transfer"
    WITHDRAWAL = "withdrawal"
    SWAP = "swap"
    BRIDGE = "bridge"
    TOPUP = "topup"
    X402 = "x402"
    PURCHASE = "purchase"
    LEG = "bridge_leg"
    """One of several transactions of a movement; agents see it only among the movement's legs."""
    GAS = "gas"
    """What a wallet pays the service in USDC for the network."""
    GAS_SALE = "gas_sale"
    """The native token that the service sends for such a payment."""
    DEPOSIT = "deposit"
    """What arrived without a funding request."""
    RECOVERED = "recovered"
    """A payment that a restored database did not know, as the chain shows it."""
    SETTLEMENT = "settlement"
    """The submission of a payment to the service, by its own key."""

    PAYOUT = "payout"
    """What the treasury pays the seller of a service."""
    REFUND = "refund"
    """What the treasury returns to the payer of a call."""


REQUESTED = (
    MovementKind.TRANSFER, MovementKind.WITHDRAWAL, MovementKind.SWAP, MovementKind.BRIDGE, MovementKind.TOPUP,
    MovementKind.X402, MovementKind.PURCHASE, MovementKind.PAYOUT,
)  # fmt: skip
"""What agents request and owners approve; the others follow from these. `app.movements` has a definition of each."""
