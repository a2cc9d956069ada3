"""Payers that are a Safe: the contracts of Safe's own npm package, deployed or not yet."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any

from eth_abi.abi import encode
from eth_account import Account
from eth_account.messages import encode_typed_data
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak

from sandbox.cache import Cache, Package
from sandbox.evm import EvmNode
from tests.support.chains import fund
from tests.support.evm import await_mined
from tests.support.payments import EvmPayer

_PACKAGE = Package(
    "@safe-global/safe-contracts",
    "1.4.1",
    "sha512-fP1jewywSwsIniM04NsqPyVRFKPMAuirC3ftA/TA4X3Zc5EnwQp/UCJUU2PL/37/z/jMo8UUaJ+pnFNWmMU7dQ==",
)
FACTORY = "0x4e1DCf7AD4e460CfD30791CCC4F9c8a4f820ec67"
_SINGLETON = "0x41675C099F32341bf84BFc5382aF534df5C7461a"
_HANDLER = "0xfd0732Dc9E303f09fCEf3a7388Ad10A83459Ec99"
_ADDRESSES = {
    _SINGLETON: "Safe.sol/Safe.json",
    FACTORY: "proxies/SafeProxyFactory.sol/SafeProxyFactory.json",
    _HANDLER: "handler/CompatibilityFallbackHandler.sol/CompatibilityFallbackHandler.json",
}
_MAGIC = "6492" * 16


def place_safe(node: EvmNode, *, factory: str = FACTORY) -> None:
    """Place the contracts of Safe 1.4.1 at their addresses on every chain."""
    members = {address: f"build/artifacts/contracts/{name}" for address, name in _ADDRESSES.items()}
    folder = Cache().files(_PACKAGE, tuple(members.values()))
    for address, member in members.items():
        code = json.loads((folder / member).read_bytes())["deployedBytecode"]
        node.rpc("anvil_setCode", factory if address == FACTORY else address, code)


class SafePayer(EvmPayer):
    """A payer that is a Safe with one owner, who signs for it."""

    def __init__(self, node: EvmNode, *, is_deployed: bool, dollars: float = 1, factory: str = FACTORY) -> None:
        self.node = node
        self.account = Account.create()
        self.factory = factory
        self.is_wrapped = not is_deployed
        place_safe(node, factory=factory)
        setup = _call(
            "setup(address[],uint256,address,bytes,address,address,uint256,address)",
            [self.account.address], 1, _ZERO, b"", _HANDLER, _ZERO, 0, _ZERO,
        )  # fmt: skip
        self.deployment = _call("createProxyWithNonce(address,bytes,uint256)", _SINGLETON, setup, secrets.randbits(128))
        sender = node.rpc("eth_accounts")[0]
        call = {"from": sender, "to": factory, "data": "0x" + self.deployment.hex()}
        self.address = to_checksum_address("0x" + node.rpc("eth_call", call, "latest")[-40:])
        if is_deployed:
            self.deploy()
        fund(node, self.address, dollars=dollars)

    def deploy(self) -> None:
        sender = self.node.rpc("eth_accounts")[0]
        call = {"from": sender, "to": self.factory, "data": "0x" + self.deployment.hex()}
        await_mined(self.node, self.node.rpc("eth_sendTransaction", call))

    def sign(self, authorization: Mapping[str, Any]) -> str:
        return self.signature(self.authorization_digest(authorization))

    def signature(self, digest: bytes) -> str:
        """Return the Safe's signature of a digest, wrapped by ERC-6492 while the Safe is not deployed."""
        domain = {"chainId": self.node.chain_id, "verifyingContract": self.address}
        types = {"SafeMessage": [{"name": "message", "type": "bytes"}]}
        signed = self.account.sign_message(encode_typed_data(domain, types, {"message": digest}))
        inner = bytes(signed.signature)
        if not self.is_wrapped:
            return "0x" + inner.hex()
        wrapped = encode(["address", "bytes", "bytes"], [self.factory, self.deployment, inner])
        return f"0x{wrapped.hex()}{_MAGIC}"

    def change_owner(self) -> None:
        """Let the Safe replace its owner: signatures of the previous one are invalid from then on."""
        swap = _call("swapOwner(address,address,address)", _SENTINEL, self.account.address, Account.create().address)
        approved = f"{'0' * 24}{self.account.address[2:].lower()}{'0' * 64}01"
        execution = _call(
            "execTransaction(address,uint256,bytes,uint8,uint256,uint256,uint256,address,address,bytes)",
            self.address, 0, swap, 0, 0, 0, 0, _ZERO, _ZERO, bytes.fromhex(approved),
        )  # fmt: skip
        self.node.rpc("anvil_impersonateAccount", self.account.address)
        self.node.rpc("anvil_setBalance", self.account.address, hex(10**18))
        call = {"from": self.account.address, "to": self.address, "data": "0x" + execution.hex()}
        await_mined(self.node, self.node.rpc("eth_sendTransaction", call))


_ZERO = "0x" + "0" * 40
_SENTINEL = "0x" + "0" * 39 + "1"


def _call(signature: str, *arguments: object) -> bytes:
    types = signature[signature.index("(") + 1 : -1].split(",")
    return keccak(text=signature)[:4] + encode(types, arguments)
