"""`/v1/trading/perpdex`: fourteen actions. Reads return data, others 501 with the unsigned payload."""

from typing import Any

from flask import request

from app.errors import AddressNotAllowed, NotFound, PerpdexError, TradingNotImplemented
from app.identity import guards
from app.identity.principal import session_of
from app.ports.perpdex import Json
from app.trading import actions, schemas
from app.wallets.api.routes import LIMIT_ERRORS
from app.wallets.core import wallets
from app.web.blueprint import Blueprint

blp = Blueprint("trading", guard=guards.ANY_KEY, url_prefix="/v1/trading")
_MAPPING = {action: f"#/components/schemas/{body.__name__}" for action, body in schemas.BODY_OF_ACTION.items()}
_BODY = {"oneOf": list(schemas.BODIES), "discriminator": {"propertyName": "action", "mapping": _MAPPING}}
_REQUEST = {"required": True, "content": {"application/json": {"schema": _BODY}}}
_SHOWN = {
    "501": {
        "description": f"`{TradingNotImplemented.code}`: {TradingNotImplemented.meaning()}",
        "content": {"application/json": {"schema": schemas.TradingRefusalShape}},
    }
}


@blp.post("/perpdex")
@blp.arguments(schemas.CallBody)
@blp.response(200, schemas.TradingReadShape)
@blp.doc(requestBody=_REQUEST, responses=_SHOWN)
@blp.raises(NotFound, *LIMIT_ERRORS, AddressNotAllowed, PerpdexError)
def call_perpdex(body: dict[str, Any]) -> dict[str, Json]:
    """Read the exchange for a wallet, or preview an action on it.

    Reads (`status`, `positions`, `orders`, `fills`, `markets`, `ticker`, `orderbook`, `funding`) are recorded
    as `trading_query` in the wallet's history. All other actions are checked like a transfer; the response is
    501 with the unsigned payload: nothing is sent, recorded or counted as spent.
    """
    action = body["action"]
    principal = guards.current_principal()
    wallet = wallets.get_owned(body["wallet_id"], agent_id=principal.agent_of_wallet(body["wallet_id"]))
    session_of(principal, None, is_counted=False)
    # Without an own default, so that the body decides on unknown members.
    schema = schemas.BODY_OF_ACTION[action]()
    parameters = blp.ARGUMENTS_PARSER.parse(schema, request, location="json", unknown=None)
    if action in actions.READS:
        return actions.execute_read(wallet, action, parameters)
    raise actions.preview(wallet, action, parameters)
