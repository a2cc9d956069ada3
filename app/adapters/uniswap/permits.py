"""USDC's permits (EIP-2612): what is signed so that the router may take exactly the amount of one swap."""

from __future__ import annotations

from dataclasses import dataclass

from eth_abi.abi import decode, encode
from eth_abi.exceptions import DecodingError
from eth_utils.crypto import keccak

from app.adapters.evm.contracts import Inner, number, word_of_address
from app.adapters.evm.deployments import Deployment
from app.adapters.json_rpc import MalformedAnswerError
from app.adapters.uniswap.calls import PermitSignature
from app.ports.chain import Terms
from app.ports.vault import Signer

_NONCES = bytes.fromhex("7ecebe00")  # nonces(address)
_NAME = bytes.fromhex("06fdde03")  # name()
_VERSION = bytes.fromhex("54fd4d50")  # version()
_DOMAIN = keccak(text="EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)")
_PERMIT = keccak(text="Permit(address owner,address spender,uint256 value,uint256 nonce,uint256 deadline)")
_LEGACY_V = 27


@dataclass(frozen=True, slots=True)
class PermitFacts:
    """What the token says of itself and of the owner's permits so far."""

    nonce: int
    name: str
    version: str

    def as_terms(self) -> Terms:
        """Write them as JSON values."""
        return {"permit_nonce": self.nonce, "permit_name": self.name, "permit_version": self.version}

    @classmethod
    def from_terms(cls, terms: Terms) -> PermitFacts | None:
        """Read what `as_terms` wrote; None where there is no permit."""
        if "permit_nonce" not in terms:
            return None
        nonce = int(terms["permit_nonce"] or 0)
        return cls(nonce, str(terms["permit_name"]), str(terms["permit_version"]))


def questions(deployment: Deployment, owner: str) -> list[Inner]:
    """Ask the token for its side of a permit."""
    usdc = deployment.usdc
    return [Inner(usdc, _NONCES + word_of_address(owner)), Inner(usdc, _NAME), Inner(usdc, _VERSION)]


def read(returned: tuple[bytes | None, ...]) -> PermitFacts:
    """Read the answers to `questions`."""
    nonce, name, version = returned
    return PermitFacts(number(nonce), _text(name), _text(version))


def sign(
    deployment: Deployment, facts: PermitFacts, signer: Signer, *, units: int, deadline: int
) -> PermitSignature:
    """Let the router take so many units until a deadline.

    Chain and contract are ours to say, so that a node that lies about the token gets a signature that is good
    for nothing, and never one for another chain.
    """
    domain = keccak(
        encode(
            ["bytes32", "bytes32", "bytes32", "uint256", "address"],
            [
                _DOMAIN,
                keccak(text=facts.name),
                keccak(text=facts.version),
                deployment.chain_id,
                deployment.usdc,
            ],
        )
    )
    permitted = (signer.evm_address, deployment.uniswap_router, units, facts.nonce, deadline)
    struct = keccak(
        encode(["bytes32", "address", "address", "uint256", "uint256", "uint256"], [_PERMIT, *permitted])
    )
    y_parity, r, s = signer.sign_digest(keccak(b"\x19\x01" + domain + struct))
    return PermitSignature(_LEGACY_V + y_parity, r.to_bytes(32, "big"), s.to_bytes(32, "big"))


def _text(returned: bytes | None) -> str:
    try:
        (text,) = decode(["string"], returned or b"")
    except (DecodingError, OverflowError, UnicodeDecodeError):
        raise MalformedAnswerError("expected a text") from None
    return str(text)
