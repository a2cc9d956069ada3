"""The `PaymentSigner` port for Ethereum and Base: EIP-3009 authorizations over USDC's own domain. No network.

Contract, chain and domain are ours: what a seller states about them is compared, and never signed.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from app.adapters.evm import signatures
from app.adapters.evm.chain import EvmChain
from app.adapters.evm.signatures import SigningDomain
from app.adapters.evm.track.authorizations import OpenAuthorization
from app.adapters.evm.x402.eip3009 import DOMAIN_VERSION, TRANSFER_STRUCT
from app.core import addresses
from app.core.addresses import AddressError
from app.core.chains import USDC, Family
from app.ports.facilitator import PaymentAsset
from app.ports.payment_signer import AuthorizedPayment, PaymentIntent
from app.ports.vault import Signer

_NONCE_BYTES = 32
_LEGACY_V = 27
_TRANSFER_METHOD = "eip3009"


class EvmPaymentSigner:
    """The payment signer of one EVM chain."""

    def __init__(self, chain: EvmChain) -> None:
        """Store the token's domain."""
        deployment = chain.deployment
        self._chain = chain
        self._domain = SigningDomain(
            deployment.usdc_domain_name, DOMAIN_VERSION, deployment.chain_id, deployment.usdc
        )
        self.asset = PaymentAsset(
            network=f"eip155:{deployment.chain_id}",
            legacy_network=deployment.legacy_network,
            address=deployment.usdc,
            extra={"name": deployment.usdc_domain_name, "version": DOMAIN_VERSION},
        )

    def canonical_recipient(self, text: str) -> str | None:
        try:
            recipient = addresses.parse(text, Family.EVM)
        except AddressError:
            return None
        return None if self._chain.recipient_rejection(recipient, USDC) else recipient

    def accepts_extra(self, extra: Mapping[str, Any]) -> bool:
        domain = {name: extra.get(name, value) for name, value in self.asset.extra.items()}
        method = extra.get("assetTransferMethod", _TRANSFER_METHOD)
        return domain == self.asset.extra and method == _TRANSFER_METHOD

    def authorize(self, intent: PaymentIntent, signer: Signer) -> AuthorizedPayment:
        """Sign an authorization with a random nonce, which the token accepts once."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        values = (signer.evm_address, intent.recipient, intent.units, 0, intent.valid_before, nonce)
        message = signatures.typed_message(TRANSFER_STRUCT, values, self._domain)
        y_parity, r, s = signer.sign_digest(signatures.digest_of(message))
        signature = r.to_bytes(32, "big") + s.to_bytes(32, "big") + bytes([_LEGACY_V + y_parity])
        authorization = {
            "from": signer.evm_address,
            "to": intent.recipient,
            "value": str(intent.units),
            "validAfter": "0",
            "validBefore": str(intent.valid_before),
            "nonce": "0x" + nonce.hex(),
        }
        opened = OpenAuthorization(signer.evm_address, nonce, intent.valid_before, intent.since_block)
        return AuthorizedPayment(
            reference="0x" + nonce.hex(),
            payload={"signature": "0x" + signature.hex(), "authorization": authorization},
            terms=opened.as_terms(),
        )
