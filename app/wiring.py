"""Settings become ports: which adapter stands behind each. The only importer of adapters.

Nothing here opens a connection, so a web server may build it before it forks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from app.adapters.cctp.attestations import Attestations
from app.adapters.cctp.bridge import Bounds, CctpBridge
from app.adapters.cctp.deployments import DEPLOYMENTS as CCTP_DEPLOYMENTS
from app.adapters.cctp.evm import EvmSide
from app.adapters.cctp.sides import Side
from app.adapters.cctp.solana import SolanaSide
from app.adapters.evm.chain import EvmChain
from app.adapters.evm.deployments import DEPLOYMENTS as EVM_DEPLOYMENTS
from app.adapters.evm.feeds import ChainlinkPrices
from app.adapters.evm.till import EvmTill
from app.adapters.faucet_http import HttpFaucet
from app.adapters.jupiter.exchange import JupiterExchange
from app.adapters.openapi_reader.reader import OpenApiReader
from app.adapters.perpdex.deployments import DEPLOYMENTS as PERPDEX_DEPLOYMENTS
from app.adapters.perpdex.exchange import HyperliquidExchange
from app.adapters.portal.bridge import PortalBridge
from app.adapters.portal.deployments import PORTALS
from app.adapters.price_coingecko import CoinGeckoPrices
from app.adapters.price_jupiter import JupiterPrices
from app.adapters.prices import MarketPrices, PriceSource
from app.adapters.queue_rq import RqQueue
from app.adapters.relay.bridge import OrderBridge
from app.adapters.relay.deployments import LIFI_URLS, RELAY_URLS
from app.adapters.relay.lifi_api import LifiOrders
from app.adapters.relay.orders import OrderService
from app.adapters.relay.relay_api import RelayOrders
from app.adapters.shopper_browser import programs
from app.adapters.shopper_browser.shopper import BrowserShopper
from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.deployments import DEPLOYMENTS as SOLANA_DEPLOYMENTS
from app.adapters.solana.till import SolanaTill
from app.adapters.tallies_redis import RedisTallies
from app.adapters.uniswap.exchange import UniswapExchange
from app.adapters.upstream_http.exchange import HttpUpstream, PublicUpstream
from app.adapters.vault_local import LocalVault
from app.config import Network, Settings
from app.core.chains import ETH, TOKENS_BY_SYMBOL, USDC, ChainName
from app.core.money import nanos_from_usd
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


@dataclass(frozen=True, slots=True)
class Ports:
    """One attribute per port."""

    chains: Mapping[ChainName, Chain]
    exchanges: Mapping[ChainName, Exchange]
    tills: Mapping[ChainName, Till]
    bridges: Mapping[Route, tuple[Bridge, ...]]
    vault: Vault
    prices: Prices
    queue: JobQueue
    tallies: Tallies
    upstream: Upstream
    public_upstream: Upstream
    specifications: Specifications
    faucet: Faucet | None
    perpdex: Perpdex
    shopper: Shopper | None


def build(settings: Settings) -> Ports:
    """Choose and make the adapters that the settings ask for."""
    evm = {name: _evm_chain(name, settings) for name in (ChainName.ETHEREUM, ChainName.BASE)}
    solana = _solana_chain(settings)
    exchanges: dict[ChainName, Exchange] = {name: UniswapExchange(chain) for name, chain in evm.items()}
    if settings.network is not Network.TESTNET:
        # Jupiter knows no pools of test networks.
        exchanges[ChainName.SOLANA] = JupiterExchange(solana, settings.jupiter_url)
    chains: dict[ChainName, Chain] = {**evm, ChainName.SOLANA: solana}
    return Ports(
        chains=MappingProxyType(chains),
        exchanges=MappingProxyType(exchanges),
        tills=MappingProxyType(_tills(settings, evm, solana)),
        bridges=MappingProxyType(bridges_between(settings, chains)),
        vault=LocalVault(settings.encryption_key_list()),
        prices=_prices(settings, evm),
        queue=RqQueue(settings.redis_url.get_secret_value()),
        tallies=RedisTallies(settings.redis_url.get_secret_value()),
        upstream=_upstream(settings, HttpUpstream),
        # In development others' addresses may lead anywhere.
        public_upstream=_upstream(
            settings, HttpUpstream if settings.allow_private_upstreams else PublicUpstream
        ),
        specifications=OpenApiReader(),
        faucet=HttpFaucet(settings.faucet_url) if settings.is_sandbox and settings.faucet_url else None,
        perpdex=HyperliquidExchange(
            PERPDEX_DEPLOYMENTS[settings.network.value], url=settings.perpdex_base_url
        ),
        shopper=_shopper(settings),
    )


def bridges_between(settings: Settings, chains: Mapping[ChainName, Chain]) -> dict[Route, tuple[Bridge, ...]]:
    """Return the ways between the chains that there are, by route."""
    network = settings.network.value
    cctp = CCTP_DEPLOYMENTS[network]
    attestations = Attestations(settings.cctp_attestation_url or cctp.default_url)
    bounds = Bounds(settings.max_bridge_fee_bps, nanos_from_usd(settings.max_network_fee_usd))
    sides: list[Side] = []
    for chain in chains.values():
        if isinstance(chain, EvmChain):
            sides.append(EvmSide(chain, cctp))
        elif isinstance(chain, SolanaChain):
            sides.append(SolanaSide(chain))
    ways: dict[Route, tuple[Bridge, ...]] = {
        (source.name, destination.name, USDC): (CctpBridge(source, destination, attestations, bounds=bounds),)
        for source in sides
        for destination in sides
        if source is not destination
    }
    ethereum, base = chains.get(ChainName.ETHEREUM), chains.get(ChainName.BASE)
    if isinstance(ethereum, EvmChain) and isinstance(base, EvmChain):
        ways[ChainName.ETHEREUM, ChainName.BASE, ETH] = (PortalBridge(ethereum, base, PORTALS[network]),)
        services: list[OrderService] = [RelayOrders(settings.relay_base_url or RELAY_URLS[network])]
        if settings.lifi_base_url or network in LIFI_URLS:
            services.append(LifiOrders(settings.lifi_base_url or LIFI_URLS[network]))
        ways[ChainName.BASE, ChainName.ETHEREUM, ETH] = tuple(
            OrderBridge(base, ethereum, service) for service in services
        )
    return ways


def _shopper(settings: Settings) -> Shopper | None:
    browser = programs.find(settings.browser_executable)
    return BrowserShopper(browser, private=settings.allow_private_upstreams) if browser else None


def _upstream(settings: Settings, kind: type[HttpUpstream]) -> HttpUpstream:
    return kind(
        connect_seconds=settings.upstream_connect_timeout_seconds,
        read_seconds=settings.upstream_read_timeout_seconds,
    )


def _evm_chain(name: ChainName, settings: Settings) -> EvmChain:
    deployment = EVM_DEPLOYMENTS[settings.network.value, name.value]
    return EvmChain(
        name,
        deployment,
        rpc_urls=settings.rpc_urls(name) or deployment.default_rpc_urls,
        deposit_confirmations=_payment_confirmations(settings)[name],
    )


def _solana_chain(settings: Settings) -> SolanaChain:
    deployment = SOLANA_DEPLOYMENTS[settings.network.value]
    return SolanaChain(
        deployment,
        rpc_urls=settings.rpc_urls(ChainName.SOLANA) or deployment.default_rpc_urls,
        commitment=settings.solana_commitment,
    )


def _tills(
    settings: Settings, evm: Mapping[ChainName, EvmChain], solana: SolanaChain
) -> dict[ChainName, Till]:
    confirmations = _payment_confirmations(settings)
    tills: dict[ChainName, Till] = {
        name: EvmTill(chain, confirmations=confirmations[name]) for name, chain in evm.items()
    }
    return {**tills, ChainName.SOLANA: SolanaTill(solana)}


def _payment_confirmations(settings: Settings) -> Mapping[ChainName, int]:
    return {
        ChainName.ETHEREUM: settings.ethereum_deposit_confirmations,
        ChainName.BASE: settings.base_deposit_confirmations,
    }


def _prices(settings: Settings, evm: Mapping[ChainName, EvmChain]) -> Prices:
    overrides = {
        TOKENS_BY_SYMBOL[symbol]: nanos_from_usd(usd) for symbol, usd in settings.prices_overridden().items()
    }
    onchain = [
        ChainlinkPrices(chain.rpc, EVM_DEPLOYMENTS[settings.network.value, name.value])
        for name, chain in evm.items()
    ]
    fallback: list[PriceSource] = []
    exchanges: list[PriceSource] = []
    if not settings.is_sandbox:
        api_key = settings.coingecko_api_key.get_secret_value()
        if api_key:
            fallback.append(CoinGeckoPrices(settings.coingecko_base_url, api_key=api_key))
        exchanges.append(JupiterPrices(settings.jupiter_url))
    return MarketPrices(onchain, fallback, exchanges=exchanges, overrides=overrides)
