"""Payments that their payer signs and anyone may submit, and the `PaymentSigner` port for Ethereum and Base.

By EIP-3009 over USDC's own domain, or by Permit2: x402's proxy then transfers what the payer signed, and to no other
than the recipient in it; with `eip2612GasSponsoring` the seller's facilitator also submits the allowance that the payer
signs, for this amount only. Contract, chain and domain are ours: what a seller states about them is compared, and never
signed. Formats: x402's `specs/schemes/exact/scheme_exact_evm.md`, which also defines the refusals' tokens.
"""

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Self

from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak
from pydantic import AfterValidator, AliasPath, Field, StringConstraints

from app.adapters.evm import signatures
from app.adapters.evm.chain import EvmChain
from app.adapters.evm.contracts import calls as contracts
from app.adapters.evm.contracts.calls import Function
from app.adapters.evm.contracts.deployments import PERMIT2, X402_PERMIT2_PROXY, EvmDeployment
from app.adapters.evm.signatures import SigningDomain
from app.adapters.evm.track.authorizations import OpenAuthorization
from app.adapters.evm.x402 import known_wallets
from app.core.foreign import ForeignModel, MalformedResponseError, U256Digits
from app.ports.chain import Terms, payable_address
from app.ports.errors import Rejected
from app.ports.facilitator import AuthorizedPayment, ExpectedPayment, PaymentAsset, PaymentIntent
from app.ports.vault import Signer

_NAME = "transferWithAuthorization(address,address,uint256,uint256,uint256,bytes32,"
_TRANSFER = Function("fiat_token", _NAME + "uint8,bytes32,bytes32)")
_TRANSFER_OF_CONTRACT = Function("fiat_token", _NAME + "bytes)")
TRANSFER_STRUCT = (
    "TransferWithAuthorization"
    "(address from,address to,uint256 value,uint256 validAfter,uint256 validBefore,bytes32 nonce)"
)
EIP3009_METHOD = "eip3009"
NOT_YET_VALID = "invalid_exact_evm_payload_authorization_valid_after"
SAMPLE_CALL = hashlib.shake_128(b"transferWithAuthorization").digest(4 + 9 * 32)
"""As long as a submission with v, r and s, of bytes that do not compress: to estimate its L1 data fee."""
_DOMAIN_VERSION = "2"
_MAX_SIGNATURE = 2 + 2 * 3072
"""Characters: a passkey's signature of a wallet that is not deployed takes about 1 500 bytes."""
_HALF_ORDER = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0
# A block has to include it before it expires.
_MIN_SECONDS_LEFT = 6


def usdc_domain(deployment: EvmDeployment) -> SigningDomain:
    return SigningDomain(deployment.usdc_domain_name, _DOMAIN_VERSION, deployment.chain_id, deployment.usdc)


def usdc_asset(deployment: EvmDeployment) -> PaymentAsset:
    return PaymentAsset(
        network=f"eip155:{deployment.chain_id}",
        legacy_network=deployment.legacy_network,
        address=deployment.usdc,
        extra={"name": deployment.usdc_domain_name, "version": _DOMAIN_VERSION},
    )


def signature_of_contract(call: bytes, domain: SigningDomain) -> tuple[bytes, bytes]:
    """Return the digest and the signature in the calldata that submits a transfer with a contract's signature."""
    *fields, signature = _TRANSFER_OF_CONTRACT.decode(call)
    message = signatures.typed_message(TRANSFER_STRUCT, fields, domain)
    return signatures.digest_of(message), signature


def _of(name: str) -> Any:
    return Field(validation_alias=AliasPath("authorization", name))


Address = Annotated[str, StringConstraints(pattern=r"^0x[0-9a-fA-F]{40}$"), AfterValidator(to_checksum_address)]
_Hash = Annotated[str, StringConstraints(pattern=r"^0x[0-9a-fA-F]{64}$")]
_Signature = Annotated[
    str, StringConstraints(pattern=r"^0x([0-9a-fA-F]{2})+$", max_length=_MAX_SIGNATURE, to_lower=True)
]


class ClientPayload(ForeignModel):
    @classmethod
    def of_payload(cls, payload: Mapping[str, Any]) -> Self:
        """Parse a client's payload. Raises: Rejected("invalid_payload")."""
        try:
            return cls.read(payload)
        except MalformedResponseError:
            raise Rejected("invalid_payload") from None


