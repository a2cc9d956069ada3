"""Contracts and APIs of the bridges: only data. The mappings are keyed by network."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from app.core.chains import ChainName

_FACTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
PORTALS: Mapping[str, str] = _FACTS["portals"]
RELAY_URLS: Mapping[str, str] = _FACTS["relay"]
LIFI_URLS: Mapping[str, str] = _FACTS["lifi"]

# The same on all supported chains.
DEPOSITORY = "0x4cD00E387622C35bDDB9b4c962C136462338BC31"
LIFI_DIAMOND = "0x1231DEB6f5749EF6cE6943a275A1D3E7486F4EaE"

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


DEPLOYMENTS: Mapping[str, CctpDeployment] = {network: CctpDeployment(**row) for network, row in _FACTS["cctp"].items()}
