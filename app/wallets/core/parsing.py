"""Parsing of transfers, swaps, bridges and deposits: chain, token, amount and recipient, validated together.

All problems of a request are reported together. Reads neither the database nor the network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from app.core import addresses
from app.core.chains import TOKENS_BY_SYMBOL, USDC, ChainName, Token, tokens
from app.core.money import AmountError, TokenAmount, parse_amount
from app.errors import InvalidInput
from app.state import app_state
from app.wallets.core.lifecycle import TransactionType


class GasSource(StrEnum):
    """The payer of the network fee, as on the wire."""

    AUTO = "auto"
    """The wallet; for a fee in USDC, the service if the wallet holds too little of the native token."""
    OWN = "own"
    SPONSORED = "sponsored"
    """The service, for a fee in USDC; as `AUTO` where the wallet itself has to send."""


@dataclass(frozen=True, slots=True)
class MovementOrder:
    """A requested transfer or withdrawal: the recipient in canonical form, the amount in base units."""

    type: TransactionType
    chain: ChainName
    recipient: str
    amount: TokenAmount
    kind: str | None = None
    # False for payments to the service itself.
    needs_allowlist: bool = True
    session_id: str | None = None
    gas: GasSource = GasSource.AUTO
    max_fee_nanos: int | None = None


_INVALID_RECIPIENT_MESSAGES: Mapping[str, str] = {
    "program": "is a program, which cannot spend what it receives",
    "token_account_or_mint": "is a token account or a mint; send to the wallet that owns it",
    "given_away": "does not own its token account any more; another address would receive the tokens",
    "no_wallet": "is not a wallet address and was never used; tokens sent there may be lost",
}


@dataclass(frozen=True, slots=True)
class SwapOrder:
    """A requested swap: exactly `input_amount` for as much of `output_token` as possible."""

    chain: ChainName
    input_amount: TokenAmount
    output_token: Token
    slippage_bps: int
    gas: GasSource = GasSource.AUTO
    max_fee_nanos: int | None = None


@dataclass(frozen=True, slots=True)
class BridgeOrder:
    """A requested bridge: exactly this amount, to the wallet's address on another chain."""

    source: ChainName
    destination: ChainName
    amount: TokenAmount
    gas: GasSource = GasSource.AUTO
    max_fee_nanos: int | None = None


def parse_deposit(*, chain: str, amount: str, currency: str) -> tuple[ChainName, TokenAmount]:
    """Parse a funding request. Raises: InvalidInput with every invalid field."""
    problems: dict[str, list[str]] = {}
    name = _parse_chain(chain, problems)
    parsed = _parse_amount(name, amount, currency, problems)
    if problems or name is None or parsed is None:
        raise invalid_fields(problems)
    return name, parsed


def parse_movement(
    type_: TransactionType,
    *,
    chain: str,
    to: str,
    amount: str,
    currency: str,
    session_id: str | None = None,
    gas: GasSource = GasSource.AUTO,
    max_network_fee_usd: int | None = None,
) -> MovementOrder:
    """Parse a transfer or withdrawal. Raises: InvalidInput with every invalid field."""
    problems: dict[str, list[str]] = {}
    name = _parse_chain(chain, problems)
    parsed = _parse_amount(name, amount, currency, problems)
    recipient = None
    if name is not None:
        try:
            recipient = addresses.for_chain(to, name)
        except addresses.AddressError as error:
            problems["to"] = [str(error)]
    if name is not None and recipient is not None and parsed is not None:
        refusal = app_state().ports.chains[name].recipient_rejection(recipient, parsed.token)
        if refusal:
            problems["to"] = [refusal]
    if gas is GasSource.SPONSORED and name is not None and parsed is not None:
        sponsors = app_state().ports.sponsors
        if parsed.token != USDC or name not in sponsors:
            problems["gas"] = [f"can be sponsored for USDC on {', '.join(sponsors) or 'no chain'}"]
    if problems or name is None or recipient is None or parsed is None:
        raise invalid_fields(problems)
    return MovementOrder(
        type_, name, recipient, parsed, session_id=session_id, gas=gas, max_fee_nanos=max_network_fee_usd
    )


