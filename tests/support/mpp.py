"""MPP beside x402: payers that answer the challenges of a 402, and a seller whose challenges can be changed."""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from eth_utils.crypto import keccak
from werkzeug.test import TestResponse

from app.core import clock
from sandbox.evm import EvmNode
from tests.support.payments import EvmPayer
from tests.support.sellers import ScriptedSeller, scripted_seller
from tests.support.upstreams import Exchange

_CHALLENGE = re.compile(r'Payment ((?:[a-z]+="[^"]*"(?:, )?)+)')


def base64url(document: Any) -> str:
    text = json.dumps(document, separators=(",", ":"), sort_keys=True)
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def opened(text: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    return document


def challenges(answer: TestResponse) -> list[dict[str, str]]:
    """Return the challenges of a 402 of this service."""
    found = _CHALLENGE.findall(answer.headers["WWW-Authenticate"])
    return [dict(re.findall(r'([a-z]+)="([^"]*)"', each)) for each in found]


def draft_nonce(challenge: Mapping[str, str]) -> str:
    """Return the nonce by the draft, as `mppx` derives it."""
    return "0x" + keccak(text=challenge["id"] + challenge["realm"]).hex()


def pympp_nonce(challenge: Mapping[str, str]) -> str:
    return "0x" + keccak(text=f'["{challenge["id"]}","{challenge["realm"]}"]').hex()


def signed(payer: EvmPayer, challenge: Mapping[str, str], **changed: str) -> dict[str, str]:
    """Return what a payer signs for a challenge; `changed` replaces fields before they are signed."""
    asked = opened(challenge["request"])
    by_nonce = {"nonce": draft_nonce(challenge), "validBefore": str(int(clock.now().timestamp()) + 300), **changed}
    made = payer.authorize({"payTo": asked["recipient"], "amount": asked["amount"]}, **by_nonce)
    return {"type": "authorization", "signature": made["signature"], **made["authorization"]}


def credential(challenge: Mapping[str, str], payload: Mapping[str, Any]) -> dict[str, str]:
    """Return the header that answers a challenge."""
    return {"Authorization": f"Payment {base64url({'challenge': dict(challenge), 'payload': dict(payload)})}"}


def answered(payer: EvmPayer, answer: TestResponse, **changed: str) -> dict[str, str]:
    """Return the header that pays the first challenge of a 402."""
    challenge = challenges(answer)[0]
    return credential(challenge, signed(payer, challenge, **changed))


@dataclass(slots=True)
class MppSeller(ScriptedSeller):
    """A seller that states its only offer as a challenge; `changed` replaces members of it, `details` some inside."""

    changed: dict[str, str] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)

    def challenge(self) -> dict[str, str]:
        offer = self.offer()
        request = {
            "amount": offer["amount"], "currency": offer["asset"], "recipient": offer["payTo"],
            "methodDetails": {
                "chainId": int(offer["network"].partition(":")[2]), "credentialTypes": ["authorization"],
                "decimals": 6, **self.details,
            },
        }  # fmt: skip
        expires = (clock.now() + timedelta(seconds=offer["maxTimeoutSeconds"])).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "id": secrets.token_urlsafe(24), "realm": "127.0.0.1", "method": "evm", "intent": "charge",
            "request": base64url(request), "expires": expires, **self.changed,
        }  # fmt: skip

    def ask_payment(self, exchange: Exchange) -> None:
        stated = ", ".join(f'{name}="{value}"' for name, value in self.challenge().items())
        exchange.json({}, 402, ("WWW-Authenticate", f'Bearer realm="a, b", Payment {stated}'))

    def answer(self, exchange: Exchange) -> None:
        header = exchange.asked.header("authorization")
        if header is None or not header.startswith("Payment "):
            self.ask_payment(exchange)
            return
        self.headers.append(header)
        document = opened(header.removeprefix("Payment "))
        payment = document["payload"]
        payload = {"signature": payment["signature"], "authorization": payment}
        self.behave(self, exchange, {**document, "payload": payload})


@contextmanager
def mpp_seller(node: EvmNode, *, price: int = 10_000) -> Iterator[MppSeller]:
    """Run a seller that asks for a price on a node's chain by MPP."""
    with scripted_seller(node, price=price) as made:
        seller = MppSeller(made.node, made.upstream, made.terms)
        made.upstream.behave = seller.answer
        yield seller
