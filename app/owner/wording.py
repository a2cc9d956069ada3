"""How the pages write figures, instants and transactions. Pure, but for the filters' registration."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from markupsafe import Markup, escape

from app.core import clock, money
from app.owner.door import entrance
from app.wallets.history import TransactionView

_CENT_NANOS = money.NANOS_PER_USD // 100
_SHORT = 18
_TYPES = {
    "transfer": "Transfer",
    "withdrawal": "Withdrawal",
    "funding": "Deposit",
    "swap": "Swap",
    "trading_query": "Exchange query",
    "trading_order": "Exchange order",
}
_KINDS = {"bridge": "Bridge", "topup": "Credit top-up"}
_STATUSES = {"pending": "Pending", "confirmed": "Confirmed", "failed": "Failed"}
_CHAINS = {"ethereum": "Ethereum", "base": "Base", "solana": "Solana", "perpdex": "Trading exchange"}
_REASONS = {
    "insufficient_funds": "The wallet did not hold enough.",
    "insufficient_gas": "The wallet did not hold enough of the chain's own token for the fee.",
    "simulation_failed": "The chain would not have carried it out.",
    "reverted": "The chain did not carry it out.",
    "chain_unreachable": "The chain could not be reached. Nothing was sent.",
    "network_fee_too_high": "The network fee was above the operator's bound.",
    "expired": "It was not paid in time.",
    "price_moved": "The price moved too far.",
    "price_deviation": "The market's price was too far from the true one.",
}


@entrance.app_template_filter("usd")
def usd(nanos: int) -> str:
    """Write dollars to the cent; what is less than one but not nothing is said to be so."""
    if 0 < nanos < _CENT_NANOS:
        return "< $0.01"
    cents = (nanos + _CENT_NANOS // 2) // _CENT_NANOS
    return f"${cents // 100:,}.{cents % 100:02}"


@entrance.app_template_filter("usd_exact")
def usd_exact(nanos: int) -> str:
    """Write dollars as a form takes them, to the last digit."""
    return money.decimal_string(nanos, 9)


@entrance.app_template_filter("token_amount")
def token_amount(text: str) -> str:
    """Write a decimal string with separated thousands; long fractions are cut, never rounded up."""
    whole, _, fraction = text.partition(".")
    fraction = fraction[:8].rstrip("0")
    shown = f"{int(whole):,}"
    if not fraction and whole == "0" and text.strip("0."):
        return "< 0.00000001"
    return f"{shown}.{fraction}" if fraction else shown


@entrance.app_template_filter("instant")
def instant(moment: datetime) -> Markup:
    """Write an instant for people and for programs."""
    text = moment.astimezone(UTC).strftime("%-d %b %Y, %H:%M")
    return Markup('<time datetime="{}">{} UTC</time>').format(clock.isoformat(moment), text)


@entrance.app_template_filter("soon")
def soon(moment: datetime) -> Markup:
    """Write an instant within the next weeks, without its year."""
    text = moment.astimezone(UTC).strftime("%-d %b, %H:%M")
    return Markup('<time datetime="{}">{} UTC</time>').format(clock.isoformat(moment), text)


@entrance.app_template_filter("age")
def age(moment: datetime) -> str:
    """Say how long ago something was, in its largest unit."""
    passed = max(timedelta(), clock.now() - moment)
    for unit, length in (
        ("day", timedelta(days=1)),
        ("hour", timedelta(hours=1)),
        ("minute", timedelta(minutes=1)),
    ):
        count = passed // length
        if count:
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "less than a minute ago"


@entrance.app_template_filter("short")
def short(text: str) -> Markup:
    """Write an address or hash by its ends; the whole of it is there for whoever points at it."""
    if len(text) <= _SHORT:
        return escape(text)
    return Markup('<abbr class="short" title="{}">{}…{}</abbr>').format(text, text[:8], text[-6:])


@entrance.app_template_filter("chain_name")
def chain_name(name: str) -> str:
    """Write a chain's name."""
    return _CHAINS.get(name, name)


@entrance.app_template_filter("what")
def what(transaction: TransactionView) -> str:
    """Say what a transaction is."""
    return _KINDS.get(transaction.kind or "") or _TYPES.get(transaction.type, transaction.type)


@entrance.app_template_filter("status_name")
def status_name(status: str) -> str:
    """Write a transaction's status."""
    return _STATUSES.get(status, status)


@entrance.app_template_filter("reason")
def reason(code: str) -> str:
    """Say why a transaction failed."""
    return _REASONS.get(code, code.replace("_", " ").capitalize() + ".")
