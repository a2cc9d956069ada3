"""Money on pages: amounts, their currency, and which of them is the total. No I/O.

What cannot be read with certainty is None: an unknown currency is not the dollar, and an unread total never buys.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import pycountry

_NANOS = 10**9
USD = "USD"

_SYMBOLS = {
    "€": "EUR", "£": "GBP", "¥": "JPY", "₹": "INR", "₩": "KRW", "₽": "RUB", "₺": "TRY", "₪": "ILS", "฿": "THB",
    "kr": "SEK", "zł": "PLN", "Kč": "CZK", "Rs": "INR", "Fr": "CHF",
    "US$": USD, "CA$": "CAD", "C$": "CAD", "CAD$": "CAD", "A$": "AUD", "AU$": "AUD", "NZ$": "NZD", "HK$": "HKD", "S$": "SGD",
    "SG$": "SGD", "MX$": "MXN", "R$": "BRL", "NT$": "TWD", "TT$": "TTD", "J$": "JMD", "BZ$": "BZD",
}  # fmt: skip
DOLLAR = "$"
_UNKNOWN = "XXX"  # ISO 4217's code for no currency
_SYMBOL = "|".join(sorted((re.escape(symbol) for symbol in [*_SYMBOLS, DOLLAR]), key=len, reverse=True))
_CURRENCY = rf"(?:{_SYMBOL}|\b[A-Z]{{3}}\b)"
_NUMBER = r"\d{1,3}(?:[ ,.'’\u00a0\u202f]\d{3})+(?:[.,]\d{1,2})?(?!\d)|\d+(?:[.,]\d{1,2})?(?![\d%])"
_AMOUNT = re.compile(
    rf"(?P<sign>[-−–(]\s?)?(?P<before>{_CURRENCY})?\s?(?P<sign2>[-−])?(?<![\w.,])(?P<number>{_NUMBER})\s?(?P<after>{_CURRENCY})?"
)
# Countries that write their currency with the same sign.
_OTHER_DOLLARS = frozenset(
    (
        "AU", "CA", "NZ", "HK", "SG", "MX", "TW", "BS", "BB", "BZ", "BM", "BN", "KY", "FJ", "GY", "JM", "LR", "NA", "SB",
        "SR", "TT", "CL", "CO", "AR", "DO", "UY", "NI", "AG", "DM", "GD", "KN", "LC", "VC", "CU", "CV", "KI", "TO", "TV", "WS",
    )
)  # fmt: skip
_DOLLAR_CODES = re.compile(
    r"\b(AUD|CAD|NZD|HKD|SGD|MXN|TWD|BSD|BBD|BZD|BMD|BND|KYD|FJD|GYD|JMD|LRD|NAD|SBD|SRD|TTD|XCD|CLP|COP|ARS|DOP|UYU|NIO)\b"
)
_LABELLED_DOLLARS = re.compile(
    r"(?<![A-Za-z])(?:CA|C|A|AU|NZ|HK|S|SG|MX|Mex|NT|TT|J|JM|BZ|Bds|CI|KY|RD|EC|XC|FJ|GY|L|N|SI|AR|CL|COL?)\$"
    r"|\$\s?(?:CA|CAN|AU|AUS|NZ|HK|SG|MX|TT|JM|BZ|NT|U)\b"
)
# Letters before the sign of one amount are a country's, known here or not; words glued to it ("TAX$5") are none.
_LETTERED_AMOUNT = re.compile(
    r"(?<![A-Za-z])(?!US\$|(?:TAX|VAT|GST|QTY|NOW|PAY)\$)(?:[A-Z]{1,3}|Bds|Can|Col|Mex|NAf)\$"
)
_NAMED_DOLLARS = re.compile(
    r"\b(canadian|australian|new zealand|hong kong|singapore|mexican|taiwan|jamaican|bahamian|barbadian|belize|bermudian|cayman"
    r"|brunei|fijian|guyanese|liberian|namibian|solomon|surinamese|trinidad|caribbean|chilean|colombian|argentine|dominican)"
    r"[\w ]{0,12} (dollar|peso)s?\b",
    re.IGNORECASE,
)

_TOTAL = re.compile(
    r"\btotal|\bamount (due|payable|to pay)|\bto(tal to)? pay\b|\byou pay\b|\bbalance due\b|\bgesamt|\bsumme\b|\bmontant\b|\bdue (now|today)\b"
    r"|\bnet à payer\b|\brechnungsbetrag|\bzu zahlen\b",
    re.IGNORECASE,
)
# The total of something less than the order, which none of its parts is either.
_LESS_THAN_TOTAL = re.compile(
    r"\be[xk][ck]l|\bwithout\b|\bbefore\b|\bohne\b|\bzzgl\b|netto|\bhors\b|\bHT\b", re.IGNORECASE
)
_NOT_TOTAL = re.compile(
    r"sub.?total|zwischensumme|sous-total|excl|without|before|discount|saving|saved|total items|items total|item total|goods|merchandise|products total"
    r"|total (shipping|delivery|tax|vat|weight|quantity|discount|savings)|(shipping|delivery|tax|vat|discount) total|earn|points|per month|installment"
    r"|ersparnis|\b(montant|total|summe) (de la|des|du|der|de) (tva|taxe|frais|livraison|port\b|remise|articles|produits|artikel|steuer)",
    re.IGNORECASE,
)
_GOODS = re.compile(
    r"sub.?total|zwischensumme|sous-total|items? total|total items|goods|merchandise|products? total|total (of )?(goods|products|items)"
    r"|\bwarenwert|\bsumme der artikel|\b(montant|total) des (articles|produits)",
    re.IGNORECASE,
)
_SHIPPING = re.compile(
    r"shipping|delivery|postage|freight|handling|versand|livraison|\bfrais de port\b|\bporto\b", re.IGNORECASE
)
_TAX = re.compile(r"\btax|\bvat\b|\bgst\b|\bmwst|\btva\b|\bust\b|(umsatz|mehrwert|\b)steuer|\bfee", re.IGNORECASE)
# "Total (including tax $0.00) $17.00": what the total contains is neither the total nor added to it.
_CONTAINED = re.compile(r"(?<!not )\bincl|\binkl|\bof which\b|\bdavon\b|\bdont\b", re.IGNORECASE)
_NOTE = re.compile(rf"\(\s*(?:{_CONTAINED.pattern})[^()]*\)", re.IGNORECASE)
_DISCOUNT = re.compile(r"discount|promo|saving|coupon|voucher|rabatt|remise", re.IGNORECASE)
# "Basket total (after discounts)" is a total.
_AFTER_DISCOUNT = re.compile(
    rf"\b(after|with|less|incl\w*|nach|abzüglich|inkl\w*|après)\s+(\w+\s+)?(?:{_DISCOUNT.pattern})\w*", re.IGNORECASE
)
_FREE = re.compile(r"\bfree\b|\bkostenlos\b|\bgratuit", re.IGNORECASE)
_NO_LABEL = re.compile(r"[\s:.·|*()\[\]-]*")
MAX_LABEL_LENGTH = 70


class AmountKind(StrEnum):
    """The kind of a labelled amount."""

    TOTAL = "total"
    GOODS = "goods"
    SHIPPING = "shipping"
    TAX = "tax"
    CONTAINED = "contained"
    """In the total already, such as the tax of prices that include it."""
    DISCOUNT = "discount"
    PART = "part"
    """The rank of a total found by its sum, with a label in no known language."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class PageAmount:
    """An amount on a page: exact, in billionths; `currency` is a code, `$` or None."""

    nanos: int
    currency: str | None


