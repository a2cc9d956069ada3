"""Outcomes of authorizations (EIP-3009, Permit2): what their contract shows, wherever a log is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.adapters.evm.x402.payments import EvmPaymentSigner
from app.ports.chain import TransactionOutcome, TransactionQuery, TransactionStatus
from app.ports.facilitator import AuthorizedPayment, PaymentIntent
from sandbox.evm import EvmNode
from tests.support.chains import fund
from tests.support.evm import Calls, Person, chain_at, proxy, spoil
from tests.support.permit2 import settle_by_permit2
from tests.support.sellers import CENT, PAYEE, scripted_seller

pytestmark = pytest.mark.chain
FINAL_LAG = 4
# How far below the block that was read before signing a use is still searched: a reorg may have moved it.
MARGIN_BLOCKS = 64


@pytest.fixture(scope="module")
def node() -> Iterator[EvmNode]:
    with EvmNode("base", slots_in_an_epoch=FINAL_LAG // 2) as running:
        yield running


@dataclass(frozen=True, slots=True)
class Sale:
    """A payer with a dollar, and an authorization of a cent."""

    node: EvmNode
    payer: Person
    payment: AuthorizedPayment

    @classmethod
    def on(cls, node: EvmNode, extra: Mapping[str, Any]) -> Sale:
        payer = Person()
        fund(node, payer.address, eth=0, dollars=1)
        signer = EvmPaymentSigner(chain_at(node))
        block = int(node.rpc("eth_blockNumber"), 16)
        intent = PaymentIntent(payer.address, PAYEE, CENT, 300, extra, ["eip2612GasSponsoring"], block)
        now = int(node.rpc("eth_getBlockByNumber", "latest", *[False])["timestamp"], 16)
        return cls(node, payer, signer.authorize(intent, signer.prepare(intent), payer, now=now))

    def use(self) -> str:
        sponsored = {name: {"info": info} for name, info in self.payment.extensions.items()}
        if sponsored:
            return settle_by_permit2(self.node, {"payload": self.payment.payload, "extensions": sponsored})
        with scripted_seller(self.node) as seller:
            return seller.settle({"payload": self.payment.payload})

    def outcome(self, *urls: str, since_block: int | None = None) -> TransactionOutcome:
        terms = dict(self.payment.terms)
        if since_block is not None:
            terms["since_block"] = since_block
        query = TransactionQuery("it", self.payer.address, None, (self.payment.reference,), terms=terms)
        return chain_at(self.node, *urls).outcomes([query])["it"]


@pytest.fixture
def sale(node: EvmNode) -> Sale:
    return Sale.on(node, {})


@pytest.fixture
def by_permit2(node: EvmNode) -> Sale:
    return Sale.on(node, {"assetTransferMethod": "permit2"})


def test_a_use_is_found_by_its_log(sale: Sale) -> None:
    assert sale.outcome().status is TransactionStatus.WAITING
    tx_hash = sale.use()
    found = sale.outcome()
    assert (found.status, found.tx_hash, found.fee_units) == (TransactionStatus.SUCCEEDED, tx_hash, 0)


@pytest.mark.parametrize(("blocks", "found"), [(MARGIN_BLOCKS, 1), (MARGIN_BLOCKS + 1, 0)])
def test_a_use_that_a_reorg_moved_below_the_block_before_signing_is_found(sale: Sale, blocks: int, found: int) -> None:
    tx_hash = sale.use()
    used_in = int(sale.node.rpc("eth_getTransactionReceipt", tx_hash)["blockNumber"], 16)
    sale.node.mine(blocks + 1)
    assert sale.outcome(since_block=used_in + blocks).tx_hash == [None, tx_hash][found]


def test_a_use_without_a_log_counts_as_paid_once_it_is_final_and_is_reported(sale: Sale) -> None:
    sale.use()
    with proxy(sale.node.url) as forgets:
        forgets.after = spoil("eth_getLogs", [])
        assert sale.outcome(forgets.url).status is TransactionStatus.WAITING, "a reorg may undo it"
        sale.node.mine(2 * FINAL_LAG)
        with capture_logs() as logs:
            found = sale.outcome(forgets.url)
        assert (found.status, found.tx_hash) == (TransactionStatus.SUCCEEDED, None)
        assert found.block is not None
        assert chain_at(sale.node).orphaned_blocks([found.block])[0] == frozenset()
    [logged] = logs
    assert (logged["event"], logged["log_level"]) == ("authorization_use_not_found", "error")
    assert logged["nonce"] == sale.payment.reference
    assert sale.outcome().tx_hash is not None, "another node shows it"


def test_a_use_of_permit2_is_known_even_if_its_transaction_hides_the_nonce(by_permit2: Sale) -> None:
    tx_hash = by_permit2.use()
    assert by_permit2.outcome().tx_hash == tx_hash
    transaction = by_permit2.node.rpc("eth_getTransactionByHash", tx_hash)
    with proxy(by_permit2.node.url) as hides:
        hides.after = spoil("eth_getTransactionByHash", {**transaction, "input": "0x00"})
        assert by_permit2.outcome(hides.url).status is TransactionStatus.WAITING
        by_permit2.node.mine(2 * FINAL_LAG)
        found = by_permit2.outcome(hides.url)
    assert (found.status, found.tx_hash) == (TransactionStatus.SUCCEEDED, None)


def test_a_payment_by_permit2_is_void_only_after_its_deadline(by_permit2: Sale) -> None:
    deadline = int(by_permit2.payment.payload["permit2Authorization"]["deadline"])
    by_permit2.node.rpc("evm_setNextBlockTimestamp", deadline)
    # Up to the block of the deadline, in which it could still be used, everything is final.
    by_permit2.node.mine(1 + FINAL_LAG)
    final = by_permit2.node.rpc("eth_getBlockByNumber", "finalized", *[False])
    assert int(final["timestamp"], 16) == deadline
    assert by_permit2.outcome().status is TransactionStatus.WAITING
    by_permit2.node.rpc("evm_setNextBlockTimestamp", deadline + 1)
    by_permit2.node.mine(1 + FINAL_LAG)
    assert by_permit2.outcome().status is TransactionStatus.VOID


def test_a_node_without_the_tag_finalized_proves_nothing_before_two_epochs(sale: Sale) -> None:
    sale.node.rpc("evm_increaseTime", 400)
    with proxy(sale.node.url) as old:

        def refuse_the_tag(calls: Calls, replies: Calls) -> Calls:
            error = {"code": -39001, "message": "unknown block"}
            return [
                {"jsonrpc": "2.0", "id": reply["id"], "error": error}
                if call["method"] == "eth_call" and call["params"][1] == "finalized"
                else reply
                for call, reply in zip(calls, replies, strict=True)
            ]

        old.after = refuse_the_tag
        sale.node.mine(MARGIN_BLOCKS)
        assert sale.outcome(old.url).status is TransactionStatus.WAITING
        sale.node.mine(1)
        assert sale.outcome(old.url).status is TransactionStatus.VOID
