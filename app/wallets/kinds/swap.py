"""Swaps: exchanging tokens on one chain, for the wallet itself.

Only the bounded loss counts against the limits: the value of the input less the minimum output. An offer too far below
the market price is refused, whatever slippage the request allows.
"""

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from marshmallow import fields
from sqlalchemy.orm import Session

from app.approvals.schemas import APPROVAL_NOTE
from app.core import clock
from app.core.chains import ChainName, Token, native
from app.core.money import TokenAmount, parse_amount, value_nanos
from app.core.movement_kinds import MovementKind
from app.errors import GasPending, PriceUnavailable, ServiceError, SwapFailed
from app.idempotency.service import Claim
from app.ports.chain import SignedTransaction, TransactionDraft
from app.ports.errors import PortError, Rejected
from app.ports.swaps import ConcurrentOutflows, SwapOffer, SwapRequest
from app.ports.vault import Signer
from app.state import app_state
from app.wallets import gas
from app.wallets.api.schemas import CHAIN, CURRENCY, GAS_PURCHASE
from app.wallets.core import parsing
from app.wallets.core.lifecycle import TransactionType
from app.wallets.core.parsing import GasSource
from app.wallets.core.wallets import WalletView
from app.wallets.kinds import definition
from app.wallets.kinds.definition import MAX_NETWORK_FEE, MovementQuoteShape, MovementState, WalletMovement
from app.wallets.transactions import failures, pipeline, settlement
from app.wallets.transactions.pipeline import DraftFunction, ExpectedOutput, Movement, MovementQuote
from app.wallets.views import history
from app.web.fields import Symbol, WholeNumber
from app.web.schemas import AcceptsCamelCase

_BPS_SCALE = 10_000


def compute_bounds(
    input_amount: TokenAmount,
    output_token: Token,
    *,
    input_price_nanos: int,
    output_price_nanos: int,
    quoted_units: int,
    slippage_bps: int,
    deviation_bps: int,
) -> tuple[TokenAmount, int]:
    """Return the minimum output and the loss that it allows, in nano-dollars.

    The minimum is `max(quote less slippage, market value less deviation)`, rounded up, and the loss the value of the
    input less that of the minimum. Prices are nano-dollars per whole token.

    Raises: Rejected("price_deviation") if the quote itself is below the market bound, Rejected("amount_too_small") if
    the output could be 0.
    """
    fair_units = (
        input_amount.units
        * input_price_nanos
        * 10**output_token.decimals
        // (output_price_nanos * 10**input_amount.token.decimals)
    )
    market_minimum_units = _reduce_by_bps(fair_units, deviation_bps)
    minimum_units = max(_reduce_by_bps(quoted_units, slippage_bps), market_minimum_units)
    if quoted_units == 0 or minimum_units == 0:
        raise Rejected("amount_too_small")
    if quoted_units < market_minimum_units:
        found = {"quoted": quoted_units, "required": market_minimum_units}
        details = {name: str(TokenAmount(units, output_token)) for name, units in found.items()}
        raise Rejected("price_deviation", details=details)
    minimum_output_nanos = minimum_units * output_price_nanos // 10**output_token.decimals
    loss_nanos = max(value_nanos(input_amount, input_price_nanos) - minimum_output_nanos, 0)
    return TokenAmount(minimum_units, output_token), loss_nanos