@dataclass(frozen=True, slots=True)
class LabelledAmount:
    """An amount with the label before it."""

    label: str
    kind: AmountKind
    amount: PageAmount


@dataclass(frozen=True, slots=True)
class CurrencyHints:
    """Evidence of a page's currency: declared codes, the language, the host, its text."""

    declared: tuple[str, ...] = ()
    language: str = ""
    host: str = ""
    text: str = ""


def amounts(text: str) -> list[PageAmount]:
    """Return the amounts in a text that have a currency; negative ones are left out."""
    return [amount for amount, _, _ in _find_amounts(text) if amount.currency is not None]


def resolve(currency: str | None, hints: CurrencyHints) -> str | None:
    """Return the code of a currency, or None when the page does not determine it.

    A bare dollar sign is the US dollar, unless anything on the page indicates another country's.
    """
    if currency != DOLLAR:
        return None if currency == _UNKNOWN else currency
    declared = {code.upper() for code in hints.declared if code}
    if declared:
        return declared.pop() if len(declared) == 1 else None
    region = hints.language.replace("_", "-").rpartition("-")[2].upper()
    top_level = hints.host.rpartition(".")[2].upper()
    if "-" in hints.language.replace("_", "-") and region in _OTHER_DOLLARS:
        return None
    if top_level in _OTHER_DOLLARS:
        return None
    others = (_LABELLED_DOLLARS, _DOLLAR_CODES, _NAMED_DOLLARS)
    return None if any(other.search(hints.text) for other in others) else USD


