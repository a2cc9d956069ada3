"""What callers ask for, as values: chain, token, amount and recipient checked against each other.

Every problem of a request is named at once; nothing here touches the database or the network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

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
    kind: str | None = None
    # Of what goes to the service itself, an allowlist says nothing.
    needs_allowlist: bool = True


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


def to_the_service(order: Order, *, kind: str) -> Order:
    """Return an order whose recipient is the service itself, which needs no place in an allowlist."""
    return replace(order, kind=kind, needs_allowlist=False)


def bad_request(reason: str, details: Mapping[str, str]) -> InvalidInput | None:
    """Return the answer to what only the chain could find wrong with a request; None for any other refusal."""
    problems = {
        "invalid_recipient": ("to", "is a token account, mint or program; send to the wallet that owns it"),
        "amount_below_rent": (
            "amount",
            f"must be at least {details.get('minimum')} for an address that was never used",
        ),
    }
    return InvalidInput.field(*problems[reason]) if reason in problems else None


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
