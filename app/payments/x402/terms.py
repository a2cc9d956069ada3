"""x402: the terms of payment in a 402 response, and the payments that answer them, in both versions.

`accepts` of version 1 is in the body, that of version 2 in a header; no names collide. `X-Payment` holds a hash or a
signed payment, `PAYMENT-SIGNATURE` a signed one. Nothing here reads a chain or the database.
"""

import base64
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app import signing
from app.core import clock
from app.core.chains import USDC, ChainName
from app.core.identifiers import require
from app.core.money import nanos_from_usd
from app.errors import PaymentAlreadyUsed, PaymentInvalid, ServiceError
from app.payments import settlement_capacity, treasury
from app.payments.claimed_payments import PaymentRow
from app.payments.presented import HashPayment, PaymentHeaders, PaymentPrice, SignedPayment, decode_document, units_of
from app.ports.errors import Rejected
from app.ports.facilitator import Facilitator
from app.signing import Statement
from app.state import app_state

_EVM_HASH = re.compile(r"0x[0-9a-fA-F]{64}", re.ASCII)
_SOLANA_HASH = re.compile(r"[1-9A-HJ-NP-Za-km-z]{64,90}", re.ASCII)


@dataclass(frozen=True, slots=True)
class X402Payment(SignedPayment):
    version: int
    is_metered: bool = False

    def claim_key(self) -> str:
        scheme = self.facilitator.metered if self.is_metered else None
        return (scheme or self.facilitator).claim_of(self.payload)

    def check(self, price: PaymentPrice) -> None:
        """Accept it: the terms that a client echoes are never read, and what it pays is compared with the price."""

    def report(
        self, payment: PaymentRow, receipt: str | None, note: str | None
    ) -> tuple[dict[str, str], dict[str, str]]:
        def header(extensions: Mapping[str, Any]) -> dict[str, str]:
            amount = {"amount": str(payment.units)} if self.is_metered else {}
            members = {"success": True, "transaction": payment.tx_hash, "payer": payment.payer, **amount}
            return self._header(payment.chain, {**members, "extensions": extensions} if extensions else members)

        noted = {"unused-authorization": {"info": {"message": note}}} if note else {}
        signed = _signed_extension("receipt", receipt and {"format": "jws", "signature": receipt})
        return header(noted), header(noted | signed)

    def failure(self, chain: str | None, **members: Any) -> dict[str, str]:
        return self._header(chain, {"success": False, **members})

    def _header(self, chain: str | None, members: Mapping[str, Any]) -> dict[str, str]:
        submitter = app_state().ports.facilitators[ChainName(chain)] if chain else self.facilitator
        asset, is_legacy = submitter.asset, self.version == 1
        network = (asset.legacy_network if is_legacy else None) or asset.network
        name = f"X-{RESPONSE_HEADER}" if is_legacy else RESPONSE_HEADER
        return {name: encode_header({**members, "network": network})}


def read_payment(headers: PaymentHeaders) -> HashPayment | SignedPayment:
    """Parse the payment that is presented. Raises: Rejected with a reason of x402 or of this service."""
    if headers.signed:
        return _parse_signed_payment(headers.signed)
    plain_value = (headers.plain or "").strip()
    if _EVM_HASH.fullmatch(plain_value) or _SOLANA_HASH.fullmatch(plain_value):
        return _parse_hash_payment(plain_value, headers)
    return _parse_signed_payment(plain_value)


def _parse_hash_payment(text: str, headers: PaymentHeaders) -> HashPayment:
    chain_header, default = headers.chain, ChainName.BASE if text.startswith("0x") else ChainName.SOLANA
    name = chain_header.strip().lower() if chain_header else default.value
    facilitators = app_state().ports.facilitators.values()
    found = next((each for each in facilitators if each.name.value == name), None)
    facilitator = require(found, Rejected("invalid_network"))
    tx_hash = require(facilitator.canonical_hash(text), Rejected("hash_of_another_chain"))
    return HashPayment(facilitator, tx_hash, headers.proof)