class SignedAuthorization(ClientPayload):
    payer: Address = _of("from")
    recipient: Address = _of("to")
    units: U256Digits = _of("value")
    valid_after: U256Digits = _of("validAfter")
    valid_before: U256Digits = _of("validBefore")
    nonce_text: _Hash = _of("nonce")
    signature: _Signature

    @property
    def nonce(self) -> bytes:
        return bytes.fromhex(self.nonce_text[2:])

    def check(self, expected: ExpectedPayment, *, now: int) -> None:
        """Check that it pays exactly what is expected and is valid now. Raises: Rejected."""
        if self.recipient != expected.recipient:
            raise Rejected("invalid_exact_evm_payload_recipient_mismatch")
        if self.units != expected.units:
            raise Rejected("invalid_exact_evm_payload_authorization_value_mismatch")
        if self.valid_before < now + _MIN_SECONDS_LEFT:
            raise Rejected("invalid_exact_evm_payload_authorization_valid_before")
        if self.valid_after > now:
            raise Rejected(NOT_YET_VALID, details={"valid_after": str(self.valid_after)})

    def is_signed_by_key(self, domain: SigningDomain) -> bool:
        """Return whether the payer's key signed it, as the token checks it; else its payer may be a contract."""
        if not signatures.SIGNATURE.fullmatch(self.signature):
            return False
        _v, _r, s = vrs(self.signature)
        message = signatures.typed_message(TRANSFER_STRUCT, self._fields(), domain)
        return int.from_bytes(s, "big") <= _HALF_ORDER and signatures.signer_of(message, self.signature) == self.payer

    def call(self) -> bytes:
        """Return the calldata that submits it with a key's signature."""
        return _TRANSFER.encode(*self._fields(), *vrs(self.signature))

    def call_of_contract(self) -> tuple[bytes, Terms]:
        """Return the calldata that submits it with a contract's signature, and its deployment. Raises: Rejected."""
        signature, deployment = known_wallets.unwrap(bytes.fromhex(self.signature[2:]))
        return _TRANSFER_OF_CONTRACT.encode(*self._fields(), signature), deployment

    def digest(self) -> str:
        signed = f"{self.payer}:{self.nonce.hex()}:{self.signature}"
        return hashlib.sha256(signed.encode()).hexdigest()

    def as_terms(self) -> Terms:
        """Return JSON values by which its use is found in the logs."""
        return {
            "from": self.payer, "to": self.recipient, "value": str(self.units), "nonce": self.nonce_text.lower(),
            "valid_before": str(self.valid_before), "valid_after": str(self.valid_after),
        }  # fmt: skip

    def _fields(self) -> tuple[object, ...]:
        return (self.payer, self.recipient, self.units, self.valid_after, self.valid_before, self.nonce)


def vrs(signature: str) -> tuple[int, bytes, bytes]:
    """Return v, r and s of a key's signature."""
    raw = bytes.fromhex(signature[2:])
    v = raw[64] + 27 if raw[64] < 27 else raw[64]  # noqa: PLR2004 - some wallets count from 0
    return v, raw[:32], raw[32:64]


PERMIT2_METHOD = "permit2"
SPONSORING = "eip2612GasSponsoring"
PERMIT2_STRUCT = (
    "PermitWitnessTransferFrom"
    "(TokenPermissions permitted,address spender,uint256 nonce,uint256 deadline,Witness witness)"
    "TokenPermissions(address token,uint256 amount)"
)
PERMIT2_TRANSFER_STRUCT = PERMIT2_STRUCT + "Witness(address to,uint256 validAfter)"
PERMIT_STRUCT = "Permit(address owner,address spender,uint256 value,uint256 nonce,uint256 deadline)"


def sign_permit(
    deployment: EvmDeployment, signer: Signer, *, spender: str, units: int, nonce: int, deadline: int
) -> str:
    """Sign that a contract may take these units of USDC until a deadline (EIP-2612)."""
    values = (signer.evm_address, spender, units, nonce, deadline)
    return signatures.sign(PERMIT_STRUCT, values, usdc_domain(deployment), signer)


