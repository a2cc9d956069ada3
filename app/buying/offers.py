"""The terms in a 402 answer, by x402 in both versions and by MPP, and which of them a wallet can pay. No I/O.

Nothing that a seller states is signed: network, asset and domain must be those of a payment signer. Of MPP, only
`evm/charge` by an EIP-3009 authorization is paid; of everything else, the method and the intent are the scheme. Its
packages add an extension to terms of x402, `mppx`, by which a payment is bound to a route.
"""

import base64
import hashlib
import ipaddress
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import urlsplit
from urllib.request import parse_http_list

from pydantic import Field

from app.buying.sellers import SellerAnswer
from app.core import clock, money
from app.core.chains import USDC, ChainName, Family
from app.core.foreign import ForeignModel, Items, MalformedResponseError
from app.core.identifiers import require
from app.core.money import NANOS_PER_USD, TokenAmount
from app.core.strict_json import parse_response
from app.errors import PerTxLimitExceeded, TermsNotSupported
from app.payments.mpp import CREDENTIAL_TYPE, INTENT, METHOD, challenge_nonce, encode
from app.payments.presented import MPP_SCHEME, SIGNED_HEADER, decode_document
from app.payments.x402.terms import REQUIRED_HEADER, encode_header
from app.ports.errors import Rejected
from app.ports.facilitator import AuthorizedPayment, PaymentSigner

MAX_VALIDITY_SECONDS = 480
_MAX_TERMS_BYTES = 16_384
_MIN_VALIDITY_SECONDS = 10
_MAX_OFFERS = 20
_MPP, _V1, _V2 = range(3)
# By version: where a payment is presented, and what a protocol is called.
HEADERS = ("Authorization", "X-PAYMENT", SIGNED_HEADER)
PROTOCOLS = ("mpp", "x402/1", "x402/2")
_IDENTIFIER = "payment-identifier"
_ROUTE = "mppx"
_ECHOED = ("id", "realm", "method", "intent", "request", "expires", "digest", "opaque")
_UNITS = re.compile(r"[0-9]{1,30}", re.ASCII)
_INTERNAL_SUFFIXES = (".localhost", ".local", ".internal", ".intranet", ".home.arpa", ".lan", ".corp", ".localdomain")
# The cheapest to settle for the seller comes first.
_CHAIN_ORDER = (ChainName.BASE, ChainName.SOLANA, ChainName.ETHEREUM)


@dataclass(frozen=True, slots=True)
class PaymentTerms:
    """The terms of one protocol; `version` is that of x402, or 0 for MPP. Extensions can bind a payment to a route."""

    version: int
    accepts: Sequence[Mapping[str, Any]]
    resource: Any = None
    extensions: Mapping[str, Any] = field(default_factory=dict)
    is_bound: bool = False

    @property
    def answerable(self) -> Mapping[str, Mapping[str, Any]]:
        """The extensions that a payment can answer, with what the seller stated in `info`."""
        stated = {name: each for name, each in self.extensions.items() if isinstance(each, dict)}
        infos = {name: each.get("info", {}) for name, each in stated.items()}
        return {name: info for name, info in infos.items() if isinstance(info, dict)}


@dataclass(frozen=True, slots=True)
class PaymentOffer:
    """One of a seller's terms that can be paid: exactly this amount to the recipient."""

    terms: PaymentTerms
    requirements: Mapping[str, Any]
    chain: ChainName
    network: str
    recipient: str
    amount: TokenAmount
    validity_seconds: int

    @property
    def price_nanos(self) -> int:
        """The price in nano-dollars: USDC counts as one dollar."""
        return money.value_nanos(self.amount, NANOS_PER_USD)

    @property
    def extra(self) -> Mapping[str, Any]:
        return self.requirements.get("extra") or {}

    @property
    def nonce(self) -> bytes | None:
        """The nonce that the challenge of MPP, or the route to which terms of x402 are bound, prescribes."""
        if self.terms.is_bound:
            return _route_nonce(self.requirements, self.terms.resource, self.terms.extensions)
        challenge = self.requirements.get("challenge", {}) if self.terms.version == _MPP else {}
        return challenge_nonce(challenge["id"], challenge["realm"]) if challenge else None

    def payment_header(self, signed: AuthorizedPayment, *, identifier: str) -> str:
        """Return the value of the header that pays; `identifier` is sent to a seller that asks for one."""
        if self.terms.version == _MPP:
            return _credential(self.requirements["challenge"], self.network, signed)
        if self.terms.version == _V1:
            legacy = {"x402Version": 1, "scheme": "exact", "network": self.network, "payload": signed.payload}
            return encode_header(legacy)
        document: dict[str, Any] = {"x402Version": _V2, "accepted": self.requirements, "payload": signed.payload}
        if self.terms.resource is not None:
            document["resource"] = self.terms.resource
        extensions = dict(self.terms.extensions)
        answers = {**signed.extensions, _IDENTIFIER: {"id": identifier}}
        for name, info in self.terms.answerable.items():
            if name in answers:
                # Sellers compare what they stated with what comes back.
                extensions[name] = {**extensions[name], "info": {**info, **answers[name]}}
        if extensions:
            document["extensions"] = extensions
        return encode_header(document)


