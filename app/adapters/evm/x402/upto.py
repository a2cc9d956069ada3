"""The scheme `upto` of x402 on EVM chains: the payer signs a maximum, and the settlement key takes at most that.

Permit2 accepts each nonce once, and x402's proxy only the facilitator and the recipient that the payer signed. With
`eip2612GasSponsoring`, the submission also sets Permit2's allowance to the maximum, as the payer signed.
Format and refusals' tokens: x402's `specs/schemes/upto/scheme_upto_evm.md`.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import AliasPath, Field, StringConstraints

from app.adapters.evm import calls, signatures
from app.adapters.evm.chain import EvmChain
from app.adapters.evm.contracts import calls as contracts
from app.adapters.evm.contracts.calls import Function
from app.adapters.evm.contracts.deployments import PERMIT2, X402_UPTO_PROXY
from app.adapters.evm.send.transactions import CallTarget, FeeTerms
from app.adapters.evm.signatures import SigningDomain
from app.adapters.evm.track.authorizations import NONCE_BITMAP
from app.adapters.evm.x402 import payments
from app.core.foreign import ForeignModel, U256Digits
from app.core.strict_json import parse_response
from app.ports.chain import TransactionDraft
from app.ports.errors import Rejected
from app.ports.facilitator import ExpectedPayment, PaymentAuthorization

SETTLE, SETTLE_WITH_PERMIT = Function("x402_upto_proxy", "settle"), Function("x402_upto_proxy", "settleWithPermit")
_STRUCT = payments.PERMIT2_STRUCT + "Witness(address to,address facilitator,uint256 validAfter)"
# The call and its settlement take place before the deadline; after a day, nothing more is tried.
_MIN_SECONDS_LEFT, _MAX_SECONDS = 1_800, 86_400
# Measured: about 90 000, and 150 000 with the permit.
_MAX_GAS = 300_000
_KeySignature = Annotated[str, StringConstraints(pattern=signatures.SIGNATURE.pattern)]


def _of(*names: str) -> Any:
    return Field(validation_alias=AliasPath("permit2Authorization", *names))


class _SignedAllowance(ForeignModel):
    units: U256Digits = Field(validation_alias="amount")
    deadline: U256Digits
    signature: _KeySignature


class _SignedMaximum(payments.ClientPayload):
    payer: payments.Address = _of("from")
    token: payments.Address = _of("permitted", "token")
    units: U256Digits = _of("permitted", "amount")
    spender: payments.Address = _of("spender")
    nonce: U256Digits = _of("nonce")
    deadline: U256Digits = _of("deadline")
    recipient: payments.Address = _of("witness", "to")
    facilitator: payments.Address = _of("witness", "facilitator")
    valid_after: U256Digits = _of("witness", "validAfter")
    signature: _KeySignature
    allowance: _SignedAllowance | None = Field(None, validation_alias=AliasPath(payments.SPONSORING, "info"))

    def is_signed_by_key(self, chain_id: int) -> bool:
        permitted = {"token": self.token, "amount": self.units}
        witness = {"to": self.recipient, "facilitator": self.facilitator, "validAfter": self.valid_after}
        values = (permitted, self.spender, self.nonce, self.deadline, witness)
        message = signatures.typed_message(_STRUCT, values, SigningDomain("Permit2", None, chain_id, PERMIT2))
        return signatures.signer_of(message, self.signature) == self.payer

    def call(self, units: int, *, with_allowance: bool) -> bytes:
        """Return the calldata that takes these units, after setting the allowance if that is asked for."""
        permit = (self.token, self.units), self.nonce, self.deadline
        witness = self.recipient, self.facilitator, self.valid_after
        v, r, s = payments.vrs(self.signature)
        taken = permit, units, self.payer, witness, r + s + bytes([v])
        if not with_allowance or self.allowance is None:
            return SETTLE.encode(*taken)
        v, r, s = payments.vrs(self.allowance.signature)
        return SETTLE_WITH_PERMIT.encode((self.allowance.units, self.allowance.deadline, r, s, v), *taken)


class UptoScheme:
    def __init__(self, chain: EvmChain) -> None:
        self._chain = chain

    def extra_terms(self, settler: str) -> Mapping[str, str]:
        asset = payments.usdc_asset(self._chain.deployment)
        return {**asset.extra, "assetTransferMethod": payments.PERMIT2_METHOD, "facilitatorAddress": settler}

    def claim_of(self, payload: Mapping[str, Any]) -> str:
        return self._claim(self._signed(payload))

    def verify(self, payload: Mapping[str, Any], expected: ExpectedPayment, *, now: int) -> PaymentAuthorization:
        signed = self._signed(payload)
        deadline = min(signed.deadline, signed.allowance.deadline if signed.allowance else signed.deadline)
        for reason, holds in {
            "invalid_permit2_spender": signed.spender == X402_UPTO_PROXY,
            "invalid_permit2_recipient_mismatch": signed.recipient == expected.recipient,
            "upto_facilitator_mismatch": signed.facilitator == expected.settler,
            "permit2_token_mismatch": signed.token == self._chain.deployment.usdc,
            "permit2_amount_mismatch": signed.units >= expected.units,
            "permit2_deadline_expired": deadline >= now + _MIN_SECONDS_LEFT,
            "permit2_not_yet_valid": signed.valid_after <= now,
        }.items():
            if not holds:
                raise Rejected(reason)
        terms = {"payload": json.dumps(payload), "deadline": str(min(deadline, now + _MAX_SECONDS))}
        return PaymentAuthorization(self._claim(signed), signed.payer, signed.recipient, signed.units, terms)

    def draft_settlement(self, authorization: PaymentAuthorization, units: int, *, settler: str) -> TransactionDraft:
        signed = self._signed(parse_response(str(authorization.terms["payload"]).encode()))
        usdc, payer = self._chain.deployment.usdc, signed.payer
        inner = [
            NONCE_BITMAP.at(PERMIT2, payer, signed.nonce >> 8),
            contracts.BALANCE_OF.at(usdc, payer),
            contracts.ALLOWANCE.at(usdc, payer, PERMIT2),
        ]
        reading, code = contracts.multicall(inner), calls.code(payer)
        self._chain.rpc.run(reading, code)
        used, balance, allowance = reading.result
        # Permit2 asks the code of an account, if it has any, whether the signature is valid: its answer can change.
        if code.result:
            raise Rejected("upto_payer_has_code")
        if used >> (signed.nonce & 0xFF) & 1:
            raise Rejected("permit2_invalid_nonce")
        if balance < units:
            raise Rejected("insufficient_funds")
        with_allowance = allowance < units
        if with_allowance:
            if signed.allowance is None:
                raise Rejected("permit2_allowance_required")
            allowance = signed.allowance.units
        call = signed.call(units, with_allowance=with_allowance)
        target = CallTarget(X402_UPTO_PROXY, 0, call, valid_until=int(str(authorization.terms["deadline"])))
        draft = self._chain.draft_submission(settler, target)
        if FeeTerms.from_terms(draft.terms).gas > _MAX_GAS:
            raise Rejected("submission_too_costly")
        return replace(draft, payer_units=min(balance, allowance))

    def _signed(self, payload: Any) -> _SignedMaximum:
        """Parse a payload, and check the signature. Raises: Rejected."""
        signed = _SignedMaximum.of_payload(payload)
        if not signed.is_signed_by_key(self._chain.deployment.chain_id):
            raise Rejected("invalid_permit2_signature")
        return signed

    def _claim(self, signed: _SignedMaximum) -> str:
        return f"permit2:{self._chain.name.value}:{signed.payer.lower()}:{signed.nonce}"