def _reduce_by_bps(units: int, bps: int) -> int:
    return -(-units * (_BPS_SCALE - bps) // _BPS_SCALE)


@dataclass(frozen=True, slots=True)
class SwapOrder:
    """A requested swap: exactly `input_amount` for as much of `output_token` as possible."""

    chain: ChainName
    input_amount: TokenAmount
    output_token: Token
    slippage_bps: int
    gas: GasSource = GasSource.AUTO
    max_fee_nanos: int | None = None


def quote(wallet: WalletView, order: SwapOrder) -> MovementQuote:
    """Check limits and simulate like `send`, without signing. Raises: what `send` raises before signing."""
    pipeline.assert_allowed(_movement(wallet, order))
    try:
        movement, offer, draft = _bounded_offer(wallet, order)
    except PortError as error:
        raise failures.failure(TransactionType.SWAP, error) from None
    pipeline.assert_allowed(movement)
    try:
        fee_units = pipeline.dry_run(movement, draft).fee_units
    except ServiceError as error:
        if error.details.get("reason") != gas.SHORTAGE or not gas.are_available(
            order.gas, order.chain, order.input_amount
        ):
            raise
        movement = gas.quote(movement, [error.details], without=error)
        fee_units = parse_amount(error.details["required"], native(order.chain)).units
    return MovementQuote(movement=movement, fee_units=fee_units, offer=offer)


def send(
    wallet: WalletView, order: SwapOrder, *, wait_seconds: Decimal | None, claim: Claim
) -> history.TransactionView:
    """Swap tokens and wait for the outcome up to `wait_seconds`.

    Returns a `confirmed` or `pending` transaction; its output is the quoted one until the actual one is known.

    Raises: the 403 errors of refused limits; PriceUnavailable; SwapFailed if it is known not to have happened.
    """
    state, started_at, unpriced = app_state(), clock.now(), _movement(wallet, order)
    # Checked without a price first: a frozen agent costs no call to the exchange.
    pipeline.assert_allowed(unpriced)
    try:
        movement, _offer, draft = _bounded_offer(wallet, order)
    except PortError as error:
        raise pipeline.record_failed(unpriced, error, claim=claim) from None
    pipeline.assert_allowed(movement)

    def sign(session: Session, drafted: TransactionDraft, signer: Signer, nonce: int | None) -> SignedTransaction:
        concurrent = _concurrent_outflows(session, movement, drafted, nonce)
        return state.ports.swap_exchanges[order.chain].sign(drafted, signer, sequence=nonce, concurrent=concurrent)

    def buy_gas(shortage: PortError) -> history.TransactionView:
        gas.buy(movement, [shortage], since=started_at, wait_seconds=wait_seconds, claim=claim)
        return send(wallet, replace(order, gas=GasSource.OWN), wait_seconds=wait_seconds, claim=claim)

    may_buy = gas.are_available(order.gas, order.chain, order.input_amount)
    return pipeline.execute(
        movement, draft, sign, wait_seconds=wait_seconds, claim=claim, without_gas=buy_gas if may_buy else None
    )


def _bounded_offer(wallet: WalletView, order: SwapOrder) -> tuple[Movement, SwapOffer, DraftFunction]:
    """Get prices and an offer, bound the loss, and return how to draft it. Raises: PriceUnavailable, PortError."""
    state = app_state()
    # The limits of the services that give quotes are shared by all agents.
    state.rate_limiter.count(state.settings.quote_rate_limit, "quotes", wallet.agent_id)
    prices = state.ports.prices
    input_price = prices.independent_range(order.input_amount.token)
    output_price = prices.independent_range(order.output_token)
    # Without a market price, a bad offer cannot be distinguished from a good one.
    if input_price is None or output_price is None:
        raise PriceUnavailable(
            "There is no current price for these tokens, so quotes cannot be checked; try again shortly."
        )
    request = SwapRequest(wallet.address_on(order.chain), order.input_amount, order.output_token, order.slippage_bps)
    exchange = state.ports.swap_exchanges[order.chain]
    offer = exchange.quote(request)
    minimum, loss_nanos = compute_bounds(
        order.input_amount,
        order.output_token,
        # If sources differ, take the prices that yield the larger loss and the higher minimum output.
        input_price_nanos=input_price.max_nanos,
        output_price_nanos=output_price.min_nanos,
        quoted_units=offer.output_units,
        slippage_bps=order.slippage_bps,
        deviation_bps=state.settings.max_price_deviation_bps,
    )
    output = ExpectedOutput(order.output_token, TokenAmount(offer.output_units, order.output_token), minimum)
    movement = replace(_movement(wallet, order), output=output, value_nanos=loss_nanos)
    return movement, offer, lambda signer: exchange.draft(offer, minimum_units=minimum.units, signer=signer)


def _movement(wallet: WalletView, order: SwapOrder) -> Movement:
    """Return the swap before an offer is known; its value is 0."""
    # The output goes to the wallet itself, so no allowlist applies.
    return Movement(
        wallet=wallet, type=TransactionType.SWAP, chain=order.chain, recipient=wallet.address_on(order.chain),
        payee=None, amount=order.input_amount, value_nanos=0, output=ExpectedOutput(order.output_token),
        max_fee_nanos=order.max_fee_nanos,
    )  # fmt: skip


def _concurrent_outflows(
    session: Session, movement: Movement, draft: TransactionDraft, nonce: int | None
) -> ConcurrentOutflows:
    """Return the wallet's earlier outflows that a draft does not include."""
    if nonce is not None and draft.sequence is not None:
        pending_swaps = settlement.count_swaps(
            session, movement.sender, movement.chain, movement.amount.token.symbol, since_sequence=draft.sequence,
            before_sequence=nonce,
        )  # fmt: skip
        return ConcurrentOutflows(earlier_swaps=pending_swaps)
    unmined_units, fees = settlement.outflows(
        session, movement.sender, movement.chain, since_sequence=None, since_block=draft.as_of
    )
    fee_token = native(movement.chain)
    return ConcurrentOutflows(outflows={**unmined_units, fee_token: unmined_units.get(fee_token, 0) + fees})


class SwapBody(AcceptsCamelCase):
    """A swap. Names in camelCase are also accepted: `inputToken`, `outputToken`, `slippageBps`, `dryRun`."""

    chain = Symbol(required=True, metadata=CHAIN)
    input_token = Symbol(required=True, metadata={**CURRENCY})
    output_token = Symbol(required=True, metadata={**CURRENCY, "example": "ETH"})
    amount = definition.AMOUNT
    slippage_bps = WholeNumber(load_default=50, metadata={"default": 50})
    gas = GAS_PURCHASE
    max_network_fee_usd = MAX_NETWORK_FEE
    approval_note = APPROVAL_NOTE
    dry_run = definition.dry_run_field("the swap")


class SwapShape(MovementState):
    """The response to a swap."""

    input_token = fields.String(required=True, attribute="currency")
    output_token = fields.String(required=True, attribute="output_currency")
    input_amount = fields.String(required=True, attribute="amount")
    output_amount = fields.String(required=True, allow_none=True)
    minimum_output_amount = fields.String(required=True, allow_none=True)
    chain = fields.String(required=True)
    type = fields.String(required=True, metadata={"enum": [TransactionType.SWAP.value]})


class SwapQuoteShape(MovementQuoteShape):
    """The quote of a dry run of a swap: limits and simulation passed; costs are maxima."""

    input_token = fields.String(required=True, attribute="movement.amount.token.symbol")
    output_token = fields.String(required=True, attribute="movement.output.token.symbol")
    input_amount = fields.String(required=True, attribute="movement.amount")
    output_amount = fields.String(required=True, attribute="movement.output.quoted")
    minimum_output_amount = fields.String(required=True, attribute="movement.output.minimum")
    slippage_bps = fields.Integer(required=True, attribute="offer.request.slippage_bps")
    chain = fields.String(required=True, attribute="movement.chain")
    route = fields.String(required=True, attribute="offer.route")
    value_usd = definition.VALUE_USD


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
    parse=swap, quote=quote, send=send,
)  # fmt: skip