class _StatedTerms(ForeignModel):
    version: Annotated[int, Field(alias="x402Version", ge=1, le=_V2)]
    accepts: Items[Any]
    resource: Any = None
    extensions: Any = None


def read_terms(answer: SellerAnswer) -> list[PaymentTerms]:
    """Read the terms of a 402 by each protocol. Raises: TermsNotSupported if it has none."""
    challenges = _challenge_offers(answer.headers)[:_MAX_OFFERS]
    by_mpp = [PaymentTerms(_MPP, challenges)] if challenges else []
    try:
        return [_read_x402_terms(answer), *by_mpp]
    except TermsNotSupported:
        if by_mpp:
            return by_mpp
        raise


def _read_x402_terms(answer: SellerAnswer) -> PaymentTerms:
    """Read the terms of x402: the header of version 2, else the body. Raises: TermsNotSupported."""
    header = answer.header(REQUIRED_HEADER)
    # They are stored with the payment, so a body is bounded as a header is.
    if header is None and len(answer.body) > _MAX_TERMS_BYTES:
        problem = f"The terms of the web service are longer than {_MAX_TERMS_BYTES} bytes. Nothing was paid."
        raise TermsNotSupported(problem, details={"offers": []})
    document: Any = None
    with suppress(Rejected, ValueError):
        document = _decode_header(header) if header is not None else parse_response(answer.body, parse_float=str)
    try:
        stated = _StatedTerms.read(document)
    except MalformedResponseError:
        problem = "The web service answered 402 without terms of x402 version 1 or 2, or of MPP. Nothing was paid."
        raise TermsNotSupported(problem, details={"offers": []}) from None
    offers = [each for each in stated.accepts[:_MAX_OFFERS] if isinstance(each, dict)]
    if stated.version != _V2:
        return PaymentTerms(stated.version, offers)
    extensions = stated.extensions if isinstance(stated.extensions, dict) else {}
    bound = _bind_to_route(extensions)
    return PaymentTerms(stated.version, offers, stated.resource, bound or extensions, is_bound=bool(bound))


def _decode_header(header: str) -> Mapping[str, Any]:
    """Decode the header with the terms. Raises: Rejected.

    Sellers that encode it by `btoa` write each character up to U+00FF as one byte: that is no UTF-8, but Latin-1.
    """
    try:
        return decode_document(header)
    except Rejected:
        latin_1 = base64.b64decode(header + "=" * (-len(header) % 4)).decode("latin-1")
        return decode_document(base64.b64encode(latin_1.encode()).decode())


