"""USDC's permits (EIP-2612), by which the router may take exactly the amount of one swap."""

from __future__ import annotations

from dataclasses import dataclass

from app.adapters.evm import signatures
from app.adapters.evm.contracts.abi import Function, MulticallItem
from app.adapters.evm.contracts.calls import PERMIT_NONCE
from app.adapters.evm.contracts.deployments import EvmDeployment
from app.adapters.evm.signatures import SigningDomain
from app.adapters.swaps.uniswap.calls import PermitSignature
from app.ports.chain import Terms
from app.ports.vault import Signer

_NAME = Function("fiat_token", "name")
_VERSION = Function("fiat_token", "version")
_LEGACY_V = 27


@dataclass(frozen=True, slots=True)
class PermitFacts:
    """The token's EIP-712 domain and the owner's next permit nonce."""

    nonce: int
    name: str
    version: str

    def as_terms(self) -> Terms:
        return {"permit_nonce": self.nonce, "permit_name": self.name, "permit_version": self.version}

    @classmethod
    def from_terms(cls, terms: Terms) -> PermitFacts | None:
        """Read the output of `as_terms`; None if there is no permit."""
        if "permit_nonce" not in terms:
            return None
        nonce = int(terms["permit_nonce"] or 0)
        return cls(nonce, str(terms["permit_name"]), str(terms["permit_version"]))


def permit_calls(deployment: EvmDeployment, owner: str) -> list[MulticallItem]:
    """Return the calls that read a token's permit data, the fields of `PermitFacts`."""
    usdc = deployment.usdc
    return [PERMIT_NONCE.at(usdc, owner), _NAME.at(usdc), _VERSION.at(usdc)]


def sign(
    deployment: EvmDeployment, facts: PermitFacts, signer: Signer, *, units: int, deadline: int
) -> PermitSignature:
    """Sign a permit for the router to take this many units until a deadline.

    Chain and contract are set by us, so that a node that lies about the token gets a useless signature, and never one
    for another chain.
    """
    message = signatures.typed_message(
        "Permit(address owner,address spender,uint256 value,uint256 nonce,uint256 deadline)",
        (signer.evm_address, deployment.uniswap_router, units, facts.nonce, deadline),
        SigningDomain(facts.name, facts.version, deployment.chain_id, deployment.usdc),
    )
    y_parity, r, s = signer.sign_digest(signatures.digest_of(message))
    return PermitSignature(_LEGACY_V + y_parity, r.to_bytes(32, "big"), s.to_bytes(32, "big"))
