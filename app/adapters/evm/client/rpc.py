"""The JSON-RPC endpoints of an EVM chain."""

from __future__ import annotations

from collections.abc import Sequence

from web3 import Web3

from app.adapters.evm.client.provider import FailoverProvider, call
from app.adapters.evm.client.wire import units
from app.adapters.http_client import HttpClient
from app.adapters.jsonrpc.calls import WrongChainError
from app.adapters.jsonrpc.rpc import JsonRpc
from app.core.chains import ChainName

MAX_BATCH = 100
"""Calls in one HTTP request."""
_MAX_RESPONSE_BYTES = 64 * 2**20


class EvmRpc(JsonRpc):
    """The endpoints of one EVM chain, recognised by its id."""

    def __init__(
        self,
        chain: ChainName,
        *,
        chain_id: int,
        urls: Sequence[str],
        first_number: int = 1,
        connect_seconds: float = 3.0,
        read_seconds: float = 10.0,
    ) -> None:
        """Store the endpoints' URLs in the order of preference. Raises: ValueError without any.

        They are numbered in logs from `first_number` on.
        """

        def check(found: int) -> None:
            if units(found) != chain_id:
                raise WrongChainError

        http = HttpClient(connect_seconds=connect_seconds, total_seconds=read_seconds, max_bytes=_MAX_RESPONSE_BYTES)
        super().__init__(
            chain,
            urls,
            lambda: call(lambda eth: eth.chain_id, check),
            http=http,
            max_batch=MAX_BATCH,
            first_number=first_number,
        )
        self.w3 = Web3(FailoverProvider(self), middleware=[])
