"""Swaps."""

from __future__ import annotations

from typing import Any

from marshmallow import fields

from app.approvals.schemas import APPROVAL_NOTE
from app.core.movement_kinds import MovementKind
from app.errors import GasPending, SwapFailed
from app.state import app_state
from app.wallets.api.schemas import CHAIN, CURRENCY, GAS_PURCHASE
from app.wallets.core import parsing
from app.wallets.core.lifecycle import TransactionType
from app.wallets.kinds import definition
from app.wallets.kinds.definition import MAX_NETWORK_FEE, MovementQuoteShape, MovementState, Tool, WalletMovement
from app.wallets.swaps import service
from app.wallets.swaps.service import SwapOrder
from app.web.fields import Symbol, WholeNumber
from app.web.schemas import AcceptsCamelCase


class SwapBody(AcceptsCamelCase):
    """A swap. Names in camelCase are also accepted: `inputToken`, `outputToken`, `slippageBps`, `dryRun`."""

    chain = Symbol(required=True, metadata=CHAIN)
    input_token = Symbol(required=True, metadata={**CURRENCY, "description": "The token to sell."})
    output_token = Symbol(required=True, metadata={**CURRENCY, "description": "The token to buy.", "example": "ETH"})
    amount = definition.amount_field(description="The exact amount of `input_token` to sell.")
    slippage_bps = WholeNumber(
        load_default=50,
        metadata={
            "description": "How far the output may fall below the quote, in hundredths of a percent, up to the "
            "operator's maximum.",
            "default": 50,
        },
    )
    gas = GAS_PURCHASE
    max_network_fee_usd = MAX_NETWORK_FEE
    approval_note = APPROVAL_NOTE
    dry_run = definition.dry_run_field("the swap")


class SwapShape(MovementState):
    """The response to a swap."""

    input_token = fields.String(required=True, attribute="currency")
    output_token = fields.String(required=True, attribute="output_currency")
    input_amount = fields.String(required=True, attribute="amount")
    output_amount = fields.String(
        required=True,
        allow_none=True,
        metadata={"description": "The quote while `pending`; the actual output on the chain once `confirmed`."},
    )
    minimum_output_amount = fields.String(
        required=True, allow_none=True, metadata={"description": "The swap reverts if the output is less."}
    )
    chain = fields.String(required=True)
    type = fields.String(required=True, metadata={"enum": [TransactionType.SWAP.value]})


class SwapQuoteShape(MovementQuoteShape):
    """The quote of a dry run of a swap: limits and simulation passed; costs are maxima."""

    input_token = fields.String(required=True, attribute="movement.amount.token.symbol")
    output_token = fields.String(required=True, attribute="output.token.symbol")
    input_amount = fields.String(required=True, attribute="movement.amount")
    output_amount = fields.String(required=True, attribute="output")
    minimum_output_amount = fields.String(required=True, attribute="minimum")
    slippage_bps = fields.Integer(required=True)
    chain = fields.String(required=True, attribute="movement.chain")
    route = fields.String(
        required=True, metadata={"description": "The exchange and pools; their fees are deducted from the output."}
    )
    value_usd = definition.value_field(
        description="What counts against the limits: the value of the input less the minimum output."
    )


def swap(body: dict[str, Any]) -> SwapOrder:
    """Swap tokens on one chain, for the wallet itself. `pending` means that it was sent and the service completes it.

    The output is at least `minimum_output_amount`, or the swap reverts. Only the possible loss counts against the
    limits: the value of the input less the minimum output.
    """
    problems: dict[str, list[str]] = {}
    state, slippage_bps = app_state(), body["slippage_bps"]
    chain = parsing.parse_chain(body["chain"], problems, served=tuple(state.ports.swap_exchanges))
    amount = parsing.parse_token_amount(chain, body["amount"], body["input_token"], problems, field="input_token")
    output = parsing.parse_token(chain, body["output_token"], problems, field="output_token")
    if amount is not None and amount.token == output:
        problems["output_token"] = ["must differ from input_token"]
    max_bps = state.settings.max_slippage_bps
    if not 0 <= slippage_bps <= max_bps:
        problems["slippage_bps"] = [f"must be from 0 to {max_bps}"]
    if problems or chain is None or amount is None or output is None:
        raise parsing.invalid_fields(problems)
    return SwapOrder(chain, amount, output, slippage_bps, body["gas"], body["max_network_fee_usd"])


SWAP = WalletMovement(
    name=MovementKind.SWAP, title="Swap", noun="swap", errors=(SwapFailed, GasPending),
    body=SwapBody(), result=SwapShape, quote_result=SwapQuoteShape,
    parse=swap, quote=service.quote, send=service.send,
    tool=Tool(
        "swap", "wallets.swap",
        "Swap one token for another on the same chain. `dry_run` returns a quote without sending. `pending` means "
        "sent: read it with get_transactions, and do not swap again.",
    ),
)  # fmt: skip
