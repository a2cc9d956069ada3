"""The addresses of every contract that we call, by network and chain: the one source of truth, and only data.

The addresses are those published by Circle, Uniswap, Chainlink and the OP stack. The sandbox has the same contracts
at the mainnet addresses, under private chain ids, so that nothing signed there is valid elsewhere.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial

_HOUR = 3600
_DAY = 24 * _HOUR
MULTICALL3 = "0xcA11bde05977b3631167028862bE2a173976CA11"


@dataclass(frozen=True, slots=True)
class ChainlinkFeed:
    """A Chainlink aggregator (8 decimals), and when its answer is stale: after three promised heartbeats."""

    address: str
    max_age_seconds: int


PERMIT2 = "0x000000000022D473030F116dDEE9F6B43aC78BA3"
X402_PERMIT2_PROXY = "0x402085c248EeA27D92E8b30b2C58ed07f9E20001"
"""Both are at the same address on all chains."""


@dataclass(frozen=True, slots=True)
class EvmDeployment:
    """The contracts of a chain on a network, None for those it lacks; `explorer_tx_url` has a `{tx_hash}`."""

    chain_id: int
    usdc: str
    weth: str
    eth_usd_feed: ChainlinkFeed
    usdc_usd_feed: ChainlinkFeed
    uniswap_factory: str
    uniswap_router: str
    uniswap_quoter: str
    uniswap_position_manager: str
    default_rpc_urls: tuple[str, ...]
    explorer_tx_url: str | None
    multicall3: str = MULTICALL3
    sol_usd_feed: ChainlinkFeed | None = None
    gas_price_oracle: str | None = None
    # The network's name in x402 version 1, and the name in the EIP-712 domain of its USDC.
    legacy_network: str | None = None
    usdc_domain_name: str = "USD Coin"
    # The protocol's interval; 0 where blocks are made on demand.
    block_seconds: float = 12.0

    def contracts(self) -> Iterator[tuple[str, str]]:
        for each in fields(self):
            value = getattr(self, each.name)
            address = value.address if isinstance(value, ChainlinkFeed) else value
            if isinstance(address, str) and address.startswith("0x"):
                yield each.name, address


_ETHEREUM = EvmDeployment(
    chain_id=1,
    usdc="0xA0b86991c6218b36c1d19D4a2e9Eb0cE3606eB48",
    weth="0xC02aaA39b223FE8D0A0e5C4F27eAD9083C756Cc2",
    eth_usd_feed=ChainlinkFeed("0x5f4eC3Df9cbd43714FE2740f5E3616155c5b8419", 3 * _HOUR),
    sol_usd_feed=ChainlinkFeed("0x4ffC43a60e009B551865A93d232E33Fce9f01507", 3 * _DAY),
    usdc_usd_feed=ChainlinkFeed("0x8fFfFfd4AfB6115b954Bd326cbe7B4BA576818f6", 3 * _DAY),
    uniswap_factory="0x1F98431c8aD98523631AE4a59f267346ea31F984",
    uniswap_router="0x68b3465833fb72A70ecDF485E0e4C7bD8665Fc45",
    uniswap_quoter="0x61fFE014bA17989E743c5F6cB21bF9697530B21e",
    uniswap_position_manager="0xC36442b4a4522E871399CD717aBDD847Ab11FE88",
    default_rpc_urls=(
        "https://ethereum-rpc.publicnode.com",
        "https://ethereum.publicnode.com",
        "https://ethereum.reth.rs/rpc",
    ),
    explorer_tx_url="https://etherscan.io/tx/{tx_hash}",
)

_BASE = EvmDeployment(
    chain_id=8453,
    usdc="0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913",
    weth="0x4200000000000000000000000000000000000006",
    eth_usd_feed=ChainlinkFeed("0x71041dddad3595F9CEd3DcCFBe3D1F4b0a16Bb70", _HOUR),
    sol_usd_feed=ChainlinkFeed("0x975043adBb80fc32276CbF9Bbcfd4A601a12462D", 3 * _DAY),
    usdc_usd_feed=ChainlinkFeed("0x7e860098F58bBFC8648a4311b374B1D669a2bc6B", 3 * _DAY),
    uniswap_factory="0x33128a8fC17869897dcE68Ed026d694621f6FDfD",
    uniswap_router="0x2626664c2603336E57B271c5C0b26F421741e481",
    uniswap_quoter="0x3d4e44Eb1374240CE5F1B871ab261CD16335B76a",
    uniswap_position_manager="0x03a520b32C04BF3bEEf7BEb72E919cf822Ed34f1",
    gas_price_oracle="0x420000000000000000000000000000000000000F",
    default_rpc_urls=("https://mainnet.base.org", "https://base.publicnode.com", "https://mainnet-preconf.base.org"),
    explorer_tx_url="https://basescan.org/tx/{tx_hash}",
    legacy_network="base",
    block_seconds=2.0,
)

_SEPOLIA = EvmDeployment(
    chain_id=11155111,
    usdc="0x1c7D4B196Cb0C7B01d743Fbc6116a902379C7238",
    weth="0xfFf9976782d46CC05630D1f6eBAb18b2324d6B14",
    eth_usd_feed=ChainlinkFeed("0x694AA1769357215DE4FAC081bf1f309aDC325306", 3 * _HOUR),
    usdc_usd_feed=ChainlinkFeed("0xA2F78ab2355fe2f984D808B5CeE7FD0A93D5270E", 3 * _DAY),
    uniswap_factory="0x0227628f3F023bb0B980b67D528571c95c6DaC1c",
    uniswap_router="0x3bFA4769FB09eefC5a80d6E87c3B9C650f7Ae48E",
    uniswap_quoter="0xEd1f6473345F45b75F8179591dd5bA1888cf2FB3",
    uniswap_position_manager="0x1238536071E1c677A632429e3655c799b22cDA52",
    default_rpc_urls=("https://ethereum-sepolia-rpc.publicnode.com",),
    explorer_tx_url="https://sepolia.etherscan.io/tx/{tx_hash}",
    usdc_domain_name="USDC",
)

_BASE_SEPOLIA = EvmDeployment(
    chain_id=84532,
    usdc="0x036CbD53842c5426634e7929541eC2318f3dCF7e",
    weth="0x4200000000000000000000000000000000000006",
    eth_usd_feed=ChainlinkFeed("0x4aDC67696bA383F43DD60A9e78F2C97Fbbfc7cb1", 3 * _HOUR),
    usdc_usd_feed=ChainlinkFeed("0xd30e2101a97dcbAeBCBC04F14C3f624E67A35165", 3 * _DAY),
    uniswap_factory="0x4752ba5DBc23f44D87826276BF6Fd6b1C372aD24",
    uniswap_router="0x94cC0AaC535CCDB3C01d6787D6413C739ae12bc4",
    uniswap_quoter="0xC5290058841028F1614F3A6F0F5816cAd0df5E27",
    uniswap_position_manager="0x27F971cb582BF9E50F397e4d29a5C7A34f11faA2",
    gas_price_oracle="0x420000000000000000000000000000000000000F",
    default_rpc_urls=("https://sepolia.base.org",),
    explorer_tx_url="https://sepolia.basescan.org/tx/{tx_hash}",
    legacy_network="base-sepolia",
    usdc_domain_name="USDC",
    block_seconds=2.0,
)

# Clients of x402 version 1 would sign for the real chain under its name.
_in_sandbox = partial(replace, explorer_tx_url=None, block_seconds=0.0, legacy_network=None)

DEPLOYMENTS: Mapping[tuple[str, str], EvmDeployment] = {
    ("mainnet", "ethereum"): _ETHEREUM,
    ("mainnet", "base"): _BASE,
    ("testnet", "ethereum"): _SEPOLIA,
    ("testnet", "base"): _BASE_SEPOLIA,
    ("sandbox", "ethereum"): _in_sandbox(_ETHEREUM, chain_id=900001, default_rpc_urls=("http://127.0.0.1:18545",)),
    ("sandbox", "base"): _in_sandbox(_BASE, chain_id=908453, default_rpc_urls=("http://127.0.0.1:18546",)),
}
