"""Formatting of amounts, times and transactions on the pages. No I/O."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from markupsafe import Markup, escape

from app.core import clock, money
from app.core.movement_kinds import MovementKind
from app.movements import KINDS
from app.wallets.transactions.failures import MESSAGES
from app.wallets.views.history import TransactionView

_CENT_NANOS = money.NANOS_PER_USD // 100
_MAX_UNABBREVIATED = 18
_SHOWN_DIGITS = 4
_TYPES = {
    "funding": "Deposit", "trading_query": "Exchange query", "trading_order": "Exchange order",
    "payment": "Web service",
}  # fmt: skip
_CHAINS = {"ethereum": "Ethereum", "base": "Base", "solana": "Solana", "perpdex": "Trading exchange"}


def usd(nanos: int) -> str:
    """Format dollars to the cent; less than a cent is shown as such."""
    if 0 < nanos < _CENT_NANOS:
        return "< $0.01"
    cents = (nanos + _CENT_NANOS // 2) // _CENT_NANOS
    return f"${cents // 100:,}.{cents % 100:02}"


def usd_down(nanos: int) -> str:
    """Format dollars that are left: never more than there are."""
    return usd(nanos // _CENT_NANOS * _CENT_NANOS) if nanos >= _CENT_NANOS else usd(nanos)


def token_amount(text: str) -> str:
    """Format a decimal string with thousands separators; long fractions are truncated, never rounded up."""
    whole, _, fraction = text.partition(".")
    fraction = fraction[:8].rstrip("0")
    shown = f"{int(whole):,}"
    if not fraction and whole == "0" and text.strip("0."):
        return "< 0.00000001"
    return f"{shown}.{fraction}" if fraction else shown


def short_amount(text: str, currency: str) -> str:
    """Format an amount for a list: one in dollars to the cent, others as `token_amount` does."""
    is_dollars = currency in ("USDC", "USD")
    return usd(money.nanos_from_usd(Decimal(text))).replace("$", "") if is_dollars else token_amount(text)


def instant(moment: datetime, form: str = "%-d %b %Y, %H:%M") -> Markup:
    """Format a time, readable for people and programs."""
    text = moment.astimezone(UTC).strftime(form)
    return Markup('<time datetime="{}">{} UTC</time>').format(clock.isoformat(moment), text)


def age(moment: datetime) -> str:
    """Return how long ago something was, in its largest unit."""
    elapsed = max(timedelta(), clock.now() - moment)
    for unit, length in (("day", timedelta(days=1)), ("hour", timedelta(hours=1)), ("minute", timedelta(minutes=1))):
        count = elapsed // length
        if count:
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "less than a minute ago"


def abbreviate(text: str) -> Markup:
    """Abbreviate an address or hash to its ends, with the whole as a tooltip."""
    if len(text) <= _MAX_UNABBREVIATED:
        return escape(text)
    first = _SHOWN_DIGITS + len("0x") * text.startswith("0x")
    return Markup('<abbr class="short" title="{}">{}…{}</abbr>').format(text, text[:first], text[-_SHOWN_DIGITS:])


def chain_name(name: str) -> str:
    return _CHAINS.get(name, name)


def transaction_title(transaction: TransactionView) -> str:
    kind = transaction.kind if transaction.kind in KINDS else transaction.type
    return _TYPES.get(transaction.type) or kind_title(str(kind))


def failure_reason(code: str) -> str:
    return MESSAGES.get(code, code.replace("_", " ").capitalize() + ".")


def kind_title(kind: str) -> str:
    return KINDS[MovementKind(kind)].title


FILTERS = (
    kind_title, usd, usd_down, token_amount, short_amount, instant, age, abbreviate,
    chain_name, transaction_title, failure_reason,
)  # fmt: skip
