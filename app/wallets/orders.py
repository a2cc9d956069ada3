"""What callers ask for, as values: chain, token, amount and recipient checked against each other.

Every problem of a request is named at once; nothing here touches the database or the network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.core import addresses
from app.core.chains import TOKENS_BY_SYMBOL, ChainName, tokens
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


_UNFIT_RECIPIENTS: Mapping[str, str] = {
    "program": "is a program, which could not use what it gets",
    "token_account_or_mint": "is a token account or a mint; send to the wallet that owns it",
    "given_away": "has given its token account to somebody else, who would get the tokens",
    "no_wallet": "is no wallet's address and was never used; tokens sent there may be lost",
}


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


def bad_request(reason: str, details: Mapping[str, str]) -> InvalidInput | None:
    """Return the answer to what only the chain could find wrong with a request; None for any other refusal."""
    if reason == "amount_below_rent":
        least = details.get("minimum")
        return InvalidInput.field("amount", f"must be at least {least} for an address that was never used")
    if reason == "invalid_recipient":
        kind = _UNFIT_RECIPIENTS.get(details.get("recipient_is", ""), "cannot be paid")
        return InvalidInput.field("to", kind)
    return None


def _parse_chain(text: str, problems: dict[str, list[str]]) -> ChainName | None:
    served = provider.current().chains
    for name in served:
        if name.value == text.lower():
            return name
    problems["chain"] = [f"must be one of {', '.join(served)}"]
    return None


def _parse_amount(
    chain: ChainName | None, amount: str, currency: str, problems: dict[str, list[str]]
) -> TokenAmount | None:
    # Only ASCII: some other letters become these symbols in upper case.
    token = TOKENS_BY_SYMBOL.get(currency.upper()) if currency.isascii() else None
    if chain is not None and token not in tokens(chain):
        problems["currency"] = [f"must be one of {', '.join(t.symbol for t in tokens(chain))} on {chain}"]
        return None
    if token is None:
        problems["currency"] = [f"must be one of {', '.join(TOKENS_BY_SYMBOL)}"]
        return None
    try:
        return parse_amount(amount, token)
    except AmountError as error:
        problems["amount"] = [str(error)]
        return None


def _invalid(problems: dict[str, list[str]]) -> InvalidInput:
    first = next(iter(problems))
    return InvalidInput(f"{first} {problems[first][0]}.", details={"fields": problems})
