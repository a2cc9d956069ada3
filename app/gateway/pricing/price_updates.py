"""Prices of models from GATEWAY_PRICES_URL: read and checked by a worker, stored, and used by all processes.

A list with one implausible price is refused as a whole, and the last good one stays in use: a mistake or an attacker
who makes calls cheap costs the operator money, without a sign of it.
"""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import structlog
from sqlalchemy import select

from app.core import clock
from app.core.strict_json import JsonNumber, parse_json
from app.db.tables import insert_into
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import InvalidInput
from app.gateway.pricing import price_table
from app.gateway.pricing.models import PriceList
from app.gateway.pricing.price_table import Rates
from app.ports.errors import PortError
from app.ports.upstream import read_json_text
from app.state import app_state

_log = structlog.get_logger(__name__)
# In US dollars per million tokens, and per thousand searches: nano-dollars each.
FIELDS: Mapping[str, tuple[str, int]] = {
    "input_usd_per_million": ("input", 10**3),
    "output_usd_per_million": ("output", 10**3),
    "cache_read_usd_per_million": ("cache_read", 10**3),
    "cache_write_usd_per_million": ("cache_write", 10**3),
    "search_usd_per_thousand": ("search", 10**6),
}
_MAX_BYTES, _MAX_SECONDS, _CHECK_SECONDS = 2**21, 20, 60
_MAX_USD, _MAX_DECIMALS = 10_000, 9
# The largest known cut of a list price is by four fifths.
_MAX_CUT = 10
_ACCEPTED, _REFUSED = "accepted", "refused"


class _InUse:
    """The prices of this process, by table and name; replaced as a whole."""

    prices: Mapping[tuple[str, str], Rates] = {}
    digest = version = ""
    next_check = 0


def find(table: str, name: str) -> Rates | None:
    """Return the listed rates of a model, or of the alias of a dated snapshot that the price table lacks."""
    if not _InUse.prices:
        return None
    plain, *aliases = price_table.candidates(table, name.lower())
    found = _InUse.prices.get((table, plain))
    if found is None and price_table.find_model(table, plain) is None:
        found = next((rates for each in aliases if (rates := _InUse.prices.get((table, each)))), None)
    return found


def version() -> str:
    """Return the version of the list in use, by time and content; empty without one."""
    return _InUse.version


def use(content: bytes, read_at: datetime | None = None) -> None:
    """Use a list, or only the bundled prices if it is empty. Raises: ValueError."""
    digest = hashlib.sha256(content).hexdigest() if content else ""
    prices = parse(content) if content else {}
    _InUse.version = f"prices/{read_at or clock.now():%Y%m%dT%H%MZ}-{digest[:12]}" if content else ""
    _InUse.prices, _InUse.digest, _InUse.next_check = prices, digest, 0


def follow() -> None:
    """Use the list that was accepted last, looked up once a minute. Not within a unit of work."""
    if not app_state().settings.gateway_prices_url or time.monotonic() < _InUse.next_check:
        return
    _InUse.next_check = int(time.monotonic()) + _CHECK_SECONDS
    accepted = stored().get(_ACCEPTED)
    if accepted is not None and accepted.digest != _InUse.digest:
        try:
            use(accepted.content.encode(), accepted.at)
        except ValueError as error:
            # A release that was installed since then finds it implausible: the prices in use stay.
            _log.error("price_list_refused", problem=str(error))
            _InUse.digest = accepted.digest


def refresh() -> str | None:
    """Read the list, check it and store it; return why it was refused, or None."""
    location = app_state().settings.gateway_prices_url
    content = b""
    try:
        content = _read(location)
        parse(content)
    except (ValueError, OSError, PortError) as error:
        problem = str(error) if isinstance(error, ValueError) else f"cannot be read ({type(error).__name__})"
        _log.error("price_list_refused", problem=problem)
        _store(_REFUSED, content, problem)
        return problem
    _store(_ACCEPTED, content, content.decode())
    _InUse.next_check = 0
    return None