def _parse_signed_payment(text: str) -> X402Payment:
    document = decode_document(text)
    version = document.get("x402Version")
    # Not isinstance: True is an int.
    if type(version) is not int or version not in (1, 2):
        raise Rejected("invalid_x402_version")
    terms = document.get("accepted") if version == 2 else document  # noqa: PLR2004 - the version
    if not isinstance(terms, dict):
        raise Rejected("invalid_payload")
    scheme, network = terms.get("scheme"), terms.get("network")
    if scheme not in ("exact", _METERED_SCHEME):
        raise Rejected("unsupported_scheme")
    payload = document.get("payload")
    if not isinstance(payload, dict):
        raise Rejected("invalid_payload")
    for facilitator in app_state().ports.facilitators.values():
        asset = facilitator.asset
        if isinstance(network, str) and network == (asset.network if version == 2 else asset.legacy_network):  # noqa: PLR2004 - the version
            if scheme == "exact":
                return X402Payment(facilitator, payload, version)
            if version == 2 and facilitator.metered is not None:  # noqa: PLR2004 - the version
                extensions = document.get("extensions")
                payload |= {_SPONSORING: extensions.get(_SPONSORING) if isinstance(extensions, dict) else None}
                return X402Payment(facilitator, payload, version, is_metered=True)
            raise Rejected("unsupported_scheme")
    raise Rejected("invalid_network")


REQUIRED_HEADER = "PAYMENT-REQUIRED"
RESPONSE_HEADER = "PAYMENT-RESPONSE"
_MAX_TIMEOUT_SECONDS = 300
_METERED_SCHEME, _METERED_TIMEOUT_SECONDS = "upto", 3_600
_SPONSORING, _ALLOWANCE = "eip2612GasSponsoring", {"info": {"description": "Of Permit2", "version": "1"}, "schema": {}}
# Clients take the first option that they can pay: the cheapest to settle comes first.
_CHAIN_ORDER = (ChainName.BASE, ChainName.SOLANA, ChainName.ETHEREUM)
_MIME_TYPE = "application/json"
_DISCOVERY = tomllib.loads(Path(__file__).with_name("discovery.toml").read_text("utf-8"))["forms"]
_SIGNED_TERMS = ("scheme", "network", "asset", "payTo", "amount")
# Longer addresses are not signed, nor offers beyond: clients refuse responses whose headers are too long.
_MAX_SIGNED_RESOURCE, _MAX_HEADER = 512, 7_900


def attach(price: PaymentPrice, refusal: ServiceError) -> ServiceError:
    """Add the terms to the body and headers of a refusal with status 402; return it."""
    refusal.headers = {"Cache-Control": "no-store", **refusal.headers}
    requested, facilitators = (price.headers.chain or "").lower(), _facilitators()
    chain = next((name for name in ChainName if name.value == requested), ChainName.BASE)
    if chain in facilitators:
        options = payable_on(price)
        refusal.members |= _body_members(price, chain, options)
        headers = _headers(price, chain, options, error=_x402_error(refusal))
        refusal.headers = {**headers, **refusal.headers}
    return refusal


def payable_on(price: PaymentPrice) -> list[Facilitator]:
    """Return where the payment of a request can be settled now; nowhere if the request would be refused."""
    return [] if price.unavailable_reason else _options(price.nanos)


def accepted_payments(nanos: int) -> list[dict[str, Any]]:
    """Return the terms (`accepts`) of a price in version 2, on the chains where it can be settled now."""
    return [_payment_requirements(units_of(nanos), each) for each in _options(nanos)]


def least_price_nanos(wanted: Mapping[str, str | None]) -> int | None:
    """Return the lowest price that terms with these members, if not None, are offered for now; None if none are."""
    stated = {name: value for name, value in wanted.items() if value is not None}
    found = [
        settlement_capacity.least_price_nanos(name)
        for name, each in _facilitators().items()
        if stated.items() <= _payment_requirements(0, each).items()
    ]
    return min((nanos for nanos in found if nanos is not None), default=None)


