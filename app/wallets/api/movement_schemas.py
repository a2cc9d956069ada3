"""Schemas of transfers, withdrawals, swaps and bridges: bodies, responses, and quotes of dry runs."""

from __future__ import annotations

from marshmallow import fields

from app.approvals.schemas import APPROVAL_NOTE
from app.ports.chain import CONTRACT
from app.wallets.api.schemas import CHAIN, CURRENCY, GAS, GAS_FEE, GAS_PURCHASE, SESSION_ID, LegShape
from app.wallets.core.lifecycle import MovementKind, MovementStatus, TransactionType
from app.web.fields import AmountField, Recipient, StrictBoolean, Symbol, Usd, WholeNumber
from app.web.schemas import AcceptsCamelCase, Schema


def _amount(**metadata: str) -> AmountField:
    return AmountField(required=True, metadata={"type": "string", "example": "12.5", **metadata})


MAX_NETWORK_FEE = Usd(
    load_default=None,
    allow_none=True,
    metadata={
        "example": 1,
        "description": "Refuse rather than sign for a higher network fee: the highest `network_fee_usd`, or `gas_fee`, "
        "that you accept (at most nine decimals). Fees follow the market, so allow more than a dry run returned, for "
        "instance twice as much.",
    },
)


def _dry_run(what: str) -> StrictBoolean:
    text = f"Check the limits, simulate {what} and return a quote; nothing is signed."
    return StrictBoolean(load_default=False, metadata={"description": text})


class MovementBody(AcceptsCamelCase):
    """A transfer or withdrawal."""

    chain = Symbol(required=True, metadata=CHAIN)
    to = Recipient(required=True, metadata={"description": "The recipient's address."})
    amount = _amount()
    currency = Symbol(required=True, metadata=CURRENCY)
    gas = GAS
    session_id = SESSION_ID
    max_network_fee_usd = MAX_NETWORK_FEE
    approval_note = APPROVAL_NOTE
    dry_run = _dry_run("the transaction")


class SwapBody(AcceptsCamelCase):
    """A swap. Names in camelCase are also accepted: `inputToken`, `outputToken`, `slippageBps`, `dryRun`."""

    chain = Symbol(required=True, metadata=CHAIN)
    input_token = Symbol(required=True, metadata={**CURRENCY, "description": "The token to sell."})
    output_token = Symbol(
        required=True,
        metadata={**CURRENCY, "description": "The token to buy.", "example": "ETH"},
    )
    amount = _amount(description="The exact amount of `input_token` to sell.")
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
    dry_run = _dry_run("the swap")


class BridgeBody(AcceptsCamelCase):
    """A bridge. Names in camelCase are also accepted: `sourceChain`, `destinationChain`, `dryRun`."""

    source_chain = Symbol(required=True, metadata={**CHAIN, "description": "The chain to send from."})
    destination_chain = Symbol(
        required=True,
        metadata={
            **CHAIN,
            "description": "The chain to receive on, in the same wallet.",
            "example": "ethereum",
        },
    )
    token = Symbol(
        required=True,
        metadata={**CURRENCY, "description": "USDC between any two chains, ETH between Ethereum and Base."},
    )
    amount = _amount(description="The amount to send, including the fee.")
    gas = GAS_PURCHASE
    max_network_fee_usd = MAX_NETWORK_FEE
    approval_note = APPROVAL_NOTE
    dry_run = _dry_run("the transactions")


class _MovementState(Schema):
    transaction_id = fields.UUID(required=True, attribute="id")
    tx_hash = fields.String(required=True, allow_none=True)
    status = fields.String(required=True, metadata={"enum": list(MovementStatus)})
    explorer_url = fields.String(allow_none=True)
    error = fields.String(allow_none=True)


class MovementShape(_MovementState):
    """The response to a transfer or withdrawal."""

    from_ = fields.String(required=True, data_key="from", attribute="from_address")
    to = fields.String(required=True, attribute="to_address")
    amount = fields.String(required=True)
    currency = fields.String(required=True)
    chain = fields.String(required=True)
    type = fields.String(required=True, metadata={"enum": ["transfer", "withdrawal"]})
    kind = fields.String(allow_none=True, metadata={"description": "The purpose of a transfer: `topup`."})
    gas_fee = fields.String(required=True, allow_none=True, metadata=GAS_FEE)


class SwapShape(_MovementState):
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
        required=True,
        allow_none=True,
        metadata={"description": "The swap reverts if the output is less."},
    )
    chain = fields.String(required=True)
    type = fields.String(required=True, metadata={"enum": [TransactionType.SWAP.value]})