def parse_swap(
    *,
    chain: str,
    amount: str,
    input_token: str,
    output_token: str,
    slippage_bps: int,
    gas: GasSource = GasSource.AUTO,
    max_network_fee_usd: int | None = None,
) -> SwapOrder:
    """Parse a swap. Raises: InvalidInput with every invalid field."""
    problems: dict[str, list[str]] = {}
    state = app_state()
    name = _parse_chain(chain, problems, served=tuple(state.ports.swap_exchanges))
    input_amount = _parse_amount(name, amount, input_token, problems, field="input_token")
    parsed_output = _parse_token(name, output_token, problems, field="output_token")
    if input_amount is not None and input_amount.token == parsed_output:
        problems["output_token"] = ["must differ from input_token"]
    max_bps = state.settings.max_slippage_bps
    if not 0 <= slippage_bps <= max_bps:
        problems["slippage_bps"] = [f"must be from 0 to {max_bps}"]
    if problems or name is None or input_amount is None or parsed_output is None:
        raise invalid_fields(problems)
    return SwapOrder(name, input_amount, parsed_output, slippage_bps, gas, max_network_fee_usd)


def parse_bridge(
    *,
    source_chain: str,
    destination_chain: str,
    token: str,
    amount: str,
    gas: GasSource = GasSource.AUTO,
    max_network_fee_usd: int | None = None,
) -> BridgeOrder:
    """Parse a bridge. Raises: InvalidInput with every invalid field and the possible routes."""
    problems: dict[str, list[str]] = {}
    routes = app_state().ports.bridges
    served = tuple(dict.fromkeys(route[0] for route in routes))
    source = _parse_chain(source_chain, problems, served=served, field="source_chain")
    destination = _parse_chain(destination_chain, problems, served=served, field="destination_chain")
    parsed = _parse_amount(None, amount, token, problems, field="token")
    if source is not None and source == destination:
        problems["destination_chain"] = ["must differ from source_chain"]
    elif (
        source is not None
        and destination is not None
        and parsed is not None
        and (source, destination, parsed.token) not in routes
    ):
        symbols = ", ".join(t.symbol for s, d, t in routes if (s, d) == (source, destination))
        problems["token"] = [f"must be {symbols or 'none'} from {source} to {destination}"]
    if problems or source is None or destination is None or parsed is None:
        possible = [{"source_chain": s.value, "destination_chain": d.value, "token": t.symbol} for s, d, t in routes]
        refusal = invalid_fields(problems)
        raise InvalidInput(refusal.message, details={**refusal.details, "possible": possible})
    return BridgeOrder(source, destination, parsed, gas, max_network_fee_usd)


def invalid_input_from(reason: str, details: Mapping[str, str]) -> InvalidInput | None:
    """Return the error for a request that only the chain can validate; None for any other refusal."""
    if reason == "amount_below_rent":
        minimum = details.get("minimum")
        return InvalidInput.field("amount", f"must be at least {minimum} for an address that was never used")
    if reason == "invalid_recipient":
        message = _INVALID_RECIPIENT_MESSAGES.get(details.get("recipient_is", ""), "cannot receive this payment")
        return InvalidInput.field("to", message)
    return None


def _parse_chain(
    text: str,
    problems: dict[str, list[str]],
    *,
    served: Sequence[ChainName] | None = None,
    field: str = "chain",
) -> ChainName | None:
    names = tuple(app_state().ports.chains) if served is None else served
    for name in names:
        if name.value == text.lower():
            return name
    problems[field] = [f"must be one of {', '.join(names)}"]
    return None


def _parse_token(chain: ChainName | None, symbol: str, problems: dict[str, list[str]], *, field: str) -> Token | None:
    # ASCII only: some other letters equal these symbols in upper case.
    token = TOKENS_BY_SYMBOL.get(symbol.upper()) if symbol.isascii() else None
    if chain is not None and token not in tokens(chain):
        problems[field] = [f"must be one of {', '.join(t.symbol for t in tokens(chain))} on {chain}"]
        return None
    if token is None:
        problems[field] = [f"must be one of {', '.join(TOKENS_BY_SYMBOL)}"]
    return token


def _parse_amount(
    chain: ChainName | None,
    amount: str,
    currency: str,
    problems: dict[str, list[str]],
    *,
    field: str = "currency",
) -> TokenAmount | None:
    token = _parse_token(chain, currency, problems, field=field)
    if token is None:
        return None
    try:
        return parse_amount(amount, token)
    except AmountError as error:
        problems["amount"] = [str(error)]
        return None


def invalid_fields(problems: dict[str, list[str]]) -> InvalidInput:
    """Return the error that names every invalid field; its message is about the first."""
    first = next(iter(problems))
    return InvalidInput(f"{first} {problems[first][0]}.", details={"fields": problems})
