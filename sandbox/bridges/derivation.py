"""The part of op-node: every deposit in the portal on Ethereum becomes one transaction on Base.

The transaction follows from the deposit alone (specs.optimism.io, "Deposits"). It has no nonce, so anvil would execute
it again if it were sent again, or if two blocks were prepared while it is in the pool.
"""

import threading
from collections.abc import Mapping
from typing import Any

import rlp  # type: ignore[import-untyped]  # ships no types
from eth_utils.crypto import keccak

from app.adapters.bridges.deployments import PORTALS
from sandbox.evm.mining import automine_paused
from sandbox.evm.node import EvmNode
from sandbox.evm.rpc import NodeClient

_DEPOSIT_TOPIC = "0x" + keccak(text="TransactionDeposited(address,address,uint256,bytes)").hex()
_PORTAL = PORTALS["sandbox"]


class Derivation:
    """Derives Base's transactions from deposits on Ethereum's node. May be shared by threads."""

    def __init__(self, ethereum: EvmNode, base: EvmNode) -> None:
        self._ethereum = NodeClient(ethereum.url)
        self._base = NodeClient(base.url)
        self._mining_lock = base.mining_lock
        self._instance = ""
        self._height = ""
        self._executed: set[str] = set()
        self._lock = threading.Lock()

    def derive(self) -> list[str]:
        """Execute the outstanding deposits once each, and return their hashes on Base. Raises: NodeDown, NodeError.

        A node that was killed has lost blocks: after its restart, those deposits are outstanding again.
        """
        with self._lock:
            instance = self._base.call("anvil_metadata")["instanceId"]
            if instance != self._instance:
                self._instance, self._height = instance, ""
                self._executed.clear()
            height = self._ethereum.call("eth_blockNumber")
            if height == self._height:
                return []
            made = [tx_hash for log in self._deposits() if (tx_hash := self._execute(log))]
            self._height = height
            return made

    def _deposits(self) -> list[dict[str, Any]]:
        query = {"address": _PORTAL, "topics": [_DEPOSIT_TOPIC], "fromBlock": "0x0", "toBlock": "latest"}
        return list(self._ethereum.call("eth_getLogs", query))

    def _execute(self, log: Mapping[str, Any]) -> str | None:
        raw = deposit_transaction(log)
        tx_hash = "0x" + keccak(raw).hex()
        if tx_hash in self._executed:
            return None
        is_known = self._base.call("eth_getTransactionReceipt", tx_hash) is not None
        self._executed.add(tx_hash)  # before it is sent: a request without an answer may still be executed
        if is_known:
            return None
        with automine_paused(self._base, self._mining_lock) as is_paused:
            self._base.call("eth_sendRawTransaction", "0x" + raw.hex())
            if is_paused:
                self._base.call("evm_mine")
        return tx_hash


def deposit_transaction(log: Mapping[str, Any]) -> bytes:
    """Return the bytes of the transaction that a deposit becomes."""
    content = bytes.fromhex(log["data"][2:])
    opaque = content[64 : 64 + int.from_bytes(content[32:64], "big")]
    sender, to = (bytes.fromhex(topic[-40:]) for topic in log["topics"][1:3])
    mint, value, gas = (int.from_bytes(opaque[start:end], "big") for start, end in ((0, 32), (32, 64), (64, 72)))
    place = bytes.fromhex(log["blockHash"][2:]) + int(log["logIndex"], 16).to_bytes(32, "big")
    source = keccak(bytes(32) + keccak(place))
    fields = [source, sender, to, mint, value, gas, 0, opaque[73:]]
    return b"\x7e" + bytes(rlp.encode(fields))