class BridgeShape(_MovementState):
    """The response to a bridge."""

    tx_hash = fields.String(
        required=True, allow_none=True, metadata={"description": "The transaction on the source chain."}
    )
    source_chain = fields.String(required=True, attribute="chain")
    destination_chain = fields.String(required=True, attribute="bridge.destination_chain")
    token = fields.String(required=True, attribute="currency")
    amount = fields.String(required=True)
    status = fields.String(
        required=True,
        metadata={
            "enum": list(MovementStatus),
            "description": "`pending` until the tokens arrived; once they were sent, `failed` only after a refund "
            "(`error` is `refunded`) or a write-off by the operator (`written_off`).",
        },
    )
    type = fields.String(required=True, metadata={"enum": ["transfer"]})
    kind = fields.String(required=True, metadata={"enum": [MovementKind.BRIDGE.value]})
    route = fields.String(required=True, attribute="bridge.route")
    fee = fields.String(
        required=True,
        attribute="bridge.fee",
        metadata={"description": "The bridge's fee: the maximum at first, then the actual one. Excludes network fees."},
    )
    received_amount = fields.String(
        required=True,
        allow_none=True,
        attribute="bridge.received_amount",
        metadata={"description": "The amount received on the destination chain; null until then."},
    )
    refunded_amount = fields.String(
        required=True,
        allow_none=True,
        attribute="bridge.refunded_amount",
        metadata={"description": "The amount refunded on the source chain, if it was not delivered."},
    )
    legs = fields.List(fields.Nested(LegShape), required=True, attribute="bridge.legs")
    error = fields.String(
        allow_none=True,
        metadata={"description": "What a `pending` bridge waits for, if known."},
    )


def _value(**metadata: str) -> Usd:
    return Usd(required=True, allow_none=True, attribute="movement.value_nanos", metadata=metadata)


def _network_fee(chain: str) -> fields.String:
    return fields.String(required=True, metadata={"description": f"The maximum, in {chain} native token."})


class _Quote(Schema):
    dry_run = fields.Boolean(required=True)
    network_fee = _network_fee("the chain's")
    network_fee_currency = fields.String(required=True, attribute="network_fee.token.symbol")
    network_fee_usd = Usd(required=True, allow_none=True, attribute="network_fee_nanos")
    gas_fee = fields.String(required=True, allow_none=True, metadata=GAS_FEE)


class QuoteShape(_Quote):
    """The quote of a dry run: limits and simulation passed; costs are maxima."""

    from_ = fields.String(required=True, data_key="from", attribute="movement.sender")
    to = fields.String(required=True, attribute="movement.recipient")
    amount = fields.String(required=True, attribute="movement.amount")
    currency = fields.String(required=True, attribute="movement.amount.token.symbol")
    chain = fields.String(required=True, attribute="movement.chain")
    value_usd = _value(
        description="What counts against the limits: the amount, and on Solana the rent of the token account that the "
        "payment creates for its recipient, which is a part of `network_fee`."
    )
    recipient_is = fields.String(
        required=True,
        allow_none=True,
        metadata={
            "enum": [CONTRACT, None],
            "description": "`contract`: the recipient has code, or a program owns it, which decides what becomes of "
            "the payment. Null for an ordinary account.",
        },
    )


class SwapQuoteShape(_Quote):
    """The quote of a dry run of a swap: limits and simulation passed; costs are maxima."""

    input_token = fields.String(required=True, attribute="movement.amount.token.symbol")
    output_token = fields.String(required=True, attribute="output.token.symbol")
    input_amount = fields.String(required=True, attribute="movement.amount")
    output_amount = fields.String(required=True, attribute="output")
    minimum_output_amount = fields.String(required=True, attribute="minimum")
    slippage_bps = fields.Integer(required=True)
    chain = fields.String(required=True, attribute="movement.chain")
    route = fields.String(
        required=True,
        metadata={"description": "The exchange and pools; their fees are deducted from the output."},
    )
    value_usd = _value(description="What counts against the limits: the value of the input less the minimum output.")


class BridgeQuoteShape(_Quote):
    """The quote of a dry run of a bridge: limits and simulation passed; costs are maxima."""

    source_chain = fields.String(required=True, attribute="movement.chain")
    destination_chain = fields.String(required=True)
    token = fields.String(required=True, attribute="movement.amount.token.symbol")
    amount = fields.String(required=True, attribute="movement.amount")
    route = fields.String(required=True)
    fee = fields.String(required=True, metadata={"description": "The maximum, deducted from the amount."})
    value_usd = _value(description="What counts against the limits: the fee.")
    network_fee = _network_fee("the source chain's")
    estimated_seconds = fields.Integer(required=True)
