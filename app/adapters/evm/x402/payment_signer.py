"""The `PaymentSigner` port for Ethereum and Base: EIP-3009 authorizations over USDC's own domain, or Permit2.

Contract, chain and domain are ours: what a seller states about them is compared, and never signed. By Permit2, x402's
proxy transfers what the payer signed, and to no other than the recipient in it (x402's `scheme_exact_evm.md`); with
`eip2612GasSponsoring` the seller's facilitator also submits the allowance that the payer signs, for this amount only.
"""

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.adapters.evm import signatures
from app.adapters.evm.chain import EvmChain
from app.adapters.evm.contracts import calls as contracts
from app.adapters.evm.contracts.deployments import PERMIT2, X402_PERMIT2_PROXY, EvmDeployment
from app.adapters.evm.signatures import SigningDomain
from app.adapters.evm.track.authorizations import OpenAuthorization
from app.adapters.evm.x402 import eip3009
from app.core import addresses
from app.core.addresses import AddressError
from app.core.chains import USDC, Family
from app.ports.chain import Terms
from app.ports.errors import Rejected
from app.ports.facilitator import AuthorizedPayment, PaymentIntent
from app.ports.vault import Signer

METHOD = "permit2"
SPONSORING = "eip2612GasSponsoring"
_TRANSFER_STRUCT = (
    "PermitWitnessTransferFrom"
    "(TokenPermissions permitted,address spender,uint256 nonce,uint256 deadline,Witness witness)"
    "TokenPermissions(address token,uint256 amount)"
    "Witness(address to,uint256 validAfter)"
)
_ALLOWANCE_STRUCT = "Permit(address owner,address spender,uint256 value,uint256 nonce,uint256 deadline)"


def sign_transfer(
    deployment: EvmDeployment, intent: PaymentIntent, signer: Signer, *, nonce: int, deadline: int
) -> Mapping[str, Any]:
    """Return the payload of a payment that may be used until a deadline, inclusive."""
    values = (
        {"token": deployment.usdc, "amount": intent.units},
        X402_PERMIT2_PROXY,
        nonce,
        deadline,
        {"to": intent.recipient, "validAfter": 0},
    )
    domain = SigningDomain("Permit2", None, deployment.chain_id, PERMIT2)
    message = signatures.typed_message(_TRANSFER_STRUCT, values, domain)
    return {
        "signature": signatures.sign(message, signer),
        "permit2Authorization": {
            "from": signer.evm_address,
            "permitted": {"token": deployment.usdc, "amount": str(intent.units)},
            "spender": X402_PERMIT2_PROXY,
            "nonce": str(nonce),
            "deadline": str(deadline),
            "witness": {"to": intent.recipient, "validAfter": "0"},
        },
    }


def sign_allowance(
    deployment: EvmDeployment, intent: PaymentIntent, signer: Signer, *, permit_nonce: int, deadline: int
) -> Mapping[str, Any]:
    """Return what lets the facilitator set the allowance of Permit2 to exactly this payment."""
    values = (signer.evm_address, PERMIT2, intent.units, permit_nonce, deadline)
    message = signatures.typed_message(_ALLOWANCE_STRUCT, values, eip3009.usdc_domain(deployment))
    return {
        "from": signer.evm_address,
        "asset": deployment.usdc,
        "spender": PERMIT2,
        "amount": str(intent.units),
        "nonce": str(permit_nonce),
        "deadline": str(deadline),
        "signature": signatures.sign(message, signer),
        "version": "1",
    }


_NONCE_BYTES = 32


class EvmPaymentSigner:
    def __init__(self, chain: EvmChain) -> None:
        self._chain = chain
        self._deployment = chain.deployment
        self.asset = eip3009.usdc_asset(chain.deployment)

    def canonical_recipient(self, text: str) -> str | None:
        try:
            recipient = addresses.parse(text, Family.EVM)
        except AddressError:
            return None
        return None if self._chain.recipient_rejection(recipient, USDC) else recipient

    def accepts_extra(self, extra: Mapping[str, Any]) -> bool:
        domain = {name: extra.get(name, value) for name, value in self.asset.extra.items()}
        return domain == self.asset.extra and _method(extra) in (eip3009.METHOD, METHOD)

    def prepare(self, intent: PaymentIntent) -> Terms:
        """Read the allowance of Permit2, and the nonce to sign a missing one; EIP-3009 needs nothing of the chain.

        Raises: Rejected("permit2_allowance_missing") if the seller's facilitator does not submit it.
        """
        if _method(intent.extra) != METHOD:
            return {}
        usdc = self._deployment.usdc
        inner = [contracts.ALLOWANCE.at(usdc, intent.payer, PERMIT2), contracts.PERMIT_NONCE.at(usdc, intent.payer)]
        allowance, permit_nonce = self._chain.rpc.ask(contracts.multicall(self._deployment.multicall3, inner))
        if allowance >= intent.units:
            return {}
        if SPONSORING not in intent.extensions:
            raise Rejected("permit2_allowance_missing")
        return {"permit_nonce": permit_nonce}

    def authorize(self, intent: PaymentIntent, prepared: Terms, signer: Signer, *, now: int) -> AuthorizedPayment:
        """Sign an authorization with a random nonce, which the token, or Permit2, accepts once."""
        nonce, end = secrets.token_bytes(_NONCE_BYTES), now + intent.validity_seconds
        opened = OpenAuthorization(signer.evm_address, nonce, end, intent.since_block)
        extensions = {}
        if _method(intent.extra) == METHOD:
            # Permit2 accepts its deadline itself, too.
            opened = replace(opened, valid_before=end + 1, permit2_recipient=intent.recipient)
            number = int.from_bytes(nonce, "big")
            payload = sign_transfer(self._deployment, intent, signer, nonce=number, deadline=end)
            if "permit_nonce" in prepared:
                permit_nonce = int(prepared["permit_nonce"] or 0)
                extensions[SPONSORING] = sign_allowance(
                    self._deployment, intent, signer, permit_nonce=permit_nonce, deadline=end
                )
        else:
            payload = eip3009.sign_transfer(self._deployment, intent, signer, nonce=nonce, valid_before=end)
        return AuthorizedPayment("0x" + nonce.hex(), payload, opened.as_terms(), extensions)


def _method(extra: Mapping[str, Any]) -> object:
    return extra.get("assetTransferMethod", eip3009.METHOD)
