"""All kinds of movements. Approvals, workers and the owner's pages read this list."""

from collections.abc import Mapping
from typing import Any

from app.buying.routes import X402
from app.catalog.payouts.routes import PAYOUT
from app.core.movement_kinds import MovementKind
from app.payments.routes import TOP_UP
from app.shopping.routes import PURCHASE
from app.wallets.kinds import WALLET_MOVEMENTS
from app.wallets.kinds.definition import MovementDefinition

KINDS: Mapping[MovementKind, MovementDefinition[Any]] = {
    kind.name: kind for kind in (*WALLET_MOVEMENTS, TOP_UP, X402, PURCHASE, PAYOUT)
}
