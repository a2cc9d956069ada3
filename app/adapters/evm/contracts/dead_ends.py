"""Addresses that keep, or give to anybody, what is transferred to them: only data, the same on every chain and network.

A contract of another chain has the same address here, without its code: what is sent to it is lost as well.
"""

from collections.abc import Mapping

from app.adapters.bridges.deployments import DEPLOYMENTS as CCTP_DEPLOYMENTS
from app.adapters.bridges.deployments import DEPOSITORY, LIFI_DIAMOND, PORTALS
from app.adapters.evm.contracts.deployments import DEPLOYMENTS, PERMIT2, X402_PERMIT2_PROXY

# EIPs 4844, 2537 and 7951 end at 0x11 and 0x100; docs.optimism.io, "Predeploys".
_PRECOMPILES = frozenset({*range(1, 0x12), 0x100})
_PREDEPLOYS = range(0x42 << 152, (0x42 << 152) + 2048)

_OTHERS: Mapping[str, str] = {
    "0x000000000000000000000000000000000000dEaD": "a burn address",
    "0xdEAD000000000000000042069420694206942069": "a burn address",
    "0xEeeeeEeeeEeEeeEeEeEeeEEEeeeeEeeeeeeeEEeE": "a placeholder for ETH",
    "0xffffffffffffffffffffffffffffffffffffffff": "a burn address",
    "0xffffFFFfFFffffffffffffffFfFFFfffFFFfFFfE": "a system address",
    "0x000F3df6D732807Ef1319fB7B8bB8522d0Beac02": "a system contract",  # EIP-4788
    "0x0000F90827F1C53a10cb7A02335B175320002935": "a system contract",  # EIP-2935
    "0x00000000219ab540356cBB839Cbe05303d7705Fa": "the deposit contract of Ethereum",
    "0x4e59b44847b379578588920cA78FbF26c0B4956C": "a deployer of contracts",
    # What EntryPoint holds can be withdrawn by the account that calls it alone (ERC-4337).
    "0x5FF137D4b0FDCD49DcA30c7CF57E578a026d2789": "EntryPoint",
    "0x0000000071727De22E5E9d8BAf0edAc6f37da032": "EntryPoint",
    "0x4337084D9E255Ff0702461CF8895CE9E3b5Ff108": "EntryPoint",
    # Tokens; circle.com, "USDC contract addresses".
    "0xdAC17F958D2ee523a2206206994597C13D831ec7": "USDT",
    "0xd9aAEc86B65D86f6A7B5B1b0c42FFA531710b6CA": "USDbC",
    "0xaf88d065e77c8cC2239327C5EDb3A432268e5831": "USDC of Arbitrum",
    "0x0b2C639c533813f4Aa9D7837CAf62653d097Ff85": "USDC of OP Mainnet",
    "0x3c499c542cEF5E3811e1192ce70d8cC03d5c3359": "USDC of Polygon",
    "0xB97EF9Ef8734C71904D8002F8b6Bc66Dd9c48a6E": "USDC of Avalanche",
    # Routers of Uniswap besides those that we call.
    "0xE592427A0AEce92De3Edee1F18E0157C05861564": "a Uniswap router",
    "0x7a250d5630B4cF539739dF2C5dAcb4c659F2488D": "a Uniswap router",
    "0x3fC91A3afd70395Cd496C647d5a6CC9D4B2b7FAD": "a Uniswap router",
    "0x66a9893cC07D91D95644AEDD05D03f95e1dBA8Af": "a Uniswap router",
    # Deposits to the exchange are USDC of Arbitrum alone.
    "0x2Df1c51E09aECF9cacB7bc98cB1742757f163dF7": "the bridge of Hyperliquid",
}


def dead_end(address: str) -> str | None:
    """Return what an address is that gives nothing back, as a noun with its article; None for any other."""
    number = int(address, 16)
    if number in _PRECOMPILES or number in _PREDEPLOYS:
        return "a system contract"
    return _KNOWN.get(address.lower())


_KNOWN: Mapping[str, str] = {
    **{address.lower(): noun for address, noun in _OTHERS.items()},
    **{name.lower(): "a contract of Permit2" for name in (PERMIT2, X402_PERMIT2_PROXY)},
    **{
        name.lower(): "a contract of a bridge"
        for name in (
            DEPOSITORY,
            LIFI_DIAMOND,
            *PORTALS.values(),
            *(each.messenger for each in CCTP_DEPLOYMENTS.values()),
            *(each.transmitter for each in CCTP_DEPLOYMENTS.values()),
        )
    },
    **{
        address.lower(): f"the contract {name.replace('_', ' ')}"
        for each in DEPLOYMENTS.values()
        for name, address in each.contracts()
    },
}