def parse_decimal(text: str) -> int | None:
    """Return a machine-readable price (`12.50`) in billionths, or None."""
    if not re.fullmatch(r"\s*\d{1,12}([.,]\d{1,9})?\s*", text):
        return None
    whole, _, fraction = text.strip().replace(",", ".").partition(".")
    return int(whole) * _NANOS + int(fraction.ljust(9, "0") or "0")


def labelled_amounts(text: str) -> list[LabelledAmount]:
    """Return the labelled amounts of a page's text, in its order.

    A label is in the amount's line, or in the lines above: one label for one amount, or a run of labels
    followed by a run of as many amounts.
    """
    found: list[LabelledAmount] = []
    labels: list[str] = []
    values: list[PageAmount] = []
    for raw_line in text.splitlines():
        line = raw_line
        for note in _NOTE.finditer(raw_line):
            if inside := _split(note[0].strip("()"))[1]:
                found += [LabelledAmount(note[0], AmountKind.CONTAINED, amount) for amount in inside]
                line = line.replace(note[0], " ")
        words, inside = _split(line)
        if len(inside) == 1 and _CONTAINED.match(words) and not _CONTAINED.match(line.strip()):
            # "$12.00 incl. 7% VAT": a note after an amount is not its label.
            words = ""
        if inside and words:
            found += _paired(labels, values)
            labels, values = [], []
            found += [_label(words, amount) for amount in inside]
        elif inside:
            values += inside
        elif _FREE.fullmatch(line.strip()):
            values.append(PageAmount(0, None))
        elif words:
            if values:
                found += _paired(labels, values)
                labels, values = [], []
            labels.append(line.strip())
    return found + _paired(labels, values)


def total_of(rows: Sequence[LabelledAmount]) -> PageAmount | None:
    """Return the total: the largest amount labelled so. None without one."""
    totals = [row.amount for row in rows if row.kind is AmountKind.TOTAL]
    return max(totals, key=lambda amount: amount.nanos, default=None)


def goods_match(rows: Sequence[LabelledAmount], expected_nanos: int) -> bool | None:
    """Return whether the price of the goods is as expected; None when the page does not show it.

    It is the subtotal; without one, the total less what is labelled as shipping, taxes and the like.
    """
    goods = [row.amount.nanos for row in rows if row.kind is AmountKind.GOODS]
    if goods:
        # Each line may have a sum of its own; the largest is the overall one.
        return max(goods) == expected_nanos
    total = total_of(rows)
    if total is None:
        return None
    extra = _sum(rows, AmountKind.SHIPPING) + _sum(rows, AmountKind.TAX)
    less = _sum(rows, AmountKind.DISCOUNT)
    shipping = _sum(rows, AmountKind.SHIPPING)
    # Prices include taxes in some countries and exclude them in others.
    candidates = {
        total.nanos,
        total.nanos - extra,
        total.nanos - shipping,
        total.nanos - extra + less,
        total.nanos + less,
    }
    return expected_nanos in candidates


