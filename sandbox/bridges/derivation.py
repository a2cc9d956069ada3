"""What op-node does for Base: every deposit in the portal on Ethereum becomes one transaction on Base.

The transaction follows from the deposit alone (specs.optimism.io, "Deposits"), so that one which is there already is
not made again.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import rlp  # type: ignore[import-untyped]  # ships no types
from eth_utils.crypto import keccak

from app.adapters.portal.deployments import PORTALS
from sandbox.evm.rpc import NodeClient, NodeDown, NodeError

_DEPOSIT_TOPIC = "0x" + keccak(text="TransactionDeposited(address,address,uint256,bytes)").hex()
_PORTAL = PORTALS["sandbox"]
_POLL_SECONDS = 0.5


class Derivation:
    """Carries deposits from Ethereum's node to Base's, on demand or in a thread."""

    def __init__(self, ethereum_url: str, base_url: str) -> None:
        """Take both nodes."""
        self._ethereum = NodeClient(ethereum_url)
        self._base = NodeClient(base_url)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Look every half second."""
        self._thread = threading.Thread(target=self._run, name="derivation", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop looking."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def derive(self) -> list[str]:
        """Execute what is not executed yet, and return its hashes on Base."""
        query = {"address": _PORTAL, "topics": [_DEPOSIT_TOPIC], "fromBlock": "0x0", "toBlock": "latest"}
        made = []
        for log in self._ethereum.call("eth_getLogs", query):
            raw = deposit_transaction(log)
            tx_hash = "0x" + keccak(raw).hex()
            if self._base.call("eth_getTransactionReceipt", tx_hash) is None:
                self._base.call("eth_sendRawTransaction", "0x" + raw.hex())
                made.append(tx_hash)
        return made

    def _run(self) -> None:
        while not self._stopping.wait(_POLL_SECONDS):
            try:
                self.derive()
            except (NodeDown, NodeError):
                continue  # a node is coming back


def deposit_transaction(log: Mapping[str, Any]) -> bytes:
    """Return the bytes of the transaction that a deposit becomes."""
    content = bytes.fromhex(log["data"][2:])
    opaque = content[64 : 64 + int.from_bytes(content[32:64], "big")]
    sender, to = (bytes.fromhex(topic[-40:]) for topic in log["topics"][1:3])
    mint, value, gas = (
        int.from_bytes(opaque[start:end], "big") for start, end in ((0, 32), (32, 64), (64, 72))
    )
    place = bytes.fromhex(log["blockHash"][2:]) + int(log["logIndex"], 16).to_bytes(32, "big")
    source = keccak(bytes(32) + keccak(place))
    fields = [source, sender, to, mint, value, gas, 0, opaque[73:]]
    return b"\x7e" + bytes(rlp.encode(fields))
