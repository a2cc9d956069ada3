"""The provider table: one row for everything that is particular to an upstream, frozen when the service starts.

`GATEWAY_PROVIDERS_FILE` adds rows and overrides fields of these (`configured`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from urllib.parse import urlsplit

from flask import current_app

from app.errors import InvalidInput, NotFound
from app.gateway.denials import FieldDenial
from app.gateway.dialects.facts import Dialect
from app.gateway.pricing import Rule
from app.web.targets import Target

_EXTENSION = "gateway_providers"
NOTHING: Mapping[str, str] = MappingProxyType({})


def _nothing() -> Mapping[str, str]:
    return NOTHING


class Kind(StrEnum):
    """What a provider sells."""

    LANGUAGE_MODEL = "language-model"
    CHAIN_RPC = "chain-rpc"
    PRICE_DATA = "price-data"
    WEB_SEARCH = "web-search"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Credential:
    """Where the operator's key goes: a header whose value holds `{key}`. Without one it is part of the base."""

    header: str
    value: str = "{key}"


@dataclass(frozen=True, slots=True)
class Provider:
    """A row. `base_url` may hold `{key}` and, for a row with networks, `{network}`: never show it."""

    slug: str
    kind: Kind
    base_url: str = field(repr=False)
    price: Rule
    aliases: tuple[str, ...] = ()
    api_key: str = field(repr=False, default="")
    credential: Credential | None = None
    default_headers: Mapping[str, str] = field(default_factory=_nothing)
    dialect: Dialect | None = None
    denied_routes: tuple[re.Pattern[str], ...] = ()
    denied_fields: tuple[FieldDenial, ...] = ()
    denied_parameters: tuple[re.Pattern[str], ...] = ()
    # JSON-RPC: what no network answers, and all that an endpoint of ours does.
    denied_methods: re.Pattern[str] | None = None
    endpoint_methods: re.Pattern[str] | None = None
    # The first segment of the path names one of these: a word for `{network}`, or a whole base of its own.
    networks: Mapping[str, str] = field(default_factory=_nothing)
    endpoints: Mapping[str, str] = field(repr=False, default_factory=_nothing)
    x402_floor_nanos: int = 0

    @property
    def is_configured(self) -> bool:
        """Tell whether calls can be made."""
        return bool(self.api_key or self.endpoints)

    @property
    def chooses_network(self) -> bool:
        """Tell whether the first segment of the path names a network."""
        return bool(self.networks or self.endpoints)

    def credential_headers(self) -> Mapping[str, str]:
        """Return the headers that carry the operator's key."""
        if self.credential is None or not self.api_key:
            return NOTHING
        return {self.credential.header: self.credential.value.replace("{key}", self.api_key)}

    def place(self, target: Target) -> Place:
        """Find where a call goes. Raises: InvalidInput for an unknown network, NotFound below one."""
        if not self.chooses_network:
            return self._at(self.base_url, target)
        segment, rest = target.after_first()
        name = segment.lower()
        if rest.path:
            raise NotFound(f"JSON-RPC calls go to /v1/gateway/{self.slug}/{{chain}} itself.")
        if name in self.endpoints:
            return replace(self._at(self.endpoints[name], rest), methods=self.endpoint_methods)
        # A fixed map: what the caller writes never becomes part of a host name.
        network = self.networks.get(name) if self.api_key else None
        if network is None:
            known = ", ".join(self.segments())
            raise InvalidInput.field("chain", f"must be one of {known}")
        return self._at(self.base_url.replace("{network}", network), rest)

    def segments(self) -> tuple[str, ...]:
        """Return the names of networks that can be called."""
        return tuple(dict.fromkeys([*self.endpoints, *(self.networks if self.api_key else ())]))

    def _at(self, base_url: str, target: Target) -> Place:
        parts = urlsplit(base_url.replace("{key}", self.api_key))
        base_path = parts.path.rstrip("/")
        version = base_path.rpartition("/")[2]
        if version in {"v1", "v3"} and target.raw_path.startswith(f"{version}/"):
            # People write the version with and without it in what they give to a client as its base.
            _, target = target.after_first()
        query = "&".join(filter(None, [parts.query, target.query]))
        target = Target(target.raw_path, target.path, query)
        return Place(f"{parts.scheme}://{parts.netloc}", target.below(base_path), target.path)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a call goes: the origin, what stands on the request line, and the path below the base, decoded."""

    origin: str = field(repr=False)
    target: str = field(repr=False)
    path: str
    # The only JSON-RPC methods that may be called there; None: all that the row does not deny.
    methods: re.Pattern[str] | None = None


class ProviderTable:
    """All rows, found by slug or alias."""

    def __init__(self, rows: Mapping[str, Provider]) -> None:
        """Take the rows by slug."""
        self.rows = tuple(rows.values())
        self._by_name = {alias: row for row in self.rows for alias in (row.slug, *row.aliases)}

    def find(self, name: str) -> Provider:
        """Return a row. Raises: NotFound."""
        found = self._by_name.get(name)
        if found is None:
            raise NotFound("There is no such provider; GET /v1/providers lists them.")
        return found


def install(table: ProviderTable) -> None:
    """Make this the table of the application that is being built."""
    current_app.extensions[_EXTENSION] = table


def table() -> ProviderTable:
    """Return the table of the running application."""
    found: ProviderTable = current_app.extensions[_EXTENSION]
    return found
