"""Base's JSON-RPC address: anvil's, with the L1 data fee in receipts. anvil charges it without reporting it.

op-geth reports it as `l1Fee`.
"""

import json
import threading
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

from sandbox.evm.abi import call_data
from sandbox.evm.fastlz import compressed_length
from sandbox.evm.rpc import NodeClient, NodeDown, NodeError
from solana_node.loopback_server import LoopbackHandler, LoopbackServer

_RECEIPT_METHODS = (b"eth_getTransactionReceipt", b"eth_getBlockReceipts")
_PARAMETERS = tuple(
    call_data(f"{name}()") for name in ("l1BaseFee", "blobBaseFee", "baseFeeScalar", "blobBaseFeeScalar")
)
_KNOWN_BLOCKS = 10
_SCALE = 10**12
_PER_BYTE = 836_500
_INTERCEPT = 42_585_600
_MIN_SIZE_SCALED = 100_000_000
"""A linear model of the compressed size in a batch of transactions, in millionths of a byte (`estimatedSizeScaled`)."""
_DEPOSIT = 0x7E


class L1FeeProxy(LoopbackServer):
    """Serves a loopback port for the node of a client."""

    def __init__(self, port: int, node: NodeClient, *, gas_price_oracle: str) -> None:
        super().__init__(_Handler, port=port)
        self.node = node
        self._oracle = gas_price_oracle
        self._known: dict[str, list[int]] = {}
        self._lock = threading.Lock()

    def with_l1_fees(self, content: bytes) -> bytes:
        """Return replies of JSON-RPC with the fee in each receipt. Raises: NodeDown."""
        replies = json.loads(content)
        for reply in replies if isinstance(replies, list) else [replies]:
            result = reply.get("result")
            for receipt in result if isinstance(result, list) else [result]:
                if isinstance(receipt, dict) and "effectiveGasPrice" in receipt:
                    receipt["l1Fee"] = hex(self._l1_fee(receipt))
        return json.dumps(replies).encode()

    def _l1_fee(self, receipt: dict[str, Any]) -> int:
        """Return what the chain charged, which is nothing for a deposit from Ethereum."""
        if int(receipt["type"], 16) == _DEPOSIT:
            return 0  # and anvil aborts when asked for its raw bytes
        raw = self.node.call("eth_getRawTransactionByHash", receipt["transactionHash"])
        try:
            parameters = self._parameters(receipt["blockNumber"])
        except NodeError:
            # Old states are pruned; they rarely differ from the current one.
            parameters = self._parameters("latest")
        return fjord_fee(bytes.fromhex(raw[2:]), parameters)

    def _parameters(self, block: str) -> list[int]:
        with self._lock:
            known = self._known.get(block)
            if known is None:
                calls = [({"to": self._oracle, "data": data}, block) for data in _PARAMETERS]
                known = [int(result, 16) for result in self.node.call_each("eth_call", calls)]
                if block != "latest":
                    # Receipts are read soon after their block.
                    kept = list(self._known.items())[-_KNOWN_BLOCKS:]
                    self._known = {**dict(kept), block: known}
            return known


def fjord_fee(signed: bytes, parameters: Sequence[int]) -> int:
    """Return the fee of signed bytes in wei, from the four parameters of the chain's oracle.

    Source: specs.optimism.io, "Fjord: L1-Cost fees".
    """
    l1_base_fee, blob_base_fee, base_fee_scalar, blob_base_fee_scalar = parameters
    size = max(_MIN_SIZE_SCALED, _PER_BYTE * compressed_length(signed) - _INTERCEPT)
    return size * (16 * base_fee_scalar * l1_base_fee + blob_base_fee_scalar * blob_base_fee) // _SCALE


class _Handler(LoopbackHandler):
    server: L1FeeProxy

    def setup(self) -> None:
        """Use one connection to the node for each connection of a client."""
        super().setup()
        self._node = HTTPConnection(urlsplit(self.server.node.url).netloc)

    def finish(self) -> None:
        """Close both connections."""
        self._node.close()
        super().finish()

    def do_POST(self) -> None:
        """Forward a request, and complete the receipts in its response."""
        body = self.read_body()
        try:
            self._node.request("POST", "/", body, {"Content-Type": "application/json"})
            response = self._node.getresponse()
            content = response.read()
            if any(method in body for method in _RECEIPT_METHODS):
                content = self.server.with_l1_fees(content)
        except (OSError, HTTPException, NodeDown):
            self.close_connection = True  # as the node did
            return
        self.reply(response.status, content)
