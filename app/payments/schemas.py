"""Wire shapes of the payments room."""

from __future__ import annotations

from marshmallow import fields

from app.wallets.schemas import MovementShape
from app.web.fields import Amount, Text
from app.web.schemas import EXAMPLE_ID, Schema


class TopUpBody(Schema):
    """What shall become credits."""

    wallet_id = Text(
        required=True, metadata={"description": "One of the caller's wallets.", "example": EXAMPLE_ID}
    )
    amount = Amount(required=True, metadata={"type": "string", "example": "10", "description": "In USDC."})
    chain = Text(required=True, metadata={"enum": ["ethereum", "base", "solana"]})


class TopUpShape(MovementShape):
    """The movement to the treasury. Its worth is credited once it is final."""

    kind = fields.String(required=True, metadata={"enum": ["topup"]})