def payable_offers(
    terms: Sequence[PaymentTerms],
    signers: Mapping[ChainName, PaymentSigner],
    *,
    host: str,
    max_nanos: int,
    networks: Collection[ChainName],
    own_addresses: Collection[str],
) -> list[PaymentOffer]:
    """Return payable offers, the cheapest first. Raises: PerTxLimitExceeded for the price; TermsNotSupported."""
    found: list[PaymentOffer] = []
    refusals: list[dict[str, str]] = []
    for of_protocol, stated in [(each, stated) for each in terms for stated in each.accepts]:
        try:
            offer = _read_offer(of_protocol, stated, signers, host=host)
            _check_wanted(offer, networks=networks, own_addresses=own_addresses)
        except Rejected as refusal:
            refusals.append({**_shown(stated), "reason": refusal.reason})
        else:
            found.append(offer)
    affordable = [each for each in found if each.price_nanos <= max_nanos]
    if affordable:
        return sorted(affordable, key=_preference)
    if found:
        price, most = (money.usd_from_nanos(each) for each in (min(each.price_nanos for each in found), max_nanos))
        raise PerTxLimitExceeded(
            f"The web service asks for {price:f} USD, which exceeds max_amount_usd ({most:f} USD). Nothing was paid.",
            details={"rule": "max_amount_usd", "limit_usd": most, "requested_usd": price},
        )
    supported = ", ".join(f"{signer.asset.network} ({name.value})" for name, signer in signers.items())
    reasons = ", ".join(dict.fromkeys(each["reason"].replace("_", " ") for each in refusals)) or "it states none"
    raise TermsNotSupported(
        f"The web service accepts no supported payment: {reasons}. Supported is the scheme exact with USDC on "
        f"{supported or 'no network'}. Nothing was paid.",
        details={"offers": refusals},
    )


def _preference(offer: PaymentOffer) -> tuple[int, int, bool]:
    # Permit2 also needs an allowance.
    by_permit2 = offer.extra.get("assetTransferMethod") == "permit2"
    return offer.amount.units, _CHAIN_ORDER.index(offer.chain), by_permit2


def _read_offer(
    terms: PaymentTerms, stated: Mapping[str, Any], signers: Mapping[ChainName, PaymentSigner], *, host: str
) -> PaymentOffer:
    """Return an offer of supported terms. Raises: Rejected with the reason for any other."""
    network, extra = stated.get("network"), stated.get("extra") or {}
    if stated.get("scheme") != "exact":
        raise Rejected("unsupported_scheme")
    named = {
        signer.asset.legacy_network if terms.version == _V1 else signer.asset.network: (chain, signer)
        for chain, signer in signers.items()
    }
    if not isinstance(network, str) or network not in named:
        raise Rejected("unsupported_network")
    chain, signer = named[network]
    asset, own_asset = str(stated.get("asset")), signer.asset.address
    # Base58 distinguishes the cases of letters; sellers write EVM addresses in any.
    if asset != own_asset and (chain.family is not Family.EVM or asset.lower() != own_asset.lower()):
        raise Rejected("unknown_asset")
    if not isinstance(extra, dict) or not signer.accepts_extra(extra):
        raise Rejected("unknown_token_domain_or_transfer_method")
    recipient = require(signer.canonical_recipient(str(stated.get("payTo"))), Rejected("invalid_recipient"))
    if not _is_resource_of(host, terms.resource if terms.version == _V2 else {"url": stated.get("resource")}):
        raise Rejected("resource_of_another_host")
    amount = TokenAmount(_units(terms, stated), USDC)
    return PaymentOffer(terms, stated, chain, network, recipient, amount, _validity_seconds(stated))


def _units(terms: PaymentTerms, stated: Mapping[str, Any]) -> int:
    units = stated.get("maxAmountRequired" if terms.version == _V1 else "amount")
    text = str(units) if type(units) is int else units
    if not isinstance(text, str) or not _UNITS.fullmatch(text) or not int(text):
        raise Rejected("invalid_amount")
    return int(text)


def _validity_seconds(stated: Mapping[str, Any]) -> int:
    seconds = stated.get("maxTimeoutSeconds", MAX_VALIDITY_SECONDS)
    if type(seconds) is not int or seconds < _MIN_VALIDITY_SECONDS:
        raise Rejected("invalid_timeout")
    return min(seconds, MAX_VALIDITY_SECONDS)


def _check_wanted(offer: PaymentOffer, *, networks: Collection[ChainName], own_addresses: Collection[str]) -> None:
    if networks and offer.chain not in networks:
        raise Rejected("network_not_requested")
    if offer.recipient in own_addresses:
        raise Rejected("pays_the_wallet_itself")


