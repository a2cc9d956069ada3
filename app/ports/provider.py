"""How rooms reach the ports and settings of the running application, without importing any adapter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from flask import current_app

from app.core.chains import ChainName
from app.ports.bridges import Bridge, Route
from app.ports.chain import Chain
from app.ports.faucet import Faucet
from app.ports.perpdex import Perpdex
from app.ports.prices import Prices
from app.ports.queue import JobQueue
from app.ports.shopper import Shopper
from app.ports.specifications import Specifications
from app.ports.swaps import Exchange
from app.ports.tallies import Tallies
from app.ports.till import Till
from app.ports.upstream import Upstream
from app.ports.vault import Vault

if TYPE_CHECKING:
    from app.config import Settings


class PortSet(Protocol):
    """What `app.wiring` builds: one attribute per port."""

    @property
    def chains(self) -> Mapping[ChainName, Chain]:
        """Chains on which wallets move tokens."""
        ...

    @property
    def exchanges(self) -> Mapping[ChainName, Exchange]:
        """Where tokens are swapped, by chain; a subset of `chains`."""
        ...

    @property
    def tills(self) -> Mapping[ChainName, Till]:
        """What reads and submits payments on each chain."""
        ...

    @property
    def bridges(self) -> Mapping[Route, tuple[Bridge, ...]]:
        """How tokens go from chain to chain: by route, the way that is tried first before the others."""
        ...

    @property
    def vault(self) -> Vault:
        """Custody of keys."""
        ...

    @property
    def prices(self) -> Prices:
        """Token prices."""
        ...

    @property
    def queue(self) -> JobQueue:
        """The job queue."""
        ...

    @property
    def tallies(self) -> Tallies:
        """Where the counts of all processes are added up."""
        ...

    @property
    def upstream(self) -> Upstream:
        """What reaches the services that the operator configured."""
        ...

    @property
    def public_upstream(self) -> Upstream:
        """What reaches addresses that others gave us: the public internet, and nothing inside."""
        ...

    @property
    def specifications(self) -> Specifications:
        """What reads OpenAPI documents of strangers."""
        ...

    @property
    def shopper(self) -> Shopper | None:
        """Who buys in web shops; None on a machine without a browser."""
        ...

    @property
    def faucet(self) -> Faucet | None:
        """The sandbox's faucet; None elsewhere."""
        ...

    @property
    def perpdex(self) -> Perpdex:
        """The perpetual-futures exchange."""
        ...


def current() -> PortSet:
    """Return the ports of the running application."""
    ports: PortSet = current_app.extensions["ports"]
    return ports


def settings() -> Settings:
    """Return the settings of the running application."""
    configured: Settings = current_app.extensions["settings"]
    return configured
