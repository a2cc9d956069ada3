"""Circle's services of CCTP V2: attestations of burns, and forwarding of mints."""

import base64
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coincurve import PrivateKey
from eth_utils.crypto import keccak
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from app.adapters.bridges.deployments import DEPLOYMENTS, DOMAINS, SOLANA_MESSENGER
from app.core.chains import ChainName
from sandbox.evm import roles
from sandbox.evm.abi import call_data
from sandbox.evm.rpc import NodeClient, NodeError
from solana_node import base58

_CCTP = DEPLOYMENTS["sandbox"]
_SENT_TOPIC = "0x" + keccak(text="MessageSent(bytes)").hex()
_FORWARDING = b"cctp-forward".ljust(24, b"\0") + bytes(8)
_FAST, _STANDARD = 1000, 2000
_BODY = 148
_FORWARD_UNITS = {ChainName.ETHEREUM: 210_000, ChainName.BASE: 20_000}
_LIFE_BLOCKS = 100_000
# In the order of their addresses, as the contracts require.
_ATTESTER_KEYS = (roles.ATTESTER_KEY, roles.SECOND_ATTESTER_KEY)
_BURN_DISCRIMINATORS = (bytes.fromhex("d73c3d2e723780b0"), bytes.fromhex("6ff53e83cc6cdf9b"))


@dataclass(slots=True)
class AttesterFaults:
    """Faults: messages are withheld, expire, or are not forwarded; forwarding is not offered."""

    withholds: bool = False
    expires_at: int | None = None
    """The expiration block of new attestations."""
    forwarding: str = "works"
    """Or "fails" (with an error), or "sleeps"."""
    offers_forwarding: bool = True
    fast_bps: str = "1"
    message_change: dict[int, bytes] = field(default_factory=dict)
    """Bytes to write at offsets of a message before it is signed."""


