import time

import pytest
import requests
from solders.keypair import Keypair
from solders.rpc.requests import GetBalance, GetSlot, batch_to_json

from solana_node import RpcError, SolanaNode
from tests.solana_node.client import PROCESSED, SOL, Client, pay_sol


def test_a_dropped_transaction_expires_without_a_trace(node: SolanaNode, client: Client, alice: Keypair) -> None:
    bob = Keypair().pubkey()
    payment = client.sign([pay_sol(alice, bob, SOL)], alice)
    node.faults(drop=1)

    signature = client.send(payment)
    node.advance(200)

    assert client.status(signature) is None
    assert client.transaction(signature) is None
    assert client.lamports(bob) == 0
    client.send(payment, preflight=None)
    assert client.status(signature) is None


def test_a_dropped_transaction_lands_when_it_is_sent_again_in_time(
    node: SolanaNode, client: Client, alice: Keypair
) -> None:
    bob = Keypair().pubkey()
    payment = client.sign([pay_sol(alice, bob, SOL)], alice)
    node.faults(drop=2)

    for _ in range(4):
        client.send(payment, preflight=None)

    assert client.lamports(bob, PROCESSED) == SOL


def test_a_late_transaction_lands_in_its_slot(node: SolanaNode, client: Client, alice: Keypair) -> None:
    bob = Keypair().pubkey()
    node.faults(delay_slots=30)
    signature = client.send(client.sign([pay_sol(alice, bob, SOL)], alice))
    sent_in = node.call("getSlot", {"commitment": "processed"})

    node.advance(29)
    assert client.status(signature) is None
    node.advance(5)

    status = client.status(signature)
    assert status is not None
    assert status.slot == sent_in + 30


def test_a_transaction_delayed_beyond_its_blockhash_never_lands(
    node: SolanaNode, client: Client, alice: Keypair
) -> None:
    node.faults(delay_slots=160)
    signature = client.send(client.sign([pay_sol(alice, Keypair().pubkey(), SOL)], alice))
    node.advance(200)

    assert client.status(signature) is None


def test_an_error_before_execution_changes_nothing(node: SolanaNode, client: Client, alice: Keypair) -> None:
    payment = client.sign([pay_sol(alice, Keypair().pubkey(), SOL)], alice)
    node.faults(http={"sendTransaction": [503, 429]})

    for status in (503, 429):
        with pytest.raises(requests.HTTPError) as failure:
            client.send(payment)
        assert failure.value.response.status_code == status
    assert failure.value.response.headers["Retry-After"] == "1"
    assert client.status(payment.signatures[0]) is None
    client.send(payment)
    assert client.status(payment.signatures[0]) is not None


def test_a_lost_response_hides_an_executed_payment(node: SolanaNode, client: Client, alice: Keypair) -> None:
    bob = Keypair().pubkey()
    payment = client.sign([pay_sol(alice, bob, SOL)], alice)
    node.faults(http_after={"sendTransaction": [503]})

    with pytest.raises(requests.HTTPError):
        client.send(payment)

    assert client.status(payment.signatures[0]) is not None
    assert client.lamports(bob, PROCESSED) == SOL


def test_a_connection_cut_after_execution_hides_an_executed_payment(
    node: SolanaNode, client: Client, alice: Keypair
) -> None:
    payment = client.sign([pay_sol(alice, Keypair().pubkey(), SOL)], alice)
    node.faults(http_after={"sendTransaction": [0]})

    with pytest.raises(requests.ConnectionError):
        client.send(payment)

    assert client.status(payment.signatures[0]) is not None


def test_a_fault_hits_a_batch_that_names_its_method(node: SolanaNode, client: Client) -> None:
    node.faults(http={"getBalance": [500]})
    batch = batch_to_json([GetSlot(), GetBalance(Keypair().pubkey())])

    assert client.post(GetSlot().to_json()).status_code == 200
    assert client.post(batch).status_code == 500
    assert client.post(batch).status_code == 200


def test_a_slow_answer_is_slow(node: SolanaNode, client: Client) -> None:
    node.faults(sleep_ms={"getSlot": 80})

    started = time.monotonic()
    client.post(GetSlot().to_json())

    assert time.monotonic() - started >= 0.08


def test_faults_are_set_and_cleared_over_the_wire(node: SolanaNode) -> None:
    assert node.call("sandbox_faults", {"drop": 2, "delaySlots": 3}) == {
        "drop": 2,
        "delaySlots": 3,
        "http": {},
        "httpAfter": {},
        "sleepMs": {},
    }
    with pytest.raises(RpcError, match="unknown faults: dorp"):
        node.call("sandbox_faults", {"dorp": 1})
    assert node.call("sandbox_faults")["drop"] == 0


def test_faucet_payments_are_not_affected_by_faults(node: SolanaNode, client: Client) -> None:
    bob = Keypair().pubkey()
    node.faults(drop=5, delay_slots=5)

    node.airdrop(bob, SOL)

    assert client.lamports(bob, PROCESSED) == SOL


def test_an_airdrop_below_rent_is_refused(node: SolanaNode) -> None:
    with pytest.raises(RpcError, match="InsufficientFundsForRent"):
        node.airdrop(Keypair().pubkey(), 1)