class EvmPaymentSigner:
    def __init__(self, chain: EvmChain) -> None:
        self._chain = chain
        self._deployment = chain.deployment
        self.asset = usdc_asset(chain.deployment)
        self.canonical_recipient = partial(payable_address, chain)

    def accepts_extra(self, extra: Mapping[str, Any]) -> bool:
        domain = {name: extra.get(name, value) for name, value in self.asset.extra.items()}
        return domain == self.asset.extra and _method(extra) in (EIP3009_METHOD, PERMIT2_METHOD)

    def prepare(self, intent: PaymentIntent) -> Terms:
        """Read the allowance of Permit2, and the nonce to sign a missing one; EIP-3009 needs nothing of the chain.

        Raises: Rejected("permit2_allowance_missing") if the seller's facilitator does not submit it.
        """
        if _method(intent.extra) != PERMIT2_METHOD:
            return {}
        usdc = self._deployment.usdc
        inner = [contracts.ALLOWANCE.at(usdc, intent.payer, PERMIT2), contracts.PERMIT_NONCE.at(usdc, intent.payer)]
        allowance, permit_nonce = self._chain.rpc.ask(contracts.multicall(inner))
        if allowance >= intent.units:
            return {}
        if SPONSORING not in intent.extensions:
            raise Rejected("permit2_allowance_missing")
        return {"permit_nonce": permit_nonce}

    def authorize(self, intent: PaymentIntent, prepared: Terms, signer: Signer, *, now: int) -> AuthorizedPayment:
        """Sign an authorization; the token, or Permit2, accepts its nonce once."""
        nonce, end = intent.nonce or secrets.token_bytes(32), now + intent.validity_seconds
        opened = OpenAuthorization(signer.evm_address, nonce.hex(), end, intent.since_block)
        extensions = {}
        if _method(intent.extra) == PERMIT2_METHOD:
            # Permit2 accepts its deadline itself, too.
            opened = replace(opened, valid_before=end + 1, permit2_recipient=intent.recipient)
            payload = self._signed_by_permit2(intent, signer, int.from_bytes(nonce, "big"), end)
            if "permit_nonce" in prepared:
                permit_nonce = int(prepared["permit_nonce"] or 0)
                extensions[SPONSORING] = self._signed_allowance(intent, signer, permit_nonce, end)
        else:
            payload = self._signed_transfer(intent, signer, nonce, end)
        # A seller can give one nonce to several payers.
        reference = nonce if intent.nonce is None else keccak(bytes.fromhex(signer.evm_address[2:]) + nonce)
        return AuthorizedPayment("0x" + reference.hex(), payload, opened.as_terms(), extensions)

    def _signed_transfer(self, intent: PaymentIntent, signer: Signer, nonce: bytes, end: int) -> Mapping[str, Any]:
        """Return the payload of a payment that may be used before a time."""
        values = (signer.evm_address, intent.recipient, intent.units, 0, end, nonce)
        return {
            "signature": signatures.sign(TRANSFER_STRUCT, values, usdc_domain(self._deployment), signer),
            "authorization": {
                "from": signer.evm_address, "to": intent.recipient, "value": str(intent.units), "validAfter": "0",
                "validBefore": str(end), "nonce": "0x" + nonce.hex(),
            },
        }  # fmt: skip

    def _signed_by_permit2(self, intent: PaymentIntent, signer: Signer, nonce: int, deadline: int) -> Mapping[str, Any]:
        """Return the payload of a payment that may be used until a deadline, inclusive."""
        usdc = self._deployment.usdc
        values = (
            {"token": usdc, "amount": intent.units}, X402_PERMIT2_PROXY, nonce, deadline,
            {"to": intent.recipient, "validAfter": 0},
        )  # fmt: skip
        domain = SigningDomain("Permit2", None, self._deployment.chain_id, PERMIT2)
        return {
            "signature": signatures.sign(PERMIT2_TRANSFER_STRUCT, values, domain, signer),
            "permit2Authorization": {
                "from": signer.evm_address, "permitted": {"token": usdc, "amount": str(intent.units)},
                "spender": X402_PERMIT2_PROXY, "nonce": str(nonce), "deadline": str(deadline),
                "witness": {"to": intent.recipient, "validAfter": "0"},
            },
        }  # fmt: skip

    def _signed_allowance(self, intent: PaymentIntent, signer: Signer, nonce: int, deadline: int) -> Mapping[str, Any]:
        """Return what lets the facilitator set the allowance of Permit2 to exactly this payment."""
        usdc, units = self._deployment.usdc, intent.units
        signed = sign_permit(self._deployment, signer, spender=PERMIT2, units=units, nonce=nonce, deadline=deadline)
        return {
            "from": signer.evm_address, "asset": usdc, "spender": PERMIT2, "amount": str(units),
            "nonce": str(nonce), "deadline": str(deadline), "signature": signed, "version": "1",
        }  # fmt: skip


def _method(extra: Mapping[str, Any]) -> object:
    return extra.get("assetTransferMethod", EIP3009_METHOD)
