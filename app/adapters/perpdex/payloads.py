"""Unsigned actions for `/exchange`. The order of the keys is part of what is signed.

Source: the exchange's documentation, "Exchange endpoint" and "Signing".
"""

from __future__ import annotations

from decimal import Decimal

from app.adapters.perpdex.deployments import PerpdexDeployment
from app.ports.perpdex import (
    Action,
    ActionPayload,
    CancelByClientId,
    CancelOrders,
    Json,
    LimitOrder,
    SendUsdc,
    SetLeverage,
    Withdraw,
)


def build_payload(action: Action, *, nonce: int, deployment: PerpdexDeployment) -> ActionPayload:
    return ActionPayload(_action(action, nonce, deployment), nonce)


def format_decimal(number: Decimal) -> str:
    """Format a positive number as the exchange requires: no exponent, no trailing zeros."""
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _action(action: Action, nonce: int, deployment: PerpdexDeployment) -> dict[str, Json]:
    match action:
        case LimitOrder():
            return {"type": "order", "orders": [_order(action)], "grouping": "na"}
        case CancelOrders():
            cancels = [{"a": order.market_index, "o": order.order_id} for order in action.orders]
            return {"type": "cancel", "cancels": cancels}
        case CancelByClientId():
            cancel = {"asset": action.market_index, "cloid": action.client_id}
            return {"type": "cancelByCloid", "cancels": [cancel]}
        case SetLeverage():
            return {
                "type": "updateLeverage",
                "asset": action.market.index,
                "isCross": action.is_cross,
                "leverage": action.leverage,
            }
        case Withdraw():
            return {
                "type": "withdraw3",
                "hyperliquidChain": deployment.chain,
                "signatureChainId": deployment.signature_chain_id,
                "amount": str(action.amount),
                "time": nonce,
                "destination": action.destination.lower(),
            }
        case SendUsdc():
            return {
                "type": "usdSend",
                "hyperliquidChain": deployment.chain,
                "signatureChainId": deployment.signature_chain_id,
                "destination": action.destination.lower(),
                "amount": str(action.amount),
                "time": nonce,
            }


def _order(order: LimitOrder) -> dict[str, Json]:
    return {
        "a": order.market.index,
        "b": order.is_buy,
        "p": format_decimal(order.price),
        "s": format_decimal(order.size),
        "r": order.is_reduce_only,
        "t": {"limit": {"tif": order.time_in_force.value}},
        **({} if order.client_id is None else {"c": order.client_id}),
    }
