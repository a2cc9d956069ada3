"""Payments by Permit2: x402's proxy transfers what the payer signed, and to no other than the recipient in it.

No I/O. Format: x402's `specs/schemes/exact/scheme_exact_evm.md`, with `eip2612GasSponsoring`, by which the seller's
facilitator also submits the allowance of Permit2 that the payer signs (EIP-2612), for this amount only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.adapters.evm import signatures
from app.adapters.evm.contracts.deployments import PERMIT2, X402_PERMIT2_PROXY, EvmDeployment
from app.adapters.evm.signatures import SigningDomain
from app.adapters.evm.x402 import eip3009
from app.ports.payment_signer import PaymentIntent
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
