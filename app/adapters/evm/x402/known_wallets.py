"""The contract wallets that can sign payments: Coinbase Smart Wallet and Safe, by their code. No I/O.

Only the chain can verify their signatures (EIP-1271); of a wallet that is not deployed yet, ERC-6492 wraps them with
the call that deploys it.

Their code gives the same answer in a simulation and in the block after it, unless the wallet is changed in between. Any
other code could tell the two apart and burn the gas of the submission: other proxies and implementations, other
fallback handlers and initializers of a Safe, and owners that are contracts, which the wallets ask for their signatures.
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak

from app.adapters.evm.contracts.calls import Function
from app.core.chains import ZERO_EVM_ADDRESS
from app.core.foreign import MalformedResponseError
from app.ports.chain import Terms
from app.ports.errors import Rejected

_WORD, _KEY_BYTES, _SIGNATURE_BYTES = 32, 64, 65

_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_COINBASE, _SAFE = ({kind: frozenset(known) for kind, known in _TABLES[name].items()} for name in ("coinbase", "safe"))

_EIP_1967_SLOT = 0x360894A13BA1A3210667C828492DB98DCA3E2076CC3735A920A3CA505D382BBC
SLOTS = 0, _EIP_1967_SLOT, int.from_bytes(keccak(text="fallback_manager.handler.address"))
"""Of a Safe's singleton, of the implementation of another proxy, and of a Safe's fallback handler."""

OWNER_AT_INDEX = Function("contract_wallet", "ownerAtIndex")
_CREATE_ACCOUNT = Function("wallet_factory", "createAccount")
_CREATE_PROXY = Function("wallet_factory", "createProxyWithNonce")
_SETUP = Function("wallet_factory", "setup")
_SETUP_TO_L2 = Function("wallet_factory", "setupToL2")
# The selectors make values readable as calls; they are none.
_WRAPPER = Function("contract_wallet", "wrapped((uint256,bytes))")
_ERC_6492 = Function("contract_wallet", "wrapped(address,bytes,bytes)")
_ERC_6492_MAGIC = bytes.fromhex("6492" * 16)
NOT_SUPPORTED = "wallet_not_supported"
FACTORY_NOT_ALLOWED = "eip6492_factory_not_allowed"


def unwrap(signature: bytes) -> tuple[bytes, Terms]:
    """Return a wallet's own signature, and the terms of its deployment if ERC-6492 wraps it. Raises: Rejected."""
    if not signature.endswith(_ERC_6492_MAGIC):
        return signature, {}
    try:
        encoded = _ERC_6492.selector + signature[: -len(_ERC_6492_MAGIC)]
        factory, data, inner = _ERC_6492.decode(encoded)
    except MalformedResponseError:
        raise Rejected("invalid_payload") from None
    if factory not in _COINBASE["factories"] | _SAFE["factories"]:
        raise Rejected(FACTORY_NOT_ALLOWED)
    return inner, {"factory": factory, "deployment": data.hex()}


def owner_by_code(code: bytes, slots: Sequence[bytes], signature: bytes) -> int | None:
    """Return the index of the owner that signed, None if only keys did. Raises: Rejected unless the code is known."""
    proxy = keccak(code).hex()
    singleton, implementation, handler = map(_address, slots)
    if proxy in _COINBASE["proxies"] and implementation in _COINBASE["implementations"]:
        return _owner_index(signature)
    if proxy in _SAFE["proxies"] and singleton in _SAFE["singletons"] and handler in _SAFE["handlers"]:
        _assert_signed_by_keys(signature)
        return None
    raise Rejected(NOT_SUPPORTED)


def owner_by_deployment(factory: str, data: bytes, signature: bytes) -> bytes | None:
    """Return the owner that signed for a wallet to be deployed, None if only keys did. Raises: Rejected for others."""
    if factory in _COINBASE["factories"]:
        owners, _nonce = _decode(_CREATE_ACCOUNT, data)
        index = _owner_index(signature)
        if index >= len(owners):
            raise Rejected(NOT_SUPPORTED)
        return bytes(owners[index])
    if factory in _SAFE["factories"]:
        singleton, initializer, _salt = _decode(_CREATE_PROXY, data)
        if singleton in _SAFE["singletons"]:
            _assert_harmless(initializer)
            _assert_signed_by_keys(signature)
            return None
    raise Rejected(FACTORY_NOT_ALLOWED)


def contract_owner(owner: bytes) -> str | None:
    """Return the address of an owner that must be a key, None for a passkey. Raises: Rejected for anything else."""
    if len(owner) == _KEY_BYTES:
        return None
    if len(owner) != _WORD or any(owner[:12]):
        raise Rejected(NOT_SUPPORTED)
    return _address(owner)


def _assert_harmless(initializer: bytes) -> None:
    """Check that the initializer of a Safe runs no foreign code and makes no payment."""
    _owners, _threshold, to, data, handler, _token, payment, _receiver = _decode(_SETUP, initializer)
    risky = to != ZERO_EVM_ADDRESS
    if risky and to in _SAFE["setups"]:
        (singleton,) = _decode(_SETUP_TO_L2, data)
        risky = singleton not in _SAFE["singletons"]
    if risky or payment or handler not in _SAFE["handlers"]:
        raise Rejected(FACTORY_NOT_ALLOWED)


def _assert_signed_by_keys(signature: bytes) -> None:
    """Check that no signature in those of a Safe is a contract's: v is 0 then, and the Safe calls that contract."""
    whole = len(signature) - len(signature) % _SIGNATURE_BYTES
    if not all(signature[_SIGNATURE_BYTES - 1 : whole : _SIGNATURE_BYTES]):
        raise Rejected(NOT_SUPPORTED)


def _owner_index(signature: bytes) -> int:
    try:
        ((index, _data),) = _WRAPPER.decode(_WRAPPER.selector + signature)
    except MalformedResponseError:
        raise Rejected("invalid_exact_evm_payload_signature") from None
    return int(index)


def _decode(function: Function, data: bytes) -> tuple[Any, ...]:
    """Decode calldata that any decoder reads alike. Raises: Rejected for any other."""
    try:
        decoded = function.decode(data)
    except MalformedResponseError:
        raise Rejected(FACTORY_NOT_ALLOWED) from None
    if function.encode(*decoded) != data:
        raise Rejected(FACTORY_NOT_ALLOWED)
    return decoded


def _address(word: bytes) -> str:
    return str(to_checksum_address(word[-20:].rjust(20, b"\0")))
