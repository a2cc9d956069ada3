"""The contracts of CCTP V2: only data. Source: developers.circle.com/cctp, contract addresses and domains.

The sandbox has stand-ins at the mainnet addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from app.core.chains import ChainName

DOMAINS: Mapping[ChainName, int] = MappingProxyType({ChainName.ETHEREUM: 0, ChainName.SOLANA: 5, ChainName.BASE: 6})
SOLANA_TRANSMITTER = "CCTPV2Sm4AdWt5296sk4P66VBZ7bEhcARwFaaS9YPbeC"
SOLANA_MESSENGER = "CCTPV2vPZJS2u2BBsUoscuikbYjnpFmbFsvVuJdgUMQe"


@dataclass(frozen=True, slots=True)
class CctpDeployment:
    """The two contracts on the EVM chains of one network, and the address of its attestation service.

    `lookup_table` is Solana's address lookup table of the accounts of a mint, if there is one: Circle publishes none.
    """

    messenger: str
    transmitter: str
    default_url: str
    lookup_table: str | None = None


_MAINNET = CctpDeployment(
    messenger="0x28b5a0e9C621a5BadaA536219b3a228C8168cf5d",
    transmitter="0x81D40F21F12A8F0E3252Bccb954D722d4c464B64",
    default_url="https://iris-api.circle.com",
)
DEPLOYMENTS: Mapping[str, CctpDeployment] = MappingProxyType(
    {
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
)
"""Keyed by network: "mainnet", "testnet" or "sandbox"."""
