"""The provider table of this service: the built-in rows, and what GATEWAY_PROVIDERS_FILE adds or overrides.

The file is TOML, a table for each row: `[providers.<slug>]`. Every mistake is named in one line, none is skipped over.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from app.config import Settings
from app.core.money import nanos_from_usd
from app.gateway import price_table, providers, rows
from app.gateway.denials import FieldDenial
from app.gateway.dialects.facts import Dialect
from app.gateway.pricing import Rule, TokenPrices, rule_from
from app.gateway.providers import Credential, Kind, Provider, ProviderTable

_SLUG = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}", re.ASCII)
# Routes of ours below /v1/gateway/, which no provider can have.
_RESERVED = frozenset({"shopping"})
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_USD = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,9})?", re.ASCII)


def install(settings: Settings) -> None:
    """Read the table once and for all.

    Raises: SystemExit with one line for each mistake in the file.
    """
    providers.install(read_table(settings))
    # Half a second of work that forks share, and that the first call shall not wait for.
    price_table.tables()


def read_table(settings: Settings) -> ProviderTable:
    """Return the table. Raises: SystemExit."""
    table = rows.built_in(settings)
    mistakes: list[str] = []
    if settings.gateway_providers_file:
        for slug, given in _tables(settings.gateway_providers_file, mistakes).items():
            reader = _Row(slug, given, mistakes)
            row = reader.row(table.get(slug), floor_nanos=nanos_from_usd(settings.x402_price_usd))
            if row is not None:
                table[slug] = row
    mistakes += _shared_names(table)
    if mistakes:
        raise SystemExit("\n".join(["GATEWAY_PROVIDERS_FILE is not right:", *mistakes]))
    return ProviderTable(table)


def _tables(path: str, mistakes: list[str]) -> Mapping[str, Any]:
    try:
        with Path(path).open("rb") as file:
            read = tomllib.load(file)
    except OSError as error:
        mistakes.append(f"{path}: {error.strerror}")
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError):
        mistakes.append(f"{path}: it is no TOML")
        return {}
    mistakes += [f"{name}: only [providers.<slug>] is known" for name in read if name != "providers"]
    found = read.get("providers", {})
    if not isinstance(found, dict):
        mistakes.append("providers: must be a table")
        return {}
    return found


def _shared_names(table: Mapping[str, Provider]) -> list[str]:
    owners: dict[str, str] = {}
    return [
        f"providers.{row.slug}: the name {name} is taken by {owners[name]}"
        for row in table.values()
        for name in (row.slug, *row.aliases)
        if owners.setdefault(name, row.slug) != row.slug
    ]


class _Row:
    """Reads one table of the file. A field that is wrong is noted, and the others are read all the same."""

    def __init__(self, slug: str, given: Any, mistakes: list[str]) -> None:
        self._slug = slug
        self._given: Mapping[str, Any] = given if isinstance(given, dict) else {}
        self._mistakes = mistakes
        if not isinstance(given, dict):
            self._note("", "must be a table")
        if not _SLUG.fullmatch(slug) or slug in _RESERVED:
            self._note("", "this cannot be the name of a provider")

    def row(self, present: Provider | None, *, floor_nanos: int) -> Provider | None:
        """Return the row, made anew or changed; None where it cannot be made."""
        before = len(self._mistakes)
        readers: dict[str, Callable[[Any], Any]] = {
            "aliases": _names,
            "kind": Kind,
            "base_url": _base_url,
            "api_key": _text,
            "credential": _credential,
            "default_headers": _headers,
            "dialect": Dialect,
            "denied_routes": lambda value: rows.compiled(_texts(value)),
            "denied_methods": lambda value: re.compile("|".join(_texts(value)) or r"(?!)"),
            "denied_parameters": lambda value: rows.compiled(_texts(value)),
            "denied_fields": lambda value: tuple(FieldDenial.parse(text) for text in _texts(value)),
            "networks": _lower_map,
            "endpoints": lambda value: MappingProxyType(
                {name: _base_url(url) for name, url in _lower_map(value).items()}
            ),
            "price": _price,
            "x402_price_usd": _nanos,
        }
        read: dict[str, Any] = {}
        for name, value in self._given.items():
            if name not in readers:
                self._note(name, f"is unknown; known are {', '.join(readers)}")
                continue
            try:
                read[name] = readers[name](value)
            except (ValueError, TypeError, re.error) as error:
                self._note(name, str(error))
        if "x402_price_usd" in read:
            read["x402_floor_nanos"] = read.pop("x402_price_usd")
        if present is None:
            for name in sorted({"base_url", "price"} - set(self._given)):
                self._note(name, "is missing")
        if len(self._mistakes) > before:
            return None
        row = (
            replace(present, **read)
            if present
            else Provider(**{"slug": self._slug, "kind": Kind.OTHER, "x402_floor_nanos": floor_nanos, **read})
        )
        if isinstance(row.price, TokenPrices) != (row.dialect is not None):
            self._note("dialect", "goes with a price by tokens (price.table), and that with a dialect")
            return None
        return row

    def _note(self, name: str, problem: str) -> None:
        where = f"providers.{self._slug}.{name}" if name else f"providers.{self._slug}"
        self._mistakes.append(f"{where}: {problem}")


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError("must be a text")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError("must be a list of texts")
    return tuple(_text(each) for each in value)


def _names(value: Any) -> tuple[str, ...]:
    names = _texts(value)
    if not all(_SLUG.fullmatch(name) and name not in _RESERVED for name in names):
        raise ValueError("must be lower-case letters, digits, hyphens and underscores")
    return names


def _base_url(value: Any) -> str:
    text = _text(value)
    parts = urlsplit(text.replace("{network}", "network").replace("{key}", "key"))
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username or parts.fragment:
        raise ValueError("must look like https://host/path")
    return text.rstrip("/")


def _map(value: Any) -> Mapping[str, str]:
    if not isinstance(value, dict):
        raise TypeError("must be a table of texts")
    return {name: _text(each) for name, each in value.items()}


def _lower_map(value: Any) -> Mapping[str, str]:
    return MappingProxyType({name.lower(): text for name, text in _map(value).items()})


def _headers(value: Any) -> Mapping[str, str]:
    headers = _map(value)
    if not all(_HEADER.fullmatch(name) for name in headers):
        raise ValueError("must have names of headers")
    return MappingProxyType(dict(headers))


def _credential(value: Any) -> Credential:
    given = _map(value)
    if set(given) - {"header", "value"} or not _HEADER.fullmatch(given.get("header", "")):
        raise ValueError('must look like {header = "Authorization", value = "Bearer {key}"}')
    credential = Credential(**given)
    if "{key}" not in credential.value:
        raise ValueError("value must hold {key}")
    return credential


def _price(value: Any) -> Rule:
    if not isinstance(value, dict):
        raise TypeError("must be a table")
    return rule_from(value)


def _nanos(value: Any) -> int:
    if not isinstance(value, str) or not _USD.fullmatch(value):
        raise ValueError('must be dollars in quotes, such as "0.01"')
    return nanos_from_usd(Decimal(value))