def _is_resource_of(host: str, resource: object) -> bool:
    """Return whether terms are for this host, as far as they say: those of another seller could be passed on.

    A seller behind a proxy states the name that it has there, and a realm may be a domain that the host is in. Only
    another public host is another seller's.
    """
    url = resource.get("url") if isinstance(resource, dict) else None
    if not isinstance(url, str) or "://" not in url:
        return True
    try:
        stated = (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return False
    return stated == host or host.endswith(f".{stated}") or not _is_public(stated)


def _is_public(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        return "." in host and not host.endswith(_INTERNAL_SUFFIXES)


def _shown(stated: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields that identify an offer, bounded: they are a seller's text."""
    return {name: str(stated.get(name))[:100] for name in ("scheme", "network", "asset")}


def _challenge_offers(headers: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return an offer for each challenge that can be read, with the parameters to repeat as `challenge`."""
    stated = ", ".join(value for name, value in headers if name.lower() == "www-authenticate")
    found: list[tuple[str, dict[str, str]]] = []
    for item in parse_http_list(stated) if len(stated) <= _MAX_TERMS_BYTES else ():
        head, _, value = item.partition("=")
        # A parameter after the name of a scheme begins the next challenge.
        *scheme, name = head.split() or [""]
        if scheme:
            found.append((scheme[0].lower(), {}))
        if found:
            text = value.strip()
            found[-1][1].setdefault(name.lower(), text[1:-1] if text[:1] == text[-1:] == '"' else text)
    offers = [_challenge_offer(parameters) for scheme, parameters in found if scheme == MPP_SCHEME.lower()]
    return [each for each in offers if each is not None]


def _challenge_offer(parameters: Mapping[str, str]) -> dict[str, Any] | None:
    challenge = {name: parameters[name] for name in _ECHOED if name in parameters}
    # Nonces are hashes of the bytes, and clients differ in how they read others.
    if not all(challenge.get(name) for name in _ECHOED[:5]) or not all(map(str.isascii, challenge.values())):
        return None
    try:
        request = decode_document(challenge["request"])
    except Rejected:
        return None
    details = request.get("methodDetails")
    details = details if isinstance(details, dict) else {}
    kind = f"{challenge['method']}/{challenge['intent']}"
    types = details.get("credentialTypes")
    is_payable = kind == f"{METHOD}/{INTENT}" and isinstance(types, list) and CREDENTIAL_TYPE in types
    # Such a challenge pays several, or is answered in another header.
    is_payable = is_payable and not details.get("splits") and "header" not in parameters
    return {
        "scheme": "exact" if is_payable else kind, "network": f"eip155:{details.get('chainId')}",
        "amount": request.get("amount"), "asset": request.get("currency"), "payTo": request.get("recipient"),
        "resource": f"https://{challenge['realm']}", "challenge": challenge,
        **({"maxTimeoutSeconds": _seconds_until(challenge["expires"])} if "expires" in challenge else {}),
    }  # fmt: skip


def _seconds_until(end: str) -> int:
    """Return the seconds until a time; 0 if it cannot be read."""
    try:
        return int((datetime.fromisoformat(end) - clock.now()).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return 0


def _credential(challenge: Mapping[str, str], network: str, signed: AuthorizedPayment) -> str:
    """Return the value of the header that answers a challenge."""
    authorization = signed.payload["authorization"]
    payload = {"type": CREDENTIAL_TYPE, **authorization, "signature": signed.payload["signature"]}
    source = f"did:pkh:{network}:{authorization['from']}"
    return f"{MPP_SCHEME} {encode({'challenge': challenge, 'payload': payload, 'source': source})}"


def _bind_to_route(extensions: Mapping[str, Any]) -> dict[str, Any]:
    """Return extensions whose one member binds a payment to a route, with a random salt in it; {} for any others."""
    stated = extensions.get(_ROUTE) if len(extensions) == 1 else None
    if not isinstance(stated, dict) or not isinstance(stated.get("info"), dict):
        return {}
    return {_ROUTE: {**stated, "info": {**stated["info"], "nonce": secrets.token_hex(16)}}}


def _route_nonce(accepted: Mapping[str, Any], resource: Any, extensions: Mapping[str, Any]) -> bytes:
    """Return the nonce that binds a payment to a route: sellers derive it from what the payment repeats."""
    return hashlib.sha256("|".join(map(encode, (accepted, resource, extensions))).encode()).digest()
