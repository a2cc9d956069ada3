"""The adapter behind each port, chosen by the settings. The only importer of adapters.

Nothing here opens a connection, so that a web server may build it before it forks.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from pydantic import SecretStr

from app import bot_auth
from app.adapters import key_services, prices
from app.adapters.bridges.cctp.attestations import AttestationClient
from app.adapters.bridges.cctp.bridge import CctpBridge, CctpChain
from app.adapters.bridges.cctp.evm_chain import EvmCctpChain
from app.adapters.bridges.cctp.solana_chain import SolanaCctpChain
from app.adapters.bridges.deployments import DEPLOYMENTS as CCTP_DEPLOYMENTS
from app.adapters.bridges.deployments import LIFI_URLS, PORTALS, RELAY_URLS
from app.adapters.bridges.ether import PortalBridge
from app.adapters.bridges.relay.bridge import OrderBridge
from app.adapters.bridges.relay.orders import LifiOrderService, OrderService, RelayOrderService
from app.adapters.evm.chain import EvmChain
from app.adapters.evm.contracts.deployments import DEPLOYMENTS as EVM_DEPLOYMENTS
from app.adapters.evm.probes import EvmEndpointProbes
from app.adapters.evm.x402.facilitator import EvmFacilitator
from app.adapters.evm.x402.payments import EvmPaymentSigner
from app.adapters.evm.x402.sponsor import EvmTransferSponsor
from app.adapters.faucet_http import HttpFaucet
from app.adapters.openapi_reader.reader import OpenApiReader
from app.adapters.perpdex.exchange import DEPLOYMENTS as PERPDEX_DEPLOYMENTS
from app.adapters.perpdex.exchange import HyperliquidExchange
from app.adapters.rate_limited_http import ServiceAccess
from app.adapters.redis_stores import RedisCounterStore, RqQueue
from app.adapters.shopper import BrowserShopper
from app.adapters.smtp import SmtpMailer
from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.deployments import DEPLOYMENTS as SOLANA_DEPLOYMENTS
from app.adapters.solana.probes import SolanaEndpointProbes
from app.adapters.solana.x402.facilitator import SolanaFacilitator
from app.adapters.solana.x402.payments import SolanaPaymentSigner
from app.adapters.solana.x402.sponsor import SolanaTransferSponsor
from app.adapters.swaps.jupiter.exchange import JupiterExchange
from app.adapters.swaps.uniswap import UniswapExchange
from app.adapters.upstream_http.exchange import HttpUpstream, PublicUpstream
from app.adapters.vault import LocalVault
from app.capacity.limiter import RateLimiter
from app.config import Network, Settings
from app.core import setting_types
from app.core.chains import ETH, TOKENS_BY_SYMBOL, USDC, ChainName
from app.core.money import nanos_from_usd
from app.ports.bridges import BridgeProvider, BridgeRoute
from app.ports.chain import Chain
from app.ports.probes import Probe, probes_of
from app.ports.services import PriceFeed
from app.ports.shopper import Shopper
from app.ports.swaps import SwapExchange
from app.state import Ports
from shopper.process import browser_discovery
from signer.client import RemoteVault, SignerClient

T = TypeVar("T")
_NO_KEY = SecretStr("")
_RATE_LIMITS = {
    "jupiter": ("30 per minute", "60 per minute"),
    "relay": ("50 per minute", "10 per second"),
    "lifi": ("75 per 2 hours", "12000 per 2 hours"),
    # It blocks an address that exceeds it for five minutes, and has no keys.
    "circle": ("35 per second", "35 per second"),
}
"""The documented limits of each service without a key, and of its free or usual plan with one."""


def build(settings: Settings) -> Ports:
    evm = {name: _evm_chain(name, settings) for name in (ChainName.ETHEREUM, ChainName.BASE)}
    solana = _solana_chain(settings)
    jupiter, smtp_url = _jupiter_access(settings), settings.smtp_url.get_secret_value()
    exchanges: dict[ChainName, SwapExchange] = {name: UniswapExchange(chain) for name, chain in evm.items()}
    if settings.network is not Network.TESTNET:
        # Jupiter has no pools on test networks.
        exchanges[ChainName.SOLANA] = JupiterExchange(solana, settings.jupiter_url, jupiter)
    chains: dict[ChainName, Chain] = {**evm, ChainName.SOLANA: solana}
    signer = SignerClient(settings.signer_socket) if settings.signer_socket else None

    def by_chain(of_evm: Callable[[EvmChain], T], of_solana: Callable[[SolanaChain], T]) -> Mapping[ChainName, T]:
        return MappingProxyType({**{name: of_evm(each) for name, each in evm.items()}, solana.name: of_solana(solana)})

    return Ports(
        chains=MappingProxyType(chains),
        swap_exchanges=MappingProxyType(exchanges),
        facilitators=by_chain(
            lambda chain: EvmFacilitator(chain, confirmations=settings.confirmations(chain.name, of_deposits=True)),
            SolanaFacilitator,
        ),
        payment_signers=by_chain(EvmPaymentSigner, SolanaPaymentSigner),
        sponsors=by_chain(EvmTransferSponsor, SolanaTransferSponsor),
        bridges=MappingProxyType(bridges_between(settings, chains)),
        vault=_vault(settings) if signer is None else RemoteVault(settings.encryption_key_list(), signer),
        signer=signer,
        prices=_prices(settings, evm, jupiter),
        queue=RqQueue(settings.redis_address),
        counters=RedisCounterStore(settings.redis_address),
        upstream=_upstream(settings, HttpUpstream),
        # In development, services of the catalog may have private addresses.
        public_upstream=_upstream(settings, HttpUpstream if settings.allow_private_upstreams else PublicUpstream),
        specifications=OpenApiReader(),
        faucet=HttpFaucet(settings.faucet_url) if settings.is_sandbox and settings.faucet_url else None,
        perpdex=HyperliquidExchange(PERPDEX_DEPLOYMENTS[settings.network.value], url=settings.perpdex_base_url),
        shopper=_shopper(settings),
        mailer=SmtpMailer(smtp_url, sender=settings.mail_from) if smtp_url else None,
        probes=partial(_probes, settings),
    )


def _vault(settings: Settings) -> LocalVault:
    found = setting_types.key_services(settings.wallet_encryption_keys)
    kinds: dict[str, Callable[..., str]] = {
        "aws-kms": key_services.aws_kms, "gcp-kms": key_services.google_kms, "file": key_services.key_file,
        "hcvault": partial(key_services.vault_transit, settings.vault_token),
        "pkcs11": partial(key_services.pkcs11_key, settings.pkcs11_pin),
    }  # fmt: skip
    services = {key_id: partial(kinds[parts[0]], *parts[1:]) for key_id, parts in found.items() if parts}
    return LocalVault(settings.encryption_key_list(), services, next(iter(found), ""))


def _probes(settings: Settings) -> list[Probe]:
    """Return the probes of each endpoint alone, without the others behind which a failure stays hidden."""
    found: list[Probe] = []
    for name in (ChainName.ETHEREUM, ChainName.BASE, ChainName.SOLANA):
        for number, url in enumerate(_rpc_urls(name, settings), 1):
            if name is ChainName.SOLANA:
                asked: object = SolanaEndpointProbes(_solana_chain(settings, urls=[url]))
            else:
                asked = EvmEndpointProbes(_evm_chain(name, settings, urls=[url]))
            found += probes_of(asked, f"{name.value} {number}")
    sources: dict[str, prices.PriceSource] = {}
    if not settings.is_sandbox:
        sources["jupiter"] = prices.JupiterPrices(settings.jupiter_url, _jupiter_access(settings))
    coingecko = _coingecko(settings)
    if coingecko is not None:
        sources["coingecko"] = coingecko
    else:
        found.append(Probe("coingecko", "prices", str, missing="COINGECKO_API_KEY"))
    found += [Probe(name, "prices", partial(prices.describe_prices, source)) for name, source in sources.items()]
    return found


def bridges_between(
    settings: Settings, chains: Mapping[ChainName, Chain]
) -> dict[BridgeRoute, tuple[BridgeProvider, ...]]:
    network = settings.network.value
    cctp = CCTP_DEPLOYMENTS[network]
    attestations = AttestationClient(settings.cctp_attestation_url or cctp.default_url, _access(settings, "circle"))
    cctp_bridge = partial(
        CctpBridge,
        attestations=attestations,
        max_fee_bps=settings.max_bridge_fee_bps,
        max_forward_nanos=nanos_from_usd(settings.max_network_fee_usd),
    )
    endpoints: list[CctpChain] = []
    for chain in chains.values():
        if isinstance(chain, EvmChain):
            endpoints.append(EvmCctpChain(chain, cctp))
        elif isinstance(chain, SolanaChain):
            endpoints.append(SolanaCctpChain(chain, settings.cctp_lookup_table or cctp.lookup_table))
    bridges_by_route: dict[BridgeRoute, tuple[BridgeProvider, ...]] = {
        (source.name, destination.name, USDC): (cctp_bridge(source, destination),)
        for source in endpoints
        for destination in endpoints
        if source is not destination
    }
    ethereum, base = chains.get(ChainName.ETHEREUM), chains.get(ChainName.BASE)
    if isinstance(ethereum, EvmChain) and isinstance(base, EvmChain):
        bridges_by_route[ChainName.ETHEREUM, ChainName.BASE, ETH] = (PortalBridge(ethereum, base, PORTALS[network]),)
        ids = base.deployment.chain_id, ethereum.deployment.chain_id
        upstreams = settings.upstreams
        relay_url, access = upstreams.relay_base_url or RELAY_URLS[network], partial(_access, settings)
        order_services: list[OrderService] = [
            RelayOrderService(relay_url, *ids, access("relay", upstreams.relay_api_key))
        ]
        if lifi_url := upstreams.lifi_base_url or LIFI_URLS.get(network):
            order_services.append(LifiOrderService(lifi_url, *ids, access("lifi", upstreams.lifi_api_key)))
        bridges_by_route[ChainName.BASE, ChainName.ETHEREUM, ETH] = tuple(
            OrderBridge(base, ethereum, service) for service in order_services
        )
    return bridges_by_route


def _shopper(settings: Settings) -> Shopper | None:
    browser = browser_discovery.find_browser(settings.browser_executable)
    if browser is None:
        return None
    return BrowserShopper(
        browser,
        private=settings.allow_private_upstreams,
        sandbox_required=not (settings.is_sandbox or settings.browser_without_sandbox),
        sign=bot_auth.request_headers,
    )


def _upstream(settings: Settings, kind: type[HttpUpstream]) -> HttpUpstream:
    return kind(
        connect_seconds=settings.upstream_connect_timeout_seconds, read_seconds=settings.upstream_read_timeout_seconds
    )


def _rpc_urls(name: ChainName, settings: Settings) -> Sequence[str]:
    network = settings.network.value
    default = (
        SOLANA_DEPLOYMENTS[network] if name is ChainName.SOLANA else EVM_DEPLOYMENTS[network, name.value]
    ).default_rpc_urls
    return settings.rpc_urls(name) or default


def _evm_chain(name: ChainName, settings: Settings, *, urls: Sequence[str] = ()) -> EvmChain:
    return EvmChain(
        name,
        EVM_DEPLOYMENTS[settings.network.value, name.value],
        rpc_urls=urls or _rpc_urls(name, settings),
        private_rpc_urls=settings.ethereum_private_rpc_url if name is ChainName.ETHEREUM else (),
        deposit_confirmations=settings.confirmations(name, of_deposits=True),
    )


def _solana_chain(settings: Settings, *, urls: Sequence[str] = ()) -> SolanaChain:
    return SolanaChain(
        SOLANA_DEPLOYMENTS[settings.network.value],
        rpc_urls=urls or _rpc_urls(ChainName.SOLANA, settings),
        commitment=settings.solana_commitment,
        estimates_fees=settings.solana_priority_fee_estimate,
    )


def _prices(settings: Settings, evm: Mapping[ChainName, EvmChain], jupiter: ServiceAccess) -> PriceFeed:
    overrides = {
        TOKENS_BY_SYMBOL[symbol]: nanos_from_usd(usd) for symbol, usd in settings.parsed_price_overrides().items()
    }
    onchain = [
        prices.ChainlinkPrices(chain.rpc, EVM_DEPLOYMENTS[settings.network.value, name.value])
        for name, chain in evm.items()
    ]
    if settings.is_sandbox:
        return prices.MarketPriceFeed(onchain, [], overrides=overrides)
    coingecko, exchange = _coingecko(settings), prices.JupiterPrices(settings.jupiter_url, jupiter)
    fallback = [] if coingecko is None else [coingecko]
    return prices.MarketPriceFeed(onchain, fallback, exchanges=[exchange], overrides=overrides)


def _coingecko(settings: Settings) -> prices.CoinGeckoPrices | None:
    api_key = settings.upstreams.coingecko_api_key.get_secret_value()
    return prices.CoinGeckoPrices(settings.upstreams.coingecko_base_url, api_key=api_key) if api_key else None


def _jupiter_access(settings: Settings) -> ServiceAccess:
    return _access(settings, "jupiter", settings.upstreams.jupiter_api_key)


def _access(settings: Settings, service: str, api_key: SecretStr = _NO_KEY) -> ServiceAccess:
    """Return the plan at a service: its limit counts the requests of all processes. The sandbox has no limits."""
    key = api_key.get_secret_value()
    if settings.is_sandbox:
        return ServiceAccess(key)
    limit = _RATE_LIMITS[service][bool(key)]
    limiter = RateLimiter(settings.redis_address)
    return ServiceAccess(key, partial(limiter.count_when_permitted, limit, "service", service))
