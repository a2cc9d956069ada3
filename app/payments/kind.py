"""Top-ups as a kind of movement."""

from app.approvals.schemas import APPROVAL_NOTE
from app.core.movement_kinds import MovementKind
from app.payments import topups
from app.payments.topups import TopUpOrder
from app.wallets.kinds.definition import MovementDefinition
from app.web.fields import AmountField, Symbol, Text
from app.web.schemas import EXAMPLE_ID, Schema


class TopUpBody(Schema):
    """A top-up request."""

    wallet_id = Text(required=True, metadata={"example": EXAMPLE_ID})
    amount = AmountField(required=True, metadata={"type": "string", "example": "10"})
    chain = Symbol(required=True, metadata={"enum": ["ethereum", "base", "solana"]})
    approval_note = APPROVAL_NOTE


TOP_UP = MovementDefinition(
    name=MovementKind.TOPUP,
    title="Credit top-up",
    body=TopUpBody(),
    parse=lambda body: TopUpOrder(body["chain"], body["amount"]),
    quote=topups.quote,
    send=topups.send,
)