def discovery_extension(method: str) -> dict[str, Any]:
    """Return the extension `bazaar` of an HTTP method, by which a request is found and repeated; {} if it has none."""
    stated = next((each for each in _DISCOVERY if method in each["methods"]), None)
    if stated is None:
        return {}
    return {"bazaar": {"info": {"input": {**stated["input"], "method": method}}, "schema": stated["schema"]}}


def sign_payment(resource: str, payment: PaymentRow) -> str | None:
    """Return the receipt of a payment that has landed; None without a key, and if several may have paid."""
    if not payment.payer or not payment.tx_hash or len(resource) > _MAX_SIGNED_RESOURCE:
        return None
    network = app_state().ports.facilitators[ChainName(payment.chain)].asset.network
    paid = {"network": network, "payer": payment.payer, "transaction": payment.tx_hash}
    stated = {"version": 1, "resourceUrl": resource, "issuedAt": int(clock.now().timestamp())}
    return signing.sign(Statement.PAYMENT, stated | paid)


def _offers(resource: str, accepts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the extension that signs the terms of a 402; {} without a key."""
    found, now = [], int(clock.now().timestamp())
    for index, each in enumerate(accepts if len(resource) <= _MAX_SIGNED_RESOURCE else ()):
        stated = {"version": 1, "resourceUrl": resource, "validUntil": now + each["maxTimeoutSeconds"]}
        signed = signing.sign(Statement.OFFER, stated | {name: each[name] for name in _SIGNED_TERMS})
        found += [{"format": "jws", "acceptIndex": index, "signature": signed}] if signed else []
    return _signed_extension("offers", found)


def _signed_extension(name: str, value: Any) -> dict[str, Any]:
    """Return the extension `offer-receipt` with a member; {} if that is empty."""
    # Short, because it is in a header: the format is defined by x402.
    return {"offer-receipt": {"info": {name: value}, "schema": {"type": "object", "required": [name]}}} if value else {}


def encode_header(document: Mapping[str, Any]) -> str:
    """Return a document as x402 headers carry it: JSON in base64."""
    return base64.b64encode(json.dumps(document, separators=(",", ":")).encode()).decode()


def _x402_error(refusal: ServiceError) -> str:
    if isinstance(refusal, PaymentAlreadyUsed):
        return "already_used"
    return str(refusal.details["reason"]) if isinstance(refusal, PaymentInvalid) else refusal.message


def _body_members(price: PaymentPrice, chain: ChainName, options: list[Facilitator]) -> dict[str, Any]:
    facilitators = _facilitators()
    places = [
        {"chain": name.value, "network": each.asset.network, "recipient": treasury.recipient(name)}
        for name, each in facilitators.items()
    ]
    payment = {
        "amount": price.amount, "currency": USDC.symbol, "recipient": treasury.recipient(chain), "chain": chain.value,
        "network": facilitators[chain].asset.network, "description": price.description,
        "instructions": _instructions(price, chain, options), "options": places,
    }  # fmt: skip
    # Base alone: a legacy client rejects the whole list for one network that it does not know.
    on_base = (each for each in options if each.name is ChainName.BASE and each.asset.legacy_network)
    legacy = [_payment_requirements_v1(price, each) for each in on_base]
    return {"payment": payment, **({"x402Version": 1, "accepts": legacy} if legacy else {})}


def _headers(price: PaymentPrice, chain: ChainName, options: list[Facilitator], *, error: str) -> dict[str, str]:
    # Metered ones last: clients take the first that they can pay, and those need an allowance.
    accepts = [_payment_requirements(price.units, each) for each in options]
    is_metered = price.is_metered and price.nanos <= nanos_from_usd(app_state().settings.x402_upto_usd_per_payer)
    accepts += [_metered_requirements(price.units, each) for each in options if is_metered and each.metered is not None]
    resource = {"url": price.resource, "description": price.description, "mimeType": _MIME_TYPE}
    required_v2: dict[str, Any] = {"x402Version": 2, "error": error, "resource": resource, "accepts": accepts}
    if extensions := discovery_extension(price.method) | _offers(price.resource, accepts) if options else {}:
        extensions |= {_SPONSORING: _ALLOWANCE} if accepts[-1]["scheme"] == _METERED_SCHEME else {}
        required_v2["extensions"] = extensions
        if len(encode_header(required_v2)) > _MAX_HEADER:
            extensions.pop("offer-receipt", None)
    return {
        "X-Payment-Required": "true", "X-Payment-Amount": price.amount, "X-Payment-Currency": USDC.symbol,
        "X-Payment-Recipient": treasury.recipient(chain), "X-Payment-Chain": chain.value,
        "X-Payment-Description": price.description, REQUIRED_HEADER: encode_header(required_v2),
    }  # fmt: skip


def _payment_requirements(units: int, facilitator: Facilitator) -> dict[str, Any]:
    extra = dict(facilitator.asset.extra)
    if facilitator.name is ChainName.SOLANA:
        extra["feePayer"] = treasury.settler(facilitator.name)
    return {
        "scheme": "exact", "network": facilitator.asset.network, "amount": str(units),
        "asset": facilitator.asset.address, "payTo": treasury.recipient(facilitator.name),
        "maxTimeoutSeconds": _MAX_TIMEOUT_SECONDS, "extra": extra,
    }  # fmt: skip


def _metered_requirements(units: int, facilitator: Facilitator) -> dict[str, Any]:
    terms, settler = _payment_requirements(units, facilitator), treasury.settler(facilitator.name)
    extra = dict(facilitator.metered.extra_terms(settler)) if facilitator.metered else {}
    return {**terms, "scheme": _METERED_SCHEME, "maxTimeoutSeconds": _METERED_TIMEOUT_SECONDS, "extra": extra}


def _payment_requirements_v1(price: PaymentPrice, facilitator: Facilitator) -> dict[str, Any]:
    terms = _payment_requirements(price.units, facilitator)
    return {
        "maxAmountRequired": terms.pop("amount"), "resource": price.resource, "description": price.description,
        "mimeType": _MIME_TYPE, **terms, "network": facilitator.asset.legacy_network,
    }  # fmt: skip


def _options(nanos: int) -> list[Facilitator]:
    found = _facilitators().items()
    return [each for name, each in found if settlement_capacity.refusal_reason(name, nanos) is None]


def _facilitators() -> dict[ChainName, Facilitator]:
    facilitators = app_state().ports.facilitators
    return {name: facilitators[name] for name in _CHAIN_ORDER if name in facilitators}


def _instructions(price: PaymentPrice, chain: ChainName, options: list[Facilitator]) -> str:
    if price.unavailable_reason:
        return f"Do not pay: {price.unavailable_reason}"
    minutes = app_state().settings.x402_max_age_seconds // 60
    advice = f"Pay with an x402 client (the {REQUIRED_HEADER} header has the terms): a signed payment cannot be stolen."
    signed = f"{advice} Or " if options else "Pay by transaction hash: "
    if settlement_capacity.refusal_reason(chain, price.nanos) == settlement_capacity.FEE_TOO_HIGH:
        signed = (
            f"Signed payments are not accepted on {chain.value} at the moment, since the network fee is higher than "
            f"the price of this call allows. {signed}"
        )
    return (
        f"{signed}send at least {price.amount} USDC on {chain.value} to {treasury.recipient(chain)} and repeat exactly "
        f"this request within {minutes} minutes with X-Payment: <transaction hash> and X-Payment-Chain: {chain.value}. "
        "Each payment pays for one call. Payments that cannot be verified yet get a response with Retry-After."
    )
