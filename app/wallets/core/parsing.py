"""Parsing of what movements and deposits have in common: chain, token and amount.

All problems of a request are reported together. Reads neither the database nor the network.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import StrEnum

from app.core import chains
from app.core.chains import TOKENS_BY_SYMBOL, ChainName, Token, tokens
from app.core.money import AmountError, TokenAmount, parse_amount
from app.errors import InvalidInput
from app.state import app_state


class GasSource(StrEnum):
    AUTO = "auto"
    """The wallet; for a fee in USDC, the service if the wallet holds too little of the native token."""
    OWN = "own"
    SPONSORED = "sponsored"
    """The service, for a fee in USDC; as `AUTO` where the wallet itself has to send."""


_INVALID_RECIPIENT_MESSAGES: Mapping[str, str] = {
    "program": "is a program, which cannot spend what it receives",
    "token_account_or_mint": "is a token account or a mint; send to the wallet that owns it",
    "given_away": "does not own its token account any more; another address would receive the tokens",
    "no_wallet": "is not a wallet address and was never used; tokens sent there may be lost",
}


def parse_deposit(*, chain: str, amount: str, currency: str) -> tuple[ChainName, TokenAmount]:
    """Parse a funding request. Raises: InvalidInput with every invalid field."""
    problems: dict[str, list[str]] = {}
    name = parse_chain(chain, problems)
    parsed = parse_token_amount(name, amount, currency, problems)
    if problems or name is None or parsed is None:
        raise invalid_fields(problems)
    return name, parsed


def invalid_input_from(reason: str, details: Mapping[str, str]) -> InvalidInput | None:
    """Return the error for a request that only the chain can validate; None for any other refusal."""
    if reason == "amount_below_rent":
        minimum = details.get("minimum")
        return InvalidInput.field("amount", f"must be at least {minimum} for an address that was never used")
    if reason == "invalid_token":
        return InvalidInput.field("currency", f"is {details['token_is']}")
    if reason == "invalid_recipient":
        message = _INVALID_RECIPIENT_MESSAGES.get(details.get("recipient_is", ""), "cannot receive this payment")
        return InvalidInput.field("to", message)
    return None


def parse_chain(
    text: str, problems: dict[str, list[str]], *, served: Sequence[ChainName] | None = None, field: str = "chain"
) -> ChainName | None:
    names = tuple(app_state().ports.chains) if served is None else served
    for name in names:
        if name.value == text.lower():
            return name
    problems[field] = [f"must be one of {', '.join(names)}"]
    return None


def parse_withdrawn(
    chain: ChainName | None, symbol: str, problems: dict[str, list[str]], *, field: str
) -> Token | None:
    """Parse the currency of a withdrawal, which may be a foreign token."""
    contract, colon, decimals = symbol.partition(":")
    if chain is None or not colon:
        return parse_token(chain, symbol, problems, field=field)
    with suppress(chains.AddressError):
        if decimals in map(str, range(chains.MAX_DECIMALS + 1)):
            return chains.token_named(f"{chains.address_for_chain(contract, chain)}:{decimals}")
    problems[field] = ["must be the contract or mint of a token, a colon, and its decimals"]
    return None


def parse_token(chain: ChainName | None, symbol: str, problems: dict[str, list[str]], *, field: str) -> Token | None:
    # ASCII only: some other letters equal these symbols in upper case.
    token = TOKENS_BY_SYMBOL.get(symbol.upper()) if symbol.isascii() else None
    if chain is not None and token not in tokens(chain):
        problems[field] = [f"must be one of {', '.join(t.symbol for t in tokens(chain))} on {chain}"]
        return None
    if token is None:
        problems[field] = [f"must be one of {', '.join(TOKENS_BY_SYMBOL)}"]
    return token


def parse_token_amount(
    chain: ChainName | None, amount: str, currency: str, problems: dict[str, list[str]], *, field: str = "currency"
) -> TokenAmount | None:
    return parse_amount_of(parse_token(chain, currency, problems, field=field), amount, problems)


def parse_amount_of(token: Token | None, amount: str, problems: dict[str, list[str]]) -> TokenAmount | None:
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
