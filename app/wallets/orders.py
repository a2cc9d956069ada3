"""What callers ask for, as values: chain, token, amount and recipient checked against each other.

Every problem of a request is named at once; nothing here touches the database or the network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from app.core import addresses
from app.core.chains import TOKENS_BY_SYMBOL, ChainName, Token, tokens
from app.core.money import AmountError, TokenAmount, parse_amount
from app.errors import InvalidInput
from app.ports import provider
from app.wallets.lifecycle import TransactionType


@dataclass(frozen=True, slots=True)
class Order:
    """A movement that is asked for: the recipient in canonical form, the amount in the token's units."""

    type: TransactionType
    chain: ChainName
    recipient: str
    amount: TokenAmount
    kind: str | None = None
    # Of what goes to the service itself, an allowlist says nothing.
    needs_allowlist: bool = True


_UNFIT_RECIPIENTS: Mapping[str, str] = {
    "program": "is a program, which could not use what it gets",
    "token_account_or_mint": "is a token account or a mint; send to the wallet that owns it",
    "given_away": "has given its token account to somebody else, who would get the tokens",
    "no_wallet": "is no wallet's address and was never used; tokens sent there may be lost",
}


@dataclass(frozen=True, slots=True)
class SwapOrder:
    """A swap that is asked for: exactly `given` for as much of `wanted` as it brings."""

    chain: ChainName
    given: TokenAmount
    wanted: Token
    slippage_bps: int


@dataclass(frozen=True, slots=True)
class BridgeOrder:
    """A bridge that is asked for: exactly this amount leaves one chain for the wallet's address on another."""

    source: ChainName
    destination: ChainName
    amount: TokenAmount


def parse_deposit(*, chain: str, amount: str, currency: str) -> tuple[ChainName, TokenAmount]:
    """Read what shall be deposited where. Raises: InvalidInput naming each bad field."""
    problems: dict[str, list[str]] = {}
    name = _parse_chain(chain, problems)
    parsed = _parse_amount(name, amount, currency, problems)
    if problems or name is None or parsed is None:
        raise _invalid(problems)
    return name, parsed


def parse_movement(type_: TransactionType, *, chain: str, to: str, amount: str, currency: str) -> Order:
    """Read a transfer or withdrawal. Raises: InvalidInput naming each bad field."""
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
        refusal = provider.current().chains[name].refusal_of(recipient, parsed.token)
        if refusal:
            problems["to"] = [refusal]
    if problems or name is None or recipient is None or parsed is None:
        raise _invalid(problems)
    return Order(type_, name, recipient, parsed)


def parse_swap(
    *, chain: str, amount: str, input_token: str, output_token: str, slippage_bps: int
) -> SwapOrder:
    """Read a swap. Raises: InvalidInput naming each bad field."""
    problems: dict[str, list[str]] = {}
    name = _parse_chain(chain, problems, served=tuple(provider.current().exchanges))
    given = _parse_amount(name, amount, input_token, problems, field="input_token")
    wanted = _parse_token(name, output_token, problems, field="output_token")
    if given is not None and given.token == wanted:
        problems["output_token"] = ["must be another token than input_token"]
    most = provider.settings().max_slippage_bps
    if not 0 <= slippage_bps <= most:
        problems["slippage_bps"] = [f"must be from 0 to {most}"]
    if problems or name is None or given is None or wanted is None:
        raise _invalid(problems)
    return SwapOrder(name, given, wanted, slippage_bps)


def to_the_service(order: Order, *, kind: str) -> Order:
    """Return an order whose recipient is the service itself, which needs no place in an allowlist."""
    return replace(order, kind=kind, needs_allowlist=False)


def parse_bridge(*, source_chain: str, destination_chain: str, token: str, amount: str) -> BridgeOrder:
    """Read a bridge. Raises: InvalidInput naming each bad field, and what is possible."""
    problems: dict[str, list[str]] = {}
    routes = provider.current().bridges
    served = tuple(dict.fromkeys(route[0] for route in routes))
    source = _parse_chain(source_chain, problems, served=served, field="source_chain")
    destination = _parse_chain(destination_chain, problems, served=served, field="destination_chain")
    parsed = _parse_amount(None, amount, token, problems, field="token")
    if source is not None and source == destination:
        problems["destination_chain"] = ["must be another chain than source_chain"]
    elif (
        source is not None
        and destination is not None
        and parsed is not None
        and (source, destination, parsed.token) not in routes
    ):
        symbols = ", ".join(t.symbol for s, d, t in routes if (s, d) == (source, destination))
        problems["token"] = [f"must be {symbols or 'none'} from {source} to {destination}"]
    if problems or source is None or destination is None or parsed is None:
        possible = [
            {"source_chain": s.value, "destination_chain": d.value, "token": t.symbol} for s, d, t in routes
        ]
        refusal = _invalid(problems)
        raise InvalidInput(refusal.message, details={**refusal.details, "possible": possible})
    return BridgeOrder(source, destination, parsed)


def bad_request(reason: str, details: Mapping[str, str]) -> InvalidInput | None:
    """Return the answer to what only the chain could find wrong with a request; None for any other refusal."""
    if reason == "amount_below_rent":
        least = details.get("minimum")
        return InvalidInput.field("amount", f"must be at least {least} for an address that was never used")
    if reason == "invalid_recipient":
        kind = _UNFIT_RECIPIENTS.get(details.get("recipient_is", ""), "cannot be paid")
        return InvalidInput.field("to", kind)
    return None


def _parse_chain(
    text: str,
    problems: dict[str, list[str]],
    *,
    served: Sequence[ChainName] | None = None,
    field: str = "chain",
) -> ChainName | None:
    names = tuple(provider.current().chains) if served is None else served
    for name in names:
        if name.value == text.lower():
            return name
    problems[field] = [f"must be one of {', '.join(names)}"]
    return None


def _parse_token(
    chain: ChainName | None, symbol: str, problems: dict[str, list[str]], *, field: str
) -> Token | None:
    # Only ASCII: some other letters become these symbols in upper case.
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


def _invalid(problems: dict[str, list[str]]) -> InvalidInput:
    first = next(iter(problems))
    return InvalidInput(f"{first} {problems[first][0]}.", details={"fields": problems})
