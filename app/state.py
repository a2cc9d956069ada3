"""The state of one application, built by `app.factory` and read through `app_state()`."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from flask import Flask, current_app, has_app_context
from sqlalchemy.orm import Session

from app.capacity.limiter import ConcurrencyLimiter, RateLimiter
from app.config import Settings
from app.core.chains import ChainName
from app.errors import TransactionInProgress
from app.ports.bridges import BridgeProvider, BridgeRoute
from app.ports.chain import Chain
from app.ports.facilitator import Facilitator, GasSponsor, PaymentSigner, TransferSponsor
from app.ports.perpdex import Perpdex
from app.ports.probes import Probe
from app.ports.services import CounterStore, Faucet, JobQueue, Mailer, PriceFeed
from app.ports.shopper import Shopper
from app.ports.specifications import SpecificationReader
from app.ports.swaps import SwapExchange
from app.ports.upstream import Upstream
from app.ports.vault import SignerProcess, Vault
from server.hooks import Hooks
from server.pool import ResourcePool

PartT = TypeVar("PartT")


@dataclass(frozen=True, slots=True)
class Ports:
    """The adapters that `app.wiring` chose, one attribute per port."""

    chains: Mapping[ChainName, Chain]
    swap_exchanges: Mapping[ChainName, SwapExchange]
    """A subset of `chains`."""
    facilitators: Mapping[ChainName, Facilitator]
    payment_signers: Mapping[ChainName, PaymentSigner]
    """A subset of `chains`: those on which wallets can pay web services."""
    sponsors: Mapping[ChainName, TransferSponsor]
    """A subset of `chains`: those on which the service can pay the network fee of a transfer."""
    bridges: Mapping[BridgeRoute, tuple[BridgeProvider, ...]]
    """In the order in which they are tried."""
    vault: Vault
    prices: PriceFeed
    queue: JobQueue
    counters: CounterStore
    upstream: Upstream
    """The client for services that the operator configured."""
    public_upstream: Upstream
    """The client for addresses that others supplied: the public internet, and nothing inside."""
    specifications: SpecificationReader
    faucet: Faucet | None
    """None outside the sandbox."""
    perpdex: Perpdex
    shopper: Shopper | None
    """None on a machine without a browser."""
    mailer: Mailer | None = None
    """None without a mail server."""
    signer: SignerProcess | None = None
    """None if this process signs itself."""
    probes: Callable[[], Sequence[Probe]] = tuple
    """Returns what can be asked of each endpoint and each price source, which the ports hide."""


@dataclass(frozen=True, slots=True)
class AppState:
    """What one application consists of. Pools and caches inside change; which ones there are does not."""

    settings: Settings
    ports: Ports
    threads: ResourcePool
    forwarding_limiter: ConcurrencyLimiter
    rate_limiter: RateLimiter
    provider_listings: tuple[Callable[[], dict[str, object]], ...]
    """Providers that packages other than the gateway serve below `/v1/gateway/`, for the list of providers."""
    wallet_deletion_guards: tuple[Callable[[Session, str], TransactionInProgress | None], ...]
    """May refuse the deletion of a wallet, inside its unit."""
    wallet_deletion_listeners: tuple[Callable[[Session, str], None], ...]
    """Remove the rows of higher layers that depend on a deleted wallet, inside its unit."""
    gas_sponsor: Callable[[ChainName, int], GasSponsor]
    """Returns the service's wallet that pays network fees on a chain. Raises: Rejected("gas_unavailable")."""
    is_address_named: Callable[[str, str, str], bool]
    """Returns whether the owner of an agent has named an address of a chain; agents cannot."""
    balance_readers: Mapping[ChainName, Executor]
    foreign_readers: Mapping[ChainName, Executor]  # what anybody has sent may be slow to read, and delays no balances
    verified_networks: set[str]
    """The network that the stored keys belong to, once that was checked."""
    parts: Mapping[type, Any]
    """The objects of features by their class, which only the factory and the feature know."""

    def part(self, kind: type[PartT]) -> PartT:
        """Return a feature's object. Raises: KeyError."""
        found: PartT = self.parts[kind]
        return found


class Application(Flask):
    """The Flask application with its state, and what the server calls."""

    state: AppState
    server_hooks: Hooks


def app_state() -> AppState:
    # A proxy looks up each attribute, which takes several times as long.
    found: Application = current_app._get_current_object()  # type: ignore[attr-defined]  # noqa: SLF001 - the documented way
    return found.state


def context_factory() -> Callable[[], AbstractContextManager[object]]:
    """Return what enters the running application's context in another thread, or after the request has ended."""
    application = current_app._get_current_object()  # type: ignore[attr-defined]  # noqa: SLF001 - the documented way

    def enter() -> AbstractContextManager[object]:
        # Entering and leaving one runs the teardown of all extensions.
        return nullcontext() if has_app_context() else application.app_context()

    return enter
