import itertools

import pytest
from solders.keypair import Keypair
from solders.rpc.config import RpcTransactionConfig
from solders.rpc.requests import GetTransaction
from solders.rpc.responses import GetTransactionResp
from solders.signature import Signature
from solders.transaction_status import TransactionConfirmationStatus

from solana_node import RpcError, SolanaNode
from tests.solana_node.client import CONFIRMED, FINALIZED, PROCESSED, SOL, Client, RefusedError, pay_sol
from tests.support.waiting import wait_until


def test_each_commitment_sees_its_own_past(node: SolanaNode, client: Client) -> None:
    bob = Keypair().pubkey()
    node.airdrop(bob, SOL)
    node.advance(32)

    def seen() -> list[int]:
        return [client.lamports(bob, level) // SOL for level in (PROCESSED, CONFIRMED, FINALIZED)]

    node.airdrop(bob, SOL)
    views = [seen()]
    node.advance(1)
    views.append(seen())
    node.advance(30)
    views.append(seen())
    node.advance(1)
    views.append(seen())

    assert views == [[2, 1, 1], [2, 2, 1], [2, 2, 1], [2, 2, 2]]


def test_asking_without_a_commitment_shows_the_finalized_past(node: SolanaNode) -> None:
    bob = str(Keypair().pubkey())
    signature = node.airdrop(bob, SOL)
    node.advance(31)
    version = {"maxSupportedTransactionVersion": 0}

    assert node.call("getBalance", bob)["value"] == 0
    assert node.call("getTransaction", signature, version) is None
    assert node.call("getSignaturesForAddress", bob) == []

    node.advance(1)
    assert node.call("getBalance", bob)["value"] == SOL
    assert node.call("getTransaction", signature, version)["slot"] == node.call("getSlot")
    assert [row["signature"] for row in node.call("getSignaturesForAddress", bob)] == [signature]


def test_a_status_climbs_from_processed_to_finalized(node: SolanaNode, client: Client, alice: Keypair) -> None:
    signature = client.send(client.sign([pay_sol(alice, Keypair().pubkey(), SOL)], alice))
    climb = []
    for slots in (0, 1, 31):
        node.advance(slots)
        status = client.status(signature)
        assert status is not None
        climb.append((status.confirmation_status, status.confirmations))

    assert climb == [
        (TransactionConfirmationStatus.Processed, 0),
        (TransactionConfirmationStatus.Confirmed, 1),
        (TransactionConfirmationStatus.Finalized, None),
    ]


def test_unconfirmed_history_cannot_be_asked_for(node: SolanaNode) -> None:
    bob = str(Keypair().pubkey())
    signature = node.airdrop(bob, SOL)

    for method, argument in (("getTransaction", signature), ("getSignaturesForAddress", bob)):
        with pytest.raises(RpcError, match="below `confirmed`"):
            node.call(method, argument, {"commitment": "processed"})


def test_the_default_preflight_does_not_know_a_confirmed_blockhash(client: Client, alice: Keypair) -> None:
    fresh = client.sign([pay_sol(alice, Keypair().pubkey(), SOL)], alice, blockhash=client.blockhash(CONFIRMED))

    with pytest.raises(RefusedError, match="Blockhash not found"):
        client.send(fresh, preflight=FINALIZED)
    client.send(fresh, preflight=CONFIRMED)


def test_the_preflight_judges_by_the_balances_of_its_commitment(node: SolanaNode, client: Client) -> None:
    bob = Keypair()
    node.airdrop(bob.pubkey(), 10 * SOL)
    node.advance(1)
    old = client.blockhash(FINALIZED)
    payment = client.sign([pay_sol(bob, Keypair().pubkey(), SOL)], bob, blockhash=old)

    with pytest.raises(RefusedError, match="no record of a prior credit"):
        client.send(payment, preflight=FINALIZED)
    client.send(payment, preflight=CONFIRMED)


def test_statuses_are_forgotten_unless_the_history_is_searched(node: SolanaNode, client: Client) -> None:
    signature = Signature.from_string(node.airdrop(Keypair().pubkey(), SOL))

    node.advance(150)
    assert client.status(signature, search_history=False) is not None
    node.advance(1)
    assert client.status(signature, search_history=False) is None
    assert client.status(signature, search_history=True) is not None


def test_a_client_without_version_support_gets_no_versioned_transaction(node: SolanaNode, client: Client) -> None:
    signature = Signature.from_string(node.airdrop(Keypair().pubkey(), SOL))
    node.advance(32)

    with pytest.raises(RefusedError, match="maxSupportedTransactionVersion"):
        client.transaction(signature, max_version=None)
    with pytest.raises(RefusedError, match="maxSupportedTransactionVersion"):
        client.ask(GetTransaction(signature, RpcTransactionConfig()), GetTransactionResp)


def test_a_blockhash_is_valid_for_exactly_150_blocks(node: SolanaNode, client: Client, alice: Keypair) -> None:
    latest = node.call("getLatestBlockhash", {"commitment": "processed"})["value"]
    blockhash = client.blockhash(PROCESSED)
    bob = Keypair().pubkey()
    in_time, too_late = (
        client.sign([pay_sol(alice, bob, SOL)], alice, blockhash=blockhash, salt=salt) for salt in (1, 2)
    )

    node.advance(150)
    assert node.call("getBlockHeight", {"commitment": "processed"}) == latest["lastValidBlockHeight"]
    client.send(in_time, preflight=PROCESSED)
    node.advance(1)
    with pytest.raises(RefusedError, match="Blockhash not found"):
        client.send(too_late, preflight=PROCESSED)
    client.send(too_late, preflight=None)

    assert client.status(too_late.signatures[0]) is None
    assert client.lamports(bob, PROCESSED) == SOL
    assert not node.call("isBlockhashValid", latest["blockhash"], {"commitment": "processed"})["value"]


def test_a_running_clock_keeps_running_after_a_jump() -> None:
    with SolanaNode(slot_ms=5) as node:
        jumped_to = node.advance(1_000_000)

        wait_until(lambda: node.call("getSlot", {"commitment": "processed"}) > jumped_to, what="a new slot")


def test_no_slot_passes_within_a_batch() -> None:
    with SolanaNode(slot_ms=1, now=itertools.count().__next__) as node, Client(node.url) as client:
        request = {"jsonrpc": "2.0", "method": "getSlot", "params": [{"commitment": "processed"}]}
        answers = client.session.post(
            client.url, json=[{**request, "id": number} for number in range(3)], timeout=10
        ).json()

        assert len({answer["result"] for answer in answers}) == 1
        assert node.call("getSlot", {"commitment": "processed"}) > answers[0]["result"]


def test_heights_are_not_slots(node: SolanaNode) -> None:
    epoch = node.call("getEpochInfo")

    assert epoch["absoluteSlot"] == node.call("getSlot")
    assert epoch["blockHeight"] == node.call("getBlockHeight") < epoch["absoluteSlot"]


def test_a_state_before_the_minimum_context_slot_is_not_returned(node: SolanaNode) -> None:
    ahead = {"minContextSlot": node.call("getSlot") + 1}

    with pytest.raises(RpcError, match="Minimum context slot") as refusal:
        node.call("getBalance", str(Keypair().pubkey()), ahead)

    assert refusal.value.code == -32016


def test_signatures_are_paged_in_the_order_they_landed(node: SolanaNode) -> None:
    bob, carol = str(Keypair().pubkey()), str(Keypair().pubkey())
    landed = [node.airdrop(bob, SOL) for _ in range(3)]
    elsewhere = node.airdrop(carol, SOL)
    landed += [node.airdrop(bob, SOL) for _ in range(2)]
    node.advance(32)

    def page(**config: object) -> list[int]:
        rows = node.call("getSignaturesForAddress", bob, config)
        return [landed.index(row["signature"]) for row in rows]

    assert page() == [4, 3, 2, 1, 0]
    assert page(limit=2) == [4, 3]
    assert page(limit=2, before=landed[3]) == [2, 1]
    assert page(until=landed[1]) == [4, 3, 2]
    assert page(before=landed[3], until=landed[0]) == [2, 1]
    assert page(before=elsewhere) == [2, 1, 0]
    assert page(until=elsewhere) == [4, 3]