def problem_since_accepted() -> str | None:
    """Return why the last list was refused, unless a later one was accepted."""
    found = stored()
    refused, accepted = found.get(_REFUSED), found.get(_ACCEPTED)
    if refused is None or (accepted is not None and accepted.at >= refused.at):
        return None
    return refused.content


def stored() -> dict[str, PriceList]:
    with read_only_unit() as session:
        found = session.scalars(select(PriceList)).all()
        session.expunge_all()
    return {each.kind: each for each in found}


def _store(kind: str, content: bytes, text: str) -> None:
    values = {"digest": hashlib.sha256(content).hexdigest(), "at": clock.now(), "content": text}
    with unit_of_work() as session:
        insert = insert_into(session, PriceList).values(kind=kind, **values)
        session.execute(insert.on_conflict_do_update(index_elements=["kind"], set_=values))


def _read(location: str) -> bytes:
    """Return the list at a path or URL. Raises: ValueError, OSError, PortError."""
    if not location.startswith("/"):
        parts = urlsplit(location)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return read_json_text(
            app_state().ports.upstream, f"{parts.scheme}://{parts.netloc}", target,
            max_bytes=_MAX_BYTES, seconds=_MAX_SECONDS,
        )  # fmt: skip
    with Path(location).open("rb") as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise ValueError(f"has more than {_MAX_BYTES} bytes")
    return content


def parse(content: bytes) -> Mapping[tuple[str, str], Rates]:
    """Return the rates of a list by table and model. Raises: ValueError with the first implausible price."""
    try:
        providers = parse_json(content)
    except InvalidInput as error:
        raise ValueError(f"is not valid JSON: {error.message}") from None
    if not isinstance(providers, dict) or not providers:
        raise ValueError('must be like {"openai": {"gpt-6": {"input_usd_per_million": 1, …}}}')
    found = {}
    for provider, models in providers.items():
        table = "google" if provider == "gemini" else provider
        if table not in price_table.table_names() or not isinstance(models, dict):
            raise ValueError(f"{provider[:40]}: is not a provider of the price table with an object of models")
        for name, row in models.items():
            where = f"{provider}: {name[:80]}"
            if not isinstance(row, dict) or set(row) - set(FIELDS) or not set(list(FIELDS)[:2]) <= set(row):
                raise ValueError(f"{where}: must have input and output, and nothing else than {', '.join(FIELDS)}")
            rates = Rates(**{kind: _rate(f"{where}: {each}", row[each]) * scale
                             for each, (kind, scale) in FIELDS.items() if each in row})  # fmt: skip
            _check_plausible(where, table, name.lower(), rates)
            found[table, name.lower()] = rates
    return found


def _rate(where: str, value: Any) -> Decimal:
    number = value.decimal if isinstance(value, JsonNumber) else value
    if isinstance(number, bool) or not isinstance(number, int | Decimal) or not 0 <= number <= _MAX_USD:
        raise ValueError(f"{where}: must be a number from 0 to {_MAX_USD}")
    if number != round(number, _MAX_DECIMALS):
        raise ValueError(f"{where}: must have at most {_MAX_DECIMALS} decimals")
    return Decimal(number)


def _check_plausible(where: str, table: str, name: str, rates: Rates) -> None:
    """Refuse a price below a tenth of the bundled one; of a new model, of the provider's cheapest one."""
    known = price_table.find_model(table, name)
    at = clock.now()
    least = known.rates(at, 0) if known is not None else price_table.min_rates(table, at)
    for kind, _ in FIELDS.values():
        listed, expected = getattr(rates, kind), getattr(least, kind)
        if listed is not None and expected is not None and listed * _MAX_CUT < expected:
            raise ValueError(f"{where}: its {kind} costs less than a tenth of {expected / 1000:f} USD per million")
    if known is not None and known.is_free(at):
        return
    if not rates.input or (not rates.output and "embed" not in name and not (known and not least.output)):
        raise ValueError(f"{where}: has a price of zero")


def complete(listed: Rates, rates: Rates) -> Rates:
    """Return rates in which those of a list replace the others."""
    given = {kind: rate for kind, _ in FIELDS.values() if (rate := getattr(listed, kind)) is not None}
    return replace(rates, **given)