def _sum(rows: Iterable[LabelledAmount], kind: AmountKind) -> int:
    # The same row is often shown twice, in a summary and in a table.
    return sum({(row.label.lower(), row.amount.nanos): row.amount.nanos for row in rows if row.kind is kind}.values())


def words_of(line: str) -> str:
    """Return a line without its amounts."""
    return _split(line)[0]


def _split(line: str) -> tuple[str, list[PageAmount]]:
    found = _find_amounts(line)
    money = [(amount, start, end) for amount, start, end in found if amount.currency is not None]
    if not money:
        # "Total: 17.00": a figure with decimals and no currency is an amount of unknown currency.
        money = [
            (amount, start, end)
            for amount, start, end in found
            if re.search(r"[.,]\d\d\b", line[start:end]) and kind_of(line[:start]) is not AmountKind.OTHER
        ]
    words = line
    for _, start, end in reversed(money):
        words = words[:start] + " " + words[end:]
    return ("" if _NO_LABEL.fullmatch(words) else words.strip()), [amount for amount, _, _ in money]


def _paired(labels: Sequence[str], values: Sequence[PageAmount]) -> list[LabelledAmount]:
    if not values:
        return []
    if len(values) > 1 and len(labels) >= len(values):
        return [_label(label, value) for label, value in zip(labels[-len(values) :], values, strict=True)]
    return [_label(labels[-1] if labels else "", value) for value in values]


def _label(words: str, amount: PageAmount) -> LabelledAmount:
    label = " ".join(words.split())[:200]
    return LabelledAmount(label, kind_of(label), amount)


def kind_of(label: str) -> AmountKind:
    """Return what a label says about its amount."""
    if not label or len(label) > MAX_LABEL_LENGTH:
        return AmountKind.OTHER
    label = _AFTER_DISCOUNT.sub("", label)
    if discount := _DISCOUNT.search(label):
        # "Total before discount" is neither.
        return AmountKind.OTHER if _LESS_THAN_TOTAL.search(label[: discount.start()]) else AmountKind.DISCOUNT
    if _GOODS.search(label):
        return AmountKind.GOODS
    is_less = _LESS_THAN_TOTAL.search(_NOTE.sub("", label))
    if _TOTAL.search(label) and (is_less or not _NOT_TOTAL.search(label)):
        return AmountKind.OTHER if is_less else AmountKind.TOTAL
    if _SHIPPING.search(label):
        return AmountKind.SHIPPING
    tax = AmountKind.CONTAINED if _CONTAINED.search(label) else AmountKind.TAX
    return tax if _TAX.search(label) else AmountKind.OTHER


def _find_amounts(text: str) -> list[tuple[PageAmount, int, int]]:
    found = []
    for match in _AMOUNT.finditer(text):
        if match["sign"] or match["sign2"]:
            continue
        currencies = {code for code in (_code(match["before"]), _code(match["after"])) if code}
        around = text[max(0, match.start() - 4) : match.end() + 4]
        if DOLLAR in currencies and (_LETTERED_AMOUNT.search(around) or _LABELLED_DOLLARS.search(around)):
            currencies.discard(DOLLAR)
            currencies.add(_UNKNOWN)
        if len(currencies) > 1:
            currencies.discard(DOLLAR)
        currency = currencies.pop() if len(currencies) == 1 else None
        nanos = _nanos(match["number"])
        if nanos is not None:
            found.append((PageAmount(nanos, currency), match.start(), match.end()))
    return found


def _code(text: str | None) -> str | None:
    if not text or text == DOLLAR:
        return text
    if text in _SYMBOLS:
        return _SYMBOLS[text]
    return text if pycountry.currencies.get(alpha_3=text) else None


def _nanos(number: str) -> int | None:
    groups = re.split(r"[^\d]", number)
    last_is_fraction = len(groups) > 1 and len(groups[-1]) < 3
    whole = "".join(groups[:-1] if last_is_fraction else groups)
    fraction = groups[-1] if last_is_fraction else ""
    if len(whole) > 12:
        return None
    return int(whole) * _NANOS + int(fraction.ljust(9, "0") or "0")
