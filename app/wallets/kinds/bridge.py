"""Bridges, and the command by which the operator closes those that were never paid out."""

from typing import Any

import click
from flask.cli import AppGroup
from marshmallow import fields

from app.approvals.schemas import APPROVAL_NOTE
from app.audit_log import actors
from app.core.movement_kinds import MovementKind
from app.errors import BridgeFailed, GasPending, InvalidInput, ServiceError
from app.observability import telemetry
from app.state import app_state
from app.wallets.api.schemas import CHAIN, CURRENCY, GAS_PURCHASE, BridgeLegShape
from app.wallets.bridges import service, state
from app.wallets.bridges.service import BridgeOrder
from app.wallets.core import parsing
from app.wallets.kinds import definition
from app.web.fields import Symbol
from app.web.schemas import AcceptsCamelCase


class BridgeBody(AcceptsCamelCase):
    """A bridge. Names in camelCase are also accepted: `sourceChain`, `destinationChain`, `dryRun`."""

    source_chain = Symbol(required=True, metadata={**CHAIN})
    destination_chain = Symbol(required=True, metadata={**CHAIN, "example": "ethereum"})
    token = Symbol(required=True, metadata={**CURRENCY})
    amount = definition.AMOUNT
    gas = GAS_PURCHASE
    max_network_fee_usd = definition.MAX_NETWORK_FEE
    approval_note = APPROVAL_NOTE
    dry_run = definition.dry_run_field("the transactions")


class BridgeShape(definition.MovementState):
    """The response to a bridge."""

    source_chain = fields.String(required=True, attribute="chain")
    destination_chain = fields.String(required=True, attribute="details.destination_chain")
    token = fields.String(required=True, attribute="currency")
    amount = fields.String(required=True)
    type = fields.String(required=True, metadata={"enum": ["transfer"]})
    kind = fields.String(required=True, metadata={"enum": [MovementKind.BRIDGE.value]})
    route = fields.String(required=True, attribute="details.route")
    fee = fields.String(required=True, attribute="details.fee")
    received_amount = fields.String(required=True, allow_none=True, attribute="details.received_amount")
    refunded_amount = fields.String(required=True, allow_none=True, attribute="details.refunded_amount")
    legs = fields.List(fields.Nested(BridgeLegShape), required=True, attribute="details.legs")


class BridgeQuoteShape(definition.MovementQuoteShape):
    """The quote of a dry run of a bridge: limits and simulation passed; costs are maxima."""

    source_chain = fields.String(required=True, attribute="movement.chain")
    destination_chain = fields.String(required=True, attribute="offer.request.destination")
    token = fields.String(required=True, attribute="movement.amount.token.symbol")
    amount = fields.String(required=True, attribute="movement.amount")
    route = fields.String(required=True, attribute="offer.route")
    fee = fields.String(required=True, attribute="offer.fee")
    value_usd = definition.VALUE_USD
    estimated_seconds = fields.Integer(required=True, attribute="offer.seconds")


def bridge(body: dict[str, Any]) -> BridgeOrder:
    """Move tokens to the wallet's address on another chain. Returns `pending`; the service completes the bridge.

    Only the fee counts against the limits. Once tokens have left the source chain, it stays `pending` until they
    arrive, with what it waits for in `error`, and is retried indefinitely. `legs` lists its transactions.
    """
    problems: dict[str, list[str]] = {}
    routes = app_state().ports.bridges
    served = tuple(dict.fromkeys(route[0] for route in routes))
    source = parsing.parse_chain(body["source_chain"], problems, served=served, field="source_chain")
    destination = parsing.parse_chain(body["destination_chain"], problems, served=served, field="destination_chain")
    amount = parsing.parse_token_amount(None, body["amount"], body["token"], problems, field="token")
    if source is not None and source == destination:
        problems["destination_chain"] = ["must differ from source_chain"]
    elif source and destination and amount is not None and (source, destination, amount.token) not in routes:
        symbols = ", ".join(t.symbol for s, d, t in routes if (s, d) == (source, destination))
        problems["token"] = [f"must be {symbols or 'none'} from {source} to {destination}"]
    if problems or source is None or destination is None or amount is None:
        possible = [{"source_chain": s.value, "destination_chain": d.value, "token": t.symbol} for s, d, t in routes]
        refusal = parsing.invalid_fields(problems)
        raise InvalidInput(refusal.message, details={**refusal.details, "possible": possible})
    return BridgeOrder(source, destination, amount, body["gas"], body["max_network_fee_usd"])


commands = AppGroup("bridges", callback=telemetry.redirect_to_stderr, help="Bridges that were never paid out.")


@commands.command("write-off")
@click.argument("transaction_id")
@click.option(
    "--accept-partial-refund", is_flag=True, help="Write it off even if only a part was refunded (refund_short)."
)
def write_off(transaction_id: str, *, accept_partial_refund: bool) -> None:
    """Close a bridge that was never paid out to the wallet. Its amount is lost."""
    try:
        service.write_off(actors.shell_actor(), transaction_id, accept_partial_refund=accept_partial_refund)
    except ServiceError as error:
        raise click.ClickException(error.message) from None
    click.echo(f"{transaction_id} has failed: written off.")


BRIDGE = definition.WalletMovement(
    name=MovementKind.BRIDGE, title="Bridge", noun="bridge", errors=(BridgeFailed, GasPending),
    body=BridgeBody(), result=BridgeShape, quote_result=BridgeQuoteShape,
    parse=bridge, quote=service.quote, send=service.send,
    details=state.views,
)  # fmt: skip
