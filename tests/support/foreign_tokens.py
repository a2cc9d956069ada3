"""Tokens that the service does not know, as anybody may deploy them: honest ones, and such that deceive or attack."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak

from sandbox.evm import EvmNode
from tests.support.evm import await_mined

_REVERT = bytes.fromhex("5f5ffd")
_TRANSFER_EVENT = keccak(text="Transfer(address,address,uint256)")
BURN_ALL_GAS = bytes.fromhex("fe")
RETURN_A_MEGABYTE = bytes.fromhex("62100000 5f f3".replace(" ", ""))
NOTHING = bytes.fromhex("5f5ff3")
_BALANCE = bytes.fromhex("600435545f5260205ff3")


def number(value: int) -> bytes:
    """Return code that returns a number."""
    return b"\x7f" + value.to_bytes(32) + bytes.fromhex("5f5260205ff3")


def words(raw: bytes) -> bytes:
    """Return code that returns bytes, whole words of them."""
    code = b""
    for at in range(0, len(raw), 32):
        code += b"\x7f" + raw[at : at + 32].ljust(32, b"\0") + b"\x61" + at.to_bytes(2) + b"\x52"
    return code + b"\x61" + len(raw).to_bytes(2) + bytes.fromhex("5ff3")


def string(value: str | bytes) -> bytes:
    """Return code that returns a string of Solidity's."""
    raw = value if isinstance(value, bytes) else value.encode()
    padded = raw.ljust(-(-len(raw) // 32) * 32, b"\0")
    return words((32).to_bytes(32) + len(raw).to_bytes(32) + padded)


def moves(*, returns: bytes, percent: int = 100, logs: bool = True) -> bytes:
    """Return the code of a transfer that moves what it is asked to, less a fee, and then returns something."""
    # The caller's balance is checked and reduced, and the recipient's raised; a fee is burned.
    reduce = b"\x33\x54\x60\x24\x35\x81\x10\x61@@\x57" + b"\x60\x24\x35\x90\x03\x33\x55"
    credit = b"\x60\x64\x60" + bytes([percent]) + b"\x60\x24\x35\x02\x04\x60\x04\x35\x54\x01\x60\x04\x35\x55"
    log = b"\x60\x24\x35\x5f\x52\x60\x04\x35\x33\x7f" + _TRANSFER_EVENT + b"\x60\x20\x5f\xa3"
    return reduce + credit + (log if logs else b"") + returns


TRUE, FALSE = number(1), number(0)
# Whoever only tries a transfer gives no price for gas.
FALSE_WHEN_SENT = bytes.fromhex("3a155f5260205ff3")
HONEST = moves(returns=TRUE)
_SELECTORS = {
    "balanceOf(address)": "balance", "transfer(address,uint256)": "transfer", "decimals()": "decimals",
    "symbol()": "symbol", "name()": "name",
}  # fmt: skip


def runtime(functions: Mapping[str, bytes]) -> bytes:
    """Return the code of a contract with these functions; others revert."""
    head_bytes, table_bytes = 5, 11
    start = head_bytes + table_bytes * len(functions)
    head, bodies = bytes.fromhex("5f3560e01c"), b"\x5b" + _REVERT
    fails = start
    for signature, body in functions.items():
        place = start + len(bodies)
        head += b"\x80\x63" + keccak(text=signature)[:4] + b"\x14\x61" + place.to_bytes(2) + b"\x57"
        bodies += b"\x5b" + body.replace(b"\x61@@", b"\x61" + fails.to_bytes(2))
    return head + bodies


@dataclass
class ForeignErc20:
    """A token contract on a node, of which anybody may get some."""

    node: EvmNode
    address: str
    bodies: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def deploy(
        cls,
        node: EvmNode,
        *,
        symbol: bytes = string("GOOD"),
        name: bytes = string("A good token"),
        decimals: bytes = number(18),
        balance: bytes = _BALANCE,
        transfer: bytes = HONEST,
    ) -> ForeignErc20:
        token = cls(node, to_checksum_address(secrets.token_bytes(20)))
        token.change(symbol=symbol, name=name, decimals=decimals, balance=balance, transfer=transfer)
        return token

    def change(self, **changed: bytes) -> None:
        """Replace functions, as the owner of an upgradeable contract can."""
        self.bodies = bodies = {**self.bodies, **changed}
        code = runtime({signature: bodies[name] for signature, name in _SELECTORS.items()})
        self.node.rpc("anvil_setCode", self.address, "0x" + code.hex())

    def send(self, to: str, units: int) -> None:
        """Pay an address with a real transfer, which logs it."""
        holder = self.node.rpc("eth_accounts")[2]
        slot = "0x" + holder[2:].rjust(64, "0")
        self.node.rpc("anvil_setStorageAt", self.address, slot, hex_word(units))
        before = self.node.rpc("eth_getCode", self.address, "latest")
        honest = runtime({"transfer(address,uint256)": HONEST})
        self.node.rpc("anvil_setCode", self.address, "0x" + honest.hex())
        data = "0xa9059cbb" + to[2:].lower().rjust(64, "0") + hex_word(units)[2:]
        sent = self.node.rpc("eth_sendTransaction", {"from": holder, "to": self.address, "data": data})
        await_mined(self.node, sent)
        self.node.rpc("anvil_setCode", self.address, before)

    def held_by(self, address: str) -> int:
        slot = "0x" + address[2:].lower().rjust(64, "0")
        return int(self.node.rpc("eth_getStorageAt", self.address, slot, "latest"), 16)


def hex_word(value: int) -> str:
    return "0x" + value.to_bytes(32).hex()
