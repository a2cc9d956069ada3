"""Tokens that the service does not know, as anybody may deploy them: honest ones, and such that deceive or attack."""

from __future__ import annotations

import base64
import secrets
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak
from solders.account import Account
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from sandbox.evm import EvmNode
from solana_node import SolanaNode
from solana_node.addresses import TOKEN, TOKEN_2022, associated_token_address
from solana_node.tokens import mint_data, token_account_data
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
    """A token contract on a node, which mints tokens for anybody."""

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


_MINT, _ACCOUNT = 1, 2
IMMUTABLE_OWNER, NON_TRANSFERABLE, TRANSFER_HOOK, TOKEN_METADATA, TRANSFER_FEE = 7, 9, 14, 19, 1
NON_TRANSFERABLE_ACCOUNT, TRANSFER_HOOK_ACCOUNT = 13, 15
_METAPLEX = Pubkey.from_string("metaqbxxUerdq28cj1RbAWkYQm3ybzjb6a8bt518x1s")


def extension(kind: int, content: bytes = b"") -> bytes:
    return struct.pack("<HH", kind, len(content)) + content


def named(mint: Pubkey, symbol: str, name: str) -> bytes:
    """Return what Metaplex's account and the metadata extension have in common."""
    texts = [each.encode() for each in (name, symbol, "http://evil.example")]
    return bytes(32) + bytes(mint) + b"".join(struct.pack("<I", len(each)) + each for each in texts)


def fee_of(basis_points: int) -> bytes:
    """Return the extension of a mint that takes a fee of each transfer."""
    fee = struct.pack("<QQH", 0, 2**63, basis_points)
    return extension(TRANSFER_FEE, bytes(72) + fee + fee)


@dataclass
class ForeignSplToken:
    """A mint on a Solana node; what is held of it is placed, and moved by the real programs."""

    node: SolanaNode
    mint: Pubkey
    program: Pubkey

    @classmethod
    def create(
        cls,
        node: SolanaNode,
        *extensions: bytes,
        decimals: int = 6,
        is_2022: bool = False,
        own_name: tuple[str, str] | None = None,
    ) -> ForeignSplToken:
        program = Pubkey.from_string(TOKEN_2022 if is_2022 else TOKEN)
        token = cls(node, Keypair().pubkey(), program)
        if own_name is not None:
            extensions += (extension(TOKEN_METADATA, named(token.mint, *own_name)),)
        data = bytearray(mint_data(decimals))
        data[36:44] = (10**12).to_bytes(8, "little")
        node.set_account(token.mint, Account(10**9, _extended(bytes(data), _MINT, *extensions), program))
        return token

    def claim(self, symbol: str, name: str) -> None:
        """Name the token in the account that Metaplex's program would write."""
        seeds = [b"metadata", bytes(_METAPLEX), bytes(self.mint)]
        place = Pubkey.find_program_address(seeds, _METAPLEX)[0]
        self.node.set_account(place, Account(10**9, b"\x04" + named(self.mint, symbol, name), _METAPLEX))

    def place(self, owner: str, units: int, *extensions: bytes, at: Pubkey | None = None, frozen: bool = False) -> None:
        """Give an address some, in its associated account unless another is named."""
        key = Pubkey.from_string(owner)
        data = bytearray(token_account_data(self.mint, key, units))
        data[108] = 2 if frozen else 1
        place = at or associated_token_address(key, self.mint, program=str(self.program))
        self.node.set_account(place, Account(10**9, _extended(bytes(data), _ACCOUNT, *extensions), self.program))
        self.node.advance(40)

    def held_by(self, owner: str) -> int:
        place = associated_token_address(Pubkey.from_string(owner), self.mint, program=str(self.program))
        found = self.node.call("getAccountInfo", str(place), {"encoding": "base64", "commitment": "processed"})["value"]
        return 0 if found is None else int.from_bytes(base64.b64decode(found["data"][0])[64:72], "little")


def _extended(data: bytes, kind: int, *extensions: bytes) -> bytes:
    return data.ljust(165, b"\0") + bytes([kind]) + b"".join(extensions) if extensions else data
