"""The contract wallets that can sign payments: Coinbase Smart Wallet and Safe, by their code. No I/O.

Only the chain can verify their signatures (EIP-1271); of a wallet that is not deployed yet, ERC-6492 wraps them with
the call that deploys it.

Their code gives the same answer in a simulation and in the block after it, unless the wallet is changed in between. Any
other code could tell the two apart and burn the gas of the submission: other proxies and implementations, other
fallback handlers and initializers of a Safe, and owners that are contracts, which the wallets ask for their signatures.

Sources: `@safe-global/safe-deployments` (addresses and code hashes of Safe), `coinbase/smart-wallet`.
"""

from collections.abc import Sequence
from typing import Any

from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak

from app.adapters.evm.contracts.calls import Function
from app.core.foreign import MalformedResponseError
from app.ports.chain import Terms
from app.ports.errors import Rejected

_ZERO = "0x" + "0" * 40
_WORD, _KEY_BYTES, _SIGNATURE_BYTES = 32, 64, 65

_COINBASE_FACTORIES = {
    "0x0BA5ED0c6AA8c49038F819E587E2633c4A9F428a",  # 1
    "0xBA5ED110eFDBa3D005bfC882d75358ACBbB85842",  # 1.1
}
_COINBASE_PROXY = "aaa52c8cc8a0e3fd27ce756cc6b4e70c51423e9b597b11f32d3e49f8b1fc890d"
_COINBASE_IMPLEMENTATIONS = {
    "0x000100abaad02f1cfC8Bbe32bD5a564817339E72",  # 1
    "0x00000110dCdEdC9581cb5eCB8467282f2926534d",  # 1.1
}
_SAFE_FACTORIES = {
    "0xa6B71E26C5e0845f74c812102Ca7114b6a896AB2",  # 1.3.0
    "0xC22834581EbC8527d974F8a1c97E1bEA4EF910BC",  # 1.3.0, deployed with EIP-155
    "0x4e1DCf7AD4e460CfD30791CCC4F9c8a4f820ec67",  # 1.4.1
    "0x14F2982D601c9458F93bd70B218933A6f8165e7b",  # 1.5.0
}
_SAFE_PROXIES = {
    "b89c1b3bdf2cf8827818646bce9a8f6e372885f8c55e5c07acbd307cb133b000",  # 1.3.0
    "d7d408ebcd99b2b70be43e20253d6d92a8ea8fab29bd3be7f55b10032331fb4c",  # 1.4.1
    "4e381985ca68b3e5d27b4425fa581c19cf33146d3f887a3cfca96f55528ea46f",  # 1.5.0
}
_SAFE_SINGLETONS = {
    "0xd9Db270c1B5E3Bd161E8c8503c55cEABeE709552",  # 1.3.0
    "0x69f4D1788e39c87893C980c06EdF4b7f686e2938",  # 1.3.0, deployed with EIP-155
    "0x3E5c63644E683549055b9Be8653de26E0B4CD36E",  # 1.3.0 L2
    "0xfb1bffC9d739B8D520DaF37dF666da4C687191EA",  # 1.3.0 L2, deployed with EIP-155
    "0x41675C099F32341bf84BFc5382aF534df5C7461a",  # 1.4.1
    "0x29fcB43b46531BcA003ddC8FCB67FFE91900C762",  # 1.4.1 L2
    "0xFf51A5898e281Db6DfC7855790607438dF2ca44b",  # 1.5.0
    "0xEdd160fEBBD92E350D4D398fb636302fccd67C7e",  # 1.5.0 L2
}
_SAFE_HANDLERS = {
    "0xf48f2B2d2a534e402487b3ee7C18c33Aec0Fe5e4",  # 1.3.0
    "0x017062a1dE2FE6b99BE3d9d37841FeD19F573804",  # 1.3.0, deployed with EIP-155
    "0xfd0732Dc9E303f09fCEf3a7388Ad10A83459Ec99",  # 1.4.1
    "0x3EfCBb83A4A7AfcB4F68D501E2c2203a38be77f4",  # 1.5.0
}
"""`CompatibilityFallbackHandler`: a Safe answers EIP-1271 by its fallback handler."""
_SAFE_SETUPS = {
    "0xBD89A1CE4DDe368FFAB0eC35506eEcE0b1fFdc54",  # 1.4.1
    "0x900C7589200010D6C6eCaaE5B06EBe653bc2D82a",  # 1.5.0
}
"""`SafeToL2Setup`, the only code that a new Safe may run."""

SINGLETON_SLOT = 0
IMPLEMENTATION_SLOT = 0x360894A13BA1A3210667C828492DB98DCA3E2076CC3735A920A3CA505D382BBC
"""Where EIP-1967 stores it."""
HANDLER_SLOT = int.from_bytes(keccak(text="fallback_manager.handler.address"))
SLOTS = (SINGLETON_SLOT, IMPLEMENTATION_SLOT, HANDLER_SLOT)

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
    if factory not in _COINBASE_FACTORIES | _SAFE_FACTORIES:
        raise Rejected(FACTORY_NOT_ALLOWED)
    return inner, {"factory": factory, "deployment": data.hex()}


def owner_by_code(code: bytes, slots: Sequence[bytes], signature: bytes) -> int | None:
    """Return the index of the owner that signed, None if only keys did. Raises: Rejected unless the code is known."""
    proxy = keccak(code).hex()
    singleton, implementation, handler = map(_address, slots)
    if proxy == _COINBASE_PROXY and implementation in _COINBASE_IMPLEMENTATIONS:
        return _owner_index(signature)
    if proxy in _SAFE_PROXIES and singleton in _SAFE_SINGLETONS and handler in _SAFE_HANDLERS:
        _assert_signed_by_keys(signature)
        return None
    raise Rejected(NOT_SUPPORTED)


def owner_by_deployment(factory: str, data: bytes, signature: bytes) -> bytes | None:
    """Return the owner that signed for a wallet to be deployed, None if only keys did. Raises: Rejected for others."""
    if factory in _COINBASE_FACTORIES:
        owners, _nonce = _decode(_CREATE_ACCOUNT, data)
        index = _owner_index(signature)
        if index >= len(owners):
            raise Rejected(NOT_SUPPORTED)
        return bytes(owners[index])
    if factory in _SAFE_FACTORIES:
        singleton, initializer, _salt = _decode(_CREATE_PROXY, data)
        if singleton in _SAFE_SINGLETONS:
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
    risky = to != _ZERO
    if risky and to in _SAFE_SETUPS:
        (singleton,) = _decode(_SETUP_TO_L2, data)
        risky = singleton not in _SAFE_SINGLETONS
    if risky or payment or handler not in _SAFE_HANDLERS:
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
