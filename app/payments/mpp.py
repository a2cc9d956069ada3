"""MPP beside x402: challenges in `WWW-Authenticate`, credentials in `Authorization`, receipts.

The method is `evm`, the intent `charge`, and what is signed is an EIP-3009 authorization, as in x402. Its nonce is the
hash of the challenge, and the id of that an HMAC over its members and the request that it was made for: challenges are
not stored. Sources: draft-httpauth-payment-02, draft-evm-charge-01 (tempoxyz/mpp-specs).
"""

import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from eth_utils.crypto import keccak
from joserfc.util import urlsafe_b64encode

from app import signing
from app.core import clock
from app.core.chains import USDC, Family
from app.core.identifiers import keyed_digests
from app.payments import treasury
from app.payments.claimed_payments import PaymentRow
from app.payments.presented import MPP_SCHEME, PaymentPrice, Report, SignedPayment, decode_document
from app.payments.x402 import terms
from app.ports.errors import Rejected
from app.ports.facilitator import Facilitator
from app.state import app_state

RECEIPT_HEADER = "Payment-Receipt"
METHOD, INTENT, CREDENTIAL_TYPE = "evm", "charge", "authorization"
NOT_ISSUED = "challenge_not_issued"
EXPIRED = "challenge_expired"
WRONG_NONCE = "challenge_nonce_mismatch"
_VALIDITY = timedelta(minutes=5)
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_SALT_BYTES, _SALT_LENGTH = 15, 20
# What a credential repeats of a challenge; this service states no more than the first five.
_MEMBERS = ("realm", "method", "intent", "request", "expires", "digest", "opaque", "header")


def challenge_nonce(challenge_id: str, realm: str) -> bytes:
    """Return the nonce of the authorization that answers a challenge."""
    return keccak(text=challenge_id + realm)


def _pympp_nonce(challenge_id: str, realm: str) -> bytes:
    """Return the nonce that `pympp` derives instead."""
    return keccak(text=json.dumps([challenge_id, realm], separators=(",", ":"), ensure_ascii=False))


def encode(document: Mapping[str, Any]) -> str:
    """Return a document as MPP carries it: JSON by RFC 8785, as far as it is ASCII without fractions, in base64url."""
    return urlsafe_b64encode(json.dumps(document, separators=(",", ":"), sort_keys=True).encode()).decode()


@dataclass(frozen=True, slots=True)
class MppPayment(SignedPayment):
    challenge: Mapping[str, Any]

    def check(self, price: PaymentPrice) -> None:
        """Check that the challenge was made for this request and price, and that the signature is over it."""
        named, stated = str(self.challenge.get("id")), {name: self.challenge.get(name) for name in _MEMBERS}
        members = _members(price, self.facilitator, str(stated["expires"]))
        ids = _ids(price, members, named[:_SALT_LENGTH])
        is_ours = any(hmac.compare_digest(each.encode(), named.encode("utf-8", "surrogatepass")) for each in ids)
        if not is_ours or stated != {name: members.get(name) for name in _MEMBERS}:
            raise Rejected(NOT_ISSUED)
        if datetime.fromisoformat(members["expires"]) <= clock.now():
            raise Rejected(EXPIRED)
        nonces = [f"0x{derive(named, members['realm']).hex()}" for derive in (challenge_nonce, _pympp_nonce)]
        if str(self.payload["authorization"].get("nonce")).lower() not in nonces:
            raise Rejected(WRONG_NONCE)

    def report(self, payment: PaymentRow, receipt: str | None, note: str | None) -> Report:
        del note
        paid_at = payment.paid_at or clock.now()
        stated = {"method": METHOD, "reference": payment.tx_hash, "status": "success"}
        reported = encode({**stated, "timestamp": paid_at.strftime(_TIME)})
        return {}, {RECEIPT_HEADER: reported, **signing.header(receipt)}

    def failure(self, chain: str | None, **members: Any) -> dict[str, str]:
        """Return no headers: the body of the response and a new challenge say it."""
        del chain, members
        return {}


def read_credential(text: str) -> MppPayment:
    """Parse a credential. Raises: Rejected."""
    document = decode_document(text.strip())
    challenge, payload = document.get("challenge"), document.get("payload")
    if not isinstance(challenge, dict) or not isinstance(payload, dict):
        raise Rejected("invalid_payload")
    if (challenge.get("method"), challenge.get("intent"), payload.get("type")) != (METHOD, INTENT, CREDENTIAL_TYPE):
        raise Rejected("unsupported_scheme")
    details = decode_document(str(challenge.get("request"))).get("methodDetails")
    network = f"eip155:{details.get('chainId')}" if isinstance(details, dict) else None
    for facilitator in app_state().ports.facilitators.values():
        if facilitator.asset.network == network:
            signed = {"signature": payload.get("signature"), "authorization": payload}
            return MppPayment(facilitator, signed, challenge)
    raise Rejected("invalid_network")


def challenge_headers(price: PaymentPrice) -> dict[str, str]:
    """Return the header with the challenges of a 402, one for each chain on which the price can be paid now."""
    expires = (clock.now() + _VALIDITY).strftime(_TIME)
    challenges = []
    for facilitator in terms.payable_on(price):
        if facilitator.name.family is Family.EVM:
            members = _members(price, facilitator, expires)
            named = _ids(price, members, secrets.token_urlsafe(_SALT_BYTES))[0]
            stated = ", ".join(f'{name}="{value}"' for name, value in {"id": named, **members}.items())
            challenges.append(f"{MPP_SCHEME} {stated}")
    return {"WWW-Authenticate": ", ".join(challenges)} if challenges else {}


def _members(price: PaymentPrice, facilitator: Facilitator, expires: str) -> dict[str, str]:
    chain_id = int(facilitator.asset.network.partition(":")[2])
    request = {
        "amount": str(price.units), "currency": facilitator.asset.address,
        "recipient": treasury.recipient(facilitator.name),
        "methodDetails": {"chainId": chain_id, "credentialTypes": [CREDENTIAL_TYPE], "decimals": USDC.decimals},
    }  # fmt: skip
    realm = urlsplit(app_state().settings.public_url).hostname or ""
    return {"realm": realm, "method": METHOD, "intent": INTENT, "request": encode(request), "expires": expires}


def _ids(price: PaymentPrice, members: Mapping[str, str], salt: str) -> list[str]:
    """Return the id of a challenge under each secret, the present one first."""
    # Only salt and `expires` can be a client's, and neither can be taken for a part of another member.
    message = "|".join([salt, price.fingerprint, *members.values()]).encode("utf-8", "surrogatepass")
    digests = keyed_digests("mpp", message, app_state().settings.secret_key_list())
    return [salt + urlsafe_b64encode(each).decode() for each in digests]
