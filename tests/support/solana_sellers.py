"""Web services that sell for x402 on Solana, of which every answer can be scripted."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from solders.keypair import Keypair
from solders.message import to_bytes_versioned
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from app.adapters.solana.deployments import DEPLOYMENTS
from solana_node import SolanaNode
from tests.support.sellers import CENT, ScriptedSeller
from tests.support.solana import CONFIRMED, fund_solana
from tests.support.upstreams import misbehaving_upstream

MAINNET = DEPLOYMENTS["mainnet"]


@dataclass(slots=True)
class SolanaSeller(ScriptedSeller):
    """A seller of which every answer can be changed, with a fee payer of its own."""

    cluster: SolanaNode = field(kw_only=True)
    sponsor: Keypair = field(kw_only=True)

    @property
    def network(self) -> str:
        return str(self.offer()["network"])

    def settle(self, payment: Mapping[str, Any]) -> str:
        """Complete a payment, submit it, and let it be confirmed."""
        partial = partial_transaction(payment)
        mine = self.sponsor.sign_message(to_bytes_versioned(partial.message))
        completed = VersionedTransaction.populate(partial.message, [mine, *partial.signatures[1:]])
        raw = base64.b64encode(bytes(completed)).decode()
        sent = self.cluster.call("sendTransaction", raw, {"encoding": "base64", "skipPreflight": True})
        self.cluster.advance(CONFIRMED)
        return str(sent)


@contextmanager
def solana_seller(node: SolanaNode, *, price: int = CENT, network: str = "solana:sandbox") -> Iterator[SolanaSeller]:
    """Run a seller that asks for a price on a cluster, in version 2."""
    sponsor, payee = Keypair(), str(Keypair().pubkey())
    fund_solana(node, payee, sol=0, dollars=1)
    fund_solana(node, str(sponsor.pubkey()))
    offer = {
        "scheme": "exact",
        "network": network,
        "amount": str(price),
        "asset": MAINNET.usdc_mint,
        "payTo": payee,
        "maxTimeoutSeconds": 60,
        "extra": {"feePayer": str(sponsor.pubkey())},
    }
    with misbehaving_upstream() as upstream:
        terms = {"x402Version": 2, "resource": {"url": upstream.url + "/report"}, "accepts": [offer]}
        seller = SolanaSeller(None, upstream, terms, cluster=node, sponsor=sponsor)  # type: ignore[arg-type]
        upstream.behave = seller.answer
        yield seller


def partial_transaction(payment: Mapping[str, Any]) -> VersionedTransaction:
    """Return the transaction in a payment, of which the fee payer's signature is missing."""
    raw = base64.b64decode(payment["payload"]["transaction"])
    found = VersionedTransaction.from_bytes(raw)
    assert found.signatures[0] == Signature.default()
    return found
