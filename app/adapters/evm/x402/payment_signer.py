"""The `PaymentSigner` port for Ethereum and Base: EIP-3009 authorizations over USDC's own domain, or Permit2.

Contract, chain and domain are ours: what a seller states about them is compared, and never signed.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from app.adapters.evm.chain import EvmChain
from app.adapters.evm.contracts import calls as contracts
from app.adapters.evm.contracts.deployments import PERMIT2
from app.adapters.evm.track.authorizations import OpenAuthorization
from app.adapters.evm.x402 import eip3009, permit2
from app.core import addresses
from app.core.addresses import AddressError
from app.core.chains import USDC, Family
from app.ports.chain import Terms
from app.ports.errors import Rejected
from app.ports.payment_signer import AuthorizedPayment, PaymentIntent
from app.ports.vault import Signer

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
        return domain == self.asset.extra and _method(extra) in (eip3009.METHOD, permit2.METHOD)

    def prepare(self, intent: PaymentIntent) -> Terms:
        """Read the allowance of Permit2, and the nonce to sign a missing one; EIP-3009 needs nothing of the chain.

        Raises: Rejected("permit2_allowance_missing") if the seller's facilitator does not submit it.
        """
        if _method(intent.extra) != permit2.METHOD:
            return {}
        usdc = self._deployment.usdc
        inner = [contracts.ALLOWANCE.at(usdc, intent.payer, PERMIT2), contracts.PERMIT_NONCE.at(usdc, intent.payer)]
        reading = contracts.multicall(self._deployment.multicall3, inner)
        self._chain.rpc.run(reading)
        allowance, permit_nonce = reading.result
        if allowance >= intent.units:
            return {}
        if permit2.SPONSORING not in intent.extensions:
            raise Rejected("permit2_allowance_missing")
        return {"permit_nonce": permit_nonce}

    def authorize(self, intent: PaymentIntent, prepared: Terms, signer: Signer, *, now: int) -> AuthorizedPayment:
        """Sign an authorization with a random nonce, which the token, or Permit2, accepts once."""
        nonce, end = secrets.token_bytes(_NONCE_BYTES), now + intent.validity_seconds
        by_permit2 = _method(intent.extra) == permit2.METHOD
        opened = OpenAuthorization(
            signer.evm_address,
            nonce,
            # Permit2 accepts its deadline itself, too.
            end + 1 if by_permit2 else end,
            intent.since_block,
            intent.recipient if by_permit2 else None,
        )
        extensions = {}
        if by_permit2:
            number = int.from_bytes(nonce, "big")
            payload = permit2.sign_transfer(self._deployment, intent, signer, nonce=number, deadline=end)
            if "permit_nonce" in prepared:
                permit_nonce = int(prepared["permit_nonce"] or 0)
                extensions[permit2.SPONSORING] = permit2.sign_allowance(
                    self._deployment, intent, signer, permit_nonce=permit_nonce, deadline=end
                )
        else:
            payload = eip3009.sign_transfer(self._deployment, intent, signer, nonce=nonce, valid_before=end)
        return AuthorizedPayment("0x" + nonce.hex(), payload, opened.as_terms(), extensions)


def _method(extra: Mapping[str, Any]) -> object:
    return extra.get("assetTransferMethod", eip3009.METHOD)
