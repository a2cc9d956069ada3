"""Contracts and APIs of the bridges: only data.

Sources: developers.circle.com/cctp (contract addresses and domains of CCTP V2), docs.relay.link and docs.li.fi (the
depository and LI.FI's contract have the same address on all supported chains), docs.base.org (Base's portal on
Ethereum). The sandbox has stand-ins at the mainnet addresses. Mappings are keyed by network.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from app.core.chains import ChainName

_BASE_PORTAL = "0x49048044D57e1C92A77f79988d21Fa8fAF74E97e"
PORTALS: Mapping[str, str] = {
    "mainnet": _BASE_PORTAL,
    "testnet": "0x49f53e41452C74589E85cA1677426Ba426459e85",
    "sandbox": _BASE_PORTAL,
}

DEPOSITORY = "0x4cD00E387622C35bDDB9b4c962C136462338BC31"
LIFI_DIAMOND = "0x1231DEB6f5749EF6cE6943a275A1D3E7486F4EaE"
RELAY_URLS: Mapping[str, str] = {
    "mainnet": "https://api.relay.link",
    "testnet": "https://api.testnets.relay.link",
    "sandbox": "http://127.0.0.1:18550",
}
LIFI_URLS: Mapping[str, str] = {"mainnet": "https://li.quest/v1", "sandbox": "http://127.0.0.1:18550/v1"}
"""LI.FI has no test networks."""

DOMAINS: Mapping[ChainName, int] = {ChainName.ETHEREUM: 0, ChainName.SOLANA: 5, ChainName.BASE: 6}
SOLANA_TRANSMITTER = "CCTPV2Sm4AdWt5296sk4P66VBZ7bEhcARwFaaS9YPbeC"
SOLANA_MESSENGER = "CCTPV2vPZJS2u2BBsUoscuikbYjnpFmbFsvVuJdgUMQe"


@dataclass(frozen=True, slots=True)
class CctpDeployment:
    """A network's contracts on EVM chains, its service, and a lookup table for mints on Solana: Circle has none."""

    messenger: str
    transmitter: str
    default_url: str
    lookup_table: str | None = None


_MAINNET = CctpDeployment(
    messenger="0x28b5a0e9C621a5BadaA536219b3a228C8168cf5d",
    transmitter="0x81D40F21F12A8F0E3252Bccb954D722d4c464B64",
    default_url="https://iris-api.circle.com",
)
DEPLOYMENTS: Mapping[str, CctpDeployment] = {
    "mainnet": _MAINNET,
    "testnet": CctpDeployment(
        messenger="0x8FE6B999Dc680CcFDD5Bf7EB0974218be2542DAA",
        transmitter="0xE737e5cEBEEBa77EFE34D4aa090756590b1CE275",
        default_url="https://iris-api-sandbox.circle.com",
    ),
    "sandbox": CctpDeployment(
        _MAINNET.messenger,
        _MAINNET.transmitter,
        "http://127.0.0.1:18550",
        "67MdBiNJFdaFs9HsHkoKBzCyiptXZUbAM3DyTrCq6TwU",
    ),
}
