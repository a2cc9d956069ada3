"""EIP-712 and EIP-191 messages, their digests and signers, and the keys of wallets, by eth-account. No I/O."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from eth_account import Account
from eth_account.hdaccount import ETHEREUM_DEFAULT_PATH, key_from_seed
from eth_account.messages import SignableMessage, encode_typed_data
from eth_utils.crypto import keccak

from app.ports.vault import Signer

SIGNATURE = re.compile(r"0x[0-9a-fA-F]{130}", re.ASCII)
_RECOVERY_IDS = (27, 28, 0, 1)
"""Some wallets count from 0."""


@dataclass(frozen=True, slots=True)
class SigningDomain:
    """The EIP-712 domain of a contract; some have no version."""

    name: str
    version: str | None
    chain_id: int
    contract: str


def typed_message(struct: str, values: Sequence[object], domain: SigningDomain) -> SignableMessage:
    """Return the EIP-712 message of a struct in the standard's notation, `Name(type name,…)`, with its values.

    Structs in it follow it, as in the standard's `encodeType`; their values are dictionaries.
    """
    types: dict[str, list[dict[str, str]]] = {}
    for text in struct.removesuffix(")").split(")"):
        name, _, members = text.partition("(")
        fields = [member.split() for member in members.split(",")]
        types[name] = [{"name": label, "type": kind} for kind, label in fields]
    first = next(iter(types.values()))
    message = {field["name"]: value for field, value in zip(first, values, strict=True)}
    stated = {"name": domain.name, "chainId": domain.chain_id, "verifyingContract": domain.contract}
    if domain.version is not None:
        stated["version"] = domain.version
    return encode_typed_data(stated, types, message)


def digest_of(message: SignableMessage) -> bytes:
    return keccak(b"\x19" + message.version + message.header + message.body)


def sign(struct: str, values: Sequence[object], domain: SigningDomain, signer: Signer) -> str:
    """Sign the EIP-712 message of a struct; see `typed_message`."""
    digest = digest_of(typed_message(struct, values, domain))
    y_parity, r, s = signer.sign_digest(digest, {"struct": struct, "values": values, "domain": asdict(domain)})
    return "0x" + (r.to_bytes(32, "big") + s.to_bytes(32, "big") + bytes([_RECOVERY_IDS[y_parity]])).hex()


def signer_of(message: SignableMessage, signature: str) -> str | None:
    """Return the address that signed a message, or None for an invalid signature."""
    if not SIGNATURE.fullmatch(signature) or int(signature[-2:], 16) not in _RECOVERY_IDS:
        return None
    try:
        return str(Account.recover_message(message, signature=signature))
    except Exception:
        return None


def wallet_secret(seed: bytes) -> bytes:
    """Return the private key at m/44'/60'/0'/0/0, the first account of MetaMask (BIP-32, BIP-44)."""
    return key_from_seed(seed, ETHEREUM_DEFAULT_PATH)
