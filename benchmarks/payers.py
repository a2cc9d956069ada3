"""The accounts outside of the service that sign payments in the soak and the cluster."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

from sandbox.evm import EvmNode
from sandbox.evm.rpc import NodeClient
from solana_node import SolanaNode
from tests.support.payments import EvmPayer, SolanaPayer, signed_headers


class Payers:
    """A client's own accounts, outside of the service, which sign payments."""

    def __init__(self, solana_url: str) -> None:
        self.evm = EvmPayer(cast("EvmNode", SimpleNamespace()), dollars=0)
        node = SimpleNamespace(call=NodeClient(solana_url).call, advance=lambda _slots: None)
        self.solana = SolanaPayer(cast("SolanaNode", node), dollars=0)

    def sign(self, terms: Mapping[str, Any]) -> dict[str, str]:
        """Return the headers that pay what is asked for."""
        family, _, number = terms["network"].partition(":")
        if family == "solana":
            return signed_headers(terms, self.solana.transfer(terms))
        node = SimpleNamespace(chain_id=int(number), deployment=SimpleNamespace(usdc=terms["asset"]))
        self.evm.node = cast("EvmNode", node)
        return signed_headers(terms, self.evm.authorize(terms))