class Attester:
    """Attests burns on the chains behind these JSON-RPC addresses."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self._nodes = {ChainName(name): NodeClient(url) for name, url in urls.items()}
        self._messages: dict[str, bytes] = {}
        self._forwards: dict[str, tuple[str, str | None]] = {}
        self._lock = threading.Lock()
        self.faults = AttesterFaults()
        self.renewed: list[str] = []

    def fees(self, source: int, destination: int) -> list[dict[str, Any]]:
        """Answer GET /v2/burn/USDC/fees/{source}/{destination}."""
        names = {domain: name for name, domain in DOMAINS.items()}
        units = _FORWARD_UNITS.get(names[destination])
        extra: dict[str, Any] = {}
        if units is not None and self.faults.offers_forwarding:
            extra = {"forwardFee": {"low": units * 9 // 10, "med": units, "high": units * 11 // 10}}
        assert source in names  # noqa: S101 - the server has checked
        return [
            {"finalityThreshold": _FAST, "minimumFee": float(self.faults.fast_bps), **extra},
            {"finalityThreshold": _STANDARD, "minimumFee": 0, **extra},
        ]

    def messages(self, domain: int, tx_hash: str) -> dict[str, Any] | None:
        """Answer GET /v2/messages/{domain}; None while the burn is unknown."""
        source = next((name for name, number in DOMAINS.items() if number == domain), None)
        if source is None or source not in self._nodes:
            return None
        with self._lock:
            found = self._solana_burn(tx_hash) if source is ChainName.SOLANA else self._evm_burn(source, tx_hash)
            if found is None:
                return None
            raw, is_final = found
            if self.faults.withholds or not is_final:
                return {
                    "messages": [
                        {
                            "message": "0x", "eventNonce": "0x", "attestation": "PENDING", "cctpVersion": 2,
                            "status": "pending_confirmations", "delayReason": None,
                        }
                    ]
                }  # fmt: skip
            return {"messages": [self._attestation_entry(raw)]}

    def renew(self, nonce: str) -> bool:
        """Answer POST /v2/reattest/{nonce}."""
        with self._lock:
            self.renewed.append(nonce)
            return self._messages.pop(nonce, None) is not None

    def _attestation_entry(self, raw: bytes) -> dict[str, Any]:
        nonce = "0x" + raw[12:44].hex()
        message = self._messages.get(nonce)
        if message is None:
            message = self._messages[nonce] = self._complete_message(raw)
        # The stand-ins on the EVM chains have one attester.
        keys = _ATTESTER_KEYS if self._destination(message) is ChainName.SOLANA else _ATTESTER_KEYS[:1]
        attestation = b"".join(_signature(key, message) for key in keys)
        entry: dict[str, Any] = {
            "message": "0x" + message.hex(),
            "attestation": "0x" + attestation.hex(),
            "eventNonce": nonce,
            "cctpVersion": 2,
            "status": "complete",
            "delayReason": None,
        }
        if message[_BODY + 228 :] == _FORWARDING:
            state, tx_hash = self._forward(nonce, message, attestation)
            entry |= {"forwardState": state, "forwardTxHash": tx_hash}
        return entry

    def _complete_message(self, raw: bytes) -> bytes:
        """Fill in the fields that the attester sets: executed finality, fee and expiry."""
        message = bytearray(raw)
        is_fast = int.from_bytes(raw[140:144], "big") <= _FAST
        amount = int.from_bytes(raw[_BODY + 68 : _BODY + 100], "big")
        max_fee = int.from_bytes(raw[_BODY + 132 : _BODY + 164], "big")
        destination = self._destination(raw)
        fee = -(-amount // 10_000) if is_fast else 0
        if raw[_BODY + 228 :] == _FORWARDING:
            fee += _FORWARD_UNITS[destination]
        message[144:148] = (_FAST if is_fast else _STANDARD).to_bytes(4, "big")
        message[_BODY + 164 : _BODY + 196] = min(fee, max_fee).to_bytes(32, "big")
        if is_fast:
            expiry = self.faults.expires_at or self._head(destination) + _LIFE_BLOCKS
            message[_BODY + 196 : _BODY + 228] = expiry.to_bytes(32, "big")
        for place, content in self.faults.message_change.items():
            message[place : place + len(content)] = content
        return bytes(message)

    def _forward(self, nonce: str, message: bytes, attestation: bytes) -> tuple[str, str | None]:
        if self.faults.forwarding == "fails":
            return "FAILED", None
        if self.faults.forwarding == "sleeps":
            return "PENDING", None
        if nonce not in self._forwards:
            node = self._nodes[self._destination(message)]
            relayer = node.call("eth_accounts")[roles.RELAYER]
            data = call_data("receiveMessage(bytes,bytes)", message, attestation)
            try:
                sent = node.call(
                    "eth_sendTransaction", {"from": relayer, "to": _CCTP.transmitter, "data": data, "gas": hex(500_000)}
                )
            except NodeError:
                return "FAILED", None
            self._forwards[nonce] = ("COMPLETE", str(sent))
        return self._forwards[nonce]

    def _evm_burn(self, source: ChainName, tx_hash: str) -> tuple[bytes, bool] | None:
        node = self._nodes[source]
        receipt = node.call("eth_getTransactionReceipt", tx_hash)
        if receipt is None or receipt["status"] != "0x1":
            return None
        for log in receipt["logs"]:
            if log["address"].lower() != _CCTP.transmitter.lower() or log["topics"][0] != _SENT_TOPIC:
                continue
            content = bytes.fromhex(log["data"][2:])
            length = int.from_bytes(content[32:64], "big")
            raw = bytearray(content[64 : 64 + length])
            raw[12:44] = keccak(bytes.fromhex(tx_hash[2:]) + int(log["logIndex"], 16).to_bytes(4, "big"))
            is_fast = int.from_bytes(raw[140:144], "big") <= _FAST
            finalized = node.call("eth_getBlockByNumber", "latest" if is_fast else "finalized", False)  # noqa: FBT003
            return bytes(raw), int(finalized["number"], 16) >= int(receipt["blockNumber"], 16)
        return None

    def _solana_burn(self, signature: str) -> tuple[bytes, bool] | None:
        node = self._nodes[ChainName.SOLANA]
        options = {"encoding": "base64", "commitment": "confirmed", "maxSupportedTransactionVersion": 0}
        try:
            found = node.call("getTransaction", signature, options)
        except NodeError:
            return None
        if found is None or found["meta"]["err"] is not None:
            return None
        transaction = VersionedTransaction.from_bytes(base64.b64decode(found["transaction"][0]))
        keys = transaction.message.account_keys
        for instruction in transaction.message.instructions:
            data = bytes(instruction.data)
            if str(keys[instruction.program_id_index]) != SOLANA_MESSENGER or data[:8] not in _BURN_DISCRIMINATORS:
                continue
            named = [keys[place] for place in bytes(instruction.accounts)]
            raw = _solana_message(data, owner=named[0], mint=named[10], nonce=base58.decode(signature)[:32])
            is_fast = int.from_bytes(raw[140:144], "big") <= _FAST
            level = {"commitment": "confirmed" if is_fast else "finalized"}
            return raw, node.call("getSlot", level) >= found["slot"]
        return None

    def _destination(self, message: bytes) -> ChainName:
        domain = int.from_bytes(message[8:12], "big")
        return next(name for name, number in DOMAINS.items() if number == domain)

    def _head(self, chain: ChainName) -> int:
        node = self._nodes[chain]
        if chain is ChainName.SOLANA:
            return int(node.call("getSlot"))
        return int(node.call("eth_blockNumber"), 16)


def _signature(key: str, message: bytes) -> bytes:
    signature = PrivateKey.from_hex(key.removeprefix("0x")).sign_recoverable(keccak(message), hasher=None)
    return signature[:64] + bytes([27 + signature[64]])


def _solana_message(data: bytes, *, owner: Pubkey, mint: Pubkey, nonce: bytes) -> bytes:
    """Return the message of a burn on Solana as Circle's program emits it."""
    amount, destination = int.from_bytes(data[8:16], "little"), int.from_bytes(data[16:20], "little")
    recipient, caller = data[20:52], data[52:84]
    most_fee, finality = int.from_bytes(data[84:92], "little"), int.from_bytes(data[92:96], "little")

    def number(value: int, length: int = 32) -> bytes:
        return value.to_bytes(length, "big")

    return b"".join(
        (
            number(1, 4), number(DOMAINS[ChainName.SOLANA], 4), number(destination, 4), nonce,
            base58.decode(SOLANA_MESSENGER), bytes(12), bytes.fromhex(_CCTP.messenger[2:]), caller,
            number(finality, 4), bytes(4),
            number(1, 4), bytes(mint), recipient, number(amount), bytes(owner), number(most_fee),
            bytes(64), data[100:],
        )
    )  # fmt: skip
