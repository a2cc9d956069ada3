"""The `PaymentSigner` port for Ethereum and Base: EIP-3009 authorizations over USDC's own domain. No network.

Contract, chain and domain are ours: what a seller states about them is compared, and never signed.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from app.adapters.evm import signatures
from app.adapters.evm.chain import EvmChain
from app.adapters.evm.track.authorizations import OpenAuthorization
from app.adapters.evm.x402 import eip3009
from app.core import addresses
from app.core.addresses import AddressError
from app.core.chains import USDC, Family
from app.ports.chain import Terms
from app.ports.payment_signer import AuthorizedPayment, PaymentIntent
from app.ports.vault import Signer

_NONCE_BYTES = 32
_LEGACY_V = 27
_TRANSFER_METHOD = "eip3009"


class EvmPaymentSigner:
    """The payment signer of one EVM chain."""

    def __init__(self, chain: EvmChain) -> None:
        """Store the token's domain."""
        self._chain = chain
        self._domain = eip3009.usdc_domain(chain.deployment)
        self.asset = eip3009.usdc_asset(chain.deployment)

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

    def prepare(self, intent: PaymentIntent) -> Terms:  # noqa: ARG002 - part of the port
        """Return nothing: a signature needs nothing of the chain."""
        return {}

    def authorize(
        self,
        intent: PaymentIntent,
        prepared: Terms,  # noqa: ARG002 - there is nothing to prepare
        signer: Signer,
        *,
        now: int,
    ) -> AuthorizedPayment:
        """Sign an authorization with a random nonce, which the token accepts once."""
        nonce, valid_before = secrets.token_bytes(_NONCE_BYTES), now + intent.validity_seconds
        values = (signer.evm_address, intent.recipient, intent.units, 0, valid_before, nonce)
        message = signatures.typed_message(eip3009.TRANSFER_STRUCT, values, self._domain)
        y_parity, r, s = signer.sign_digest(signatures.digest_of(message))
        signature = r.to_bytes(32, "big") + s.to_bytes(32, "big") + bytes([_LEGACY_V + y_parity])
        authorization = {
            "from": signer.evm_address,
            "to": intent.recipient,
            "value": str(intent.units),
            "validAfter": "0",
            "validBefore": str(valid_before),
            "nonce": "0x" + nonce.hex(),
        }
        opened = OpenAuthorization(signer.evm_address, nonce, valid_before, intent.since_block)
        return AuthorizedPayment(
            reference="0x" + nonce.hex(),
            payload={"signature": "0x" + signature.hex(), "authorization": authorization},
            terms=opened.as_terms(),
        )
