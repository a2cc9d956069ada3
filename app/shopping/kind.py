"""Purchases in web shops as a kind of movement."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

from app.core.movement_kinds import MovementKind
from app.idempotency.service import Claim
from app.identity.principal import KeyKind, Principal
from app.ports.shopper import ShippingAddress
from app.shopping import orders, schemas, service
from app.shopping.models import Purchase
from app.shopping.orders import PurchaseOrder
from app.wallets.core.wallets import WalletView
from app.wallets.kinds.definition import MovementDefinition, Tool


def _parse(body: dict[str, Any]) -> PurchaseOrder:
    url, host = orders.parse_url(body["url"])
    credentials = body["credentials"] or {"username": None, "password": None}
    return PurchaseOrder(
        url=url,
        host=host,
        address=ShippingAddress(**body["shippingAddress"]),
        username=credentials["username"],
        password=credentials["password"],
        quantity=body["quantity"],
        options=body["options"],
        max_total_nanos=body["max_total_usd"],
        dry_run=body["dry_run"],
        coupon_code=body["coupon_code"],
        delivery_method=body["delivery_method"],
        session_id=body["session_id"],
    )


def _buy(wallet: WalletView, order: PurchaseOrder, *, wait_seconds: Decimal | None, claim: Claim) -> Purchase:  # noqa: ARG001 - a purchase is queued
    """Queue a purchase under a wallet's limits, paid for with the agent's credits."""
    caller = Principal(KeyKind.AGENT, wallet.agent_id, wallet.agent_id, wallet.agent_id)
    return service.buy(caller, replace(order, approved=wallet.approved), allow_duplicate=False, claim=claim)


PURCHASE = MovementDefinition(
    name=MovementKind.PURCHASE,
    title="Purchase",
    body=schemas.BuyBody(),
    parse=_parse,
    send=_buy,
    takes_hold=True,
    tool=Tool(
        "buy",
        "shopping.buy",
        "Buy a product in a web shop. Read the purchase with get_purchase until it is no longer queued or running.",
    ),
)
