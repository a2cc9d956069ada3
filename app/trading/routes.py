"""`/v1/trading/perpdex`: one door for fourteen actions. Reads are answered, others end in 501 with a payload."""

from __future__ import annotations

from typing import Any

from flask import request

from app.errors import (
    AddressNotAllowed,
    DailyLimitExceeded,
    MonthlyLimitExceeded,
    NotFound,
    PerpdexError,
    PerTxLimitExceeded,
    PriceUnavailable,
    TradingNotImplemented,
    Unauthorized,
    WalletFrozen,
    WeeklyLimitExceeded,
)
from app.identity import guards
from app.ports.perpdex import Json
from app.trading import reads, schemas, writes
from app.wallets import service as wallets
from app.web.blueprint import Blueprint

blp = Blueprint(
    "trading",
    __name__,
    guard=guards.ANY_KEY,
    url_prefix="/v1/trading",
    description="The perpetual-futures exchange: reading it, and previewing what would be sent to it.",
)
_REQUEST = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "oneOf": list(schemas.BODIES),
                "discriminator": {
                    "propertyName": "action",
                    "mapping": {
                        action: f"#/components/schemas/{body.__name__}"
                        for action, body in schemas.BODY_OF_ACTION.items()
                    },
                },
            }
        }
    },
}
_SHOWN = {
    "501": {
        "description": f"`{TradingNotImplemented.code}`: {TradingNotImplemented.__doc__}",
        "content": {"application/json": {"schema": schemas.TradingRefusalShape}},
    }
}


@blp.post("/perpdex")
@blp.arguments(schemas.CallBody)
@blp.response(200, schemas.TradingReadShape)
@blp.doc(requestBody=_REQUEST, responses=_SHOWN)
@blp.raises(
    Unauthorized,
    NotFound,
    DailyLimitExceeded,
    WeeklyLimitExceeded,
    MonthlyLimitExceeded,
    PerTxLimitExceeded,
    AddressNotAllowed,
    WalletFrozen,
    PriceUnavailable,
    PerpdexError,
)
def call_perpdex(body: dict[str, Any]) -> dict[str, Json]:
    """Read the exchange for a wallet, or preview an action on it.

    Reads (`status`, `positions`, `orders`, `fills`, `markets`, `ticker`, `orderbook`, `funding`) leave a
    `trading_query` in the wallet's history. All other actions are checked like a movement and then answered with
    501 and the unsigned payload: nothing is sent, recorded or counted as spent.
    """
    action = body["action"]
    wallet = wallets.owned(body["wallet_id"], agent_id=guards.caller().agent_id)
    parameters = blp.ARGUMENTS_PARSER.parse(schemas.body_for(action)(), request, location="json")
    if action in reads.ACTIONS:
        return reads.answer(wallet, action, parameters)
    raise writes.refuse(wallet, action, parameters)
