import base64
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from solders.account import Account
from solders.address_lookup_table_account import AddressLookupTableAccount
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.rpc.errors import SendTransactionPreflightFailureMessage
from solders.signature import Signature
from solders.system_program import AdvanceNonceAccountParams, advance_nonce_account, create_nonce_account
from solders.transaction import VersionedTransaction
from solders.transaction_status import EncodedTransactionWithStatusMeta, UiTransactionEncoding

from solana_node import SolanaNode
from solana_node.addresses import TOKEN, associated_token_address
from tests.solana_node.client import PROCESSED, SOL, USDC, Client, RefusedError, pay_sol, pay_token

RENT_EXEMPT_MINIMUM = 890_880
TOKEN_ACCOUNT_RENT = 2_039_280
FEE = 5000
PARSED = {"encoding": "jsonParsed", "commitment": "confirmed"}
LOOKUP_TABLE_PROGRAM = Pubkey.from_string("AddressLookupTab1e1111111111111111111111111")


def land(node: SolanaNode, client: Client, transaction: VersionedTransaction) -> Signature:
    """Send without a preflight and confirm."""
    signature = client.send(transaction, preflight=None)
    node.advance(1)
    return signature


def meta_of(client: Client, signature: Signature, encoding: UiTransactionEncoding) -> dict[str, Any]:
    landed = client.transaction(signature, encoding=encoding)
    assert landed is not None
    assert isinstance(landed.transaction, EncodedTransactionWithStatusMeta)
    assert landed.transaction.meta is not None
    meta = json.loads(landed.transaction.meta.to_json())
    assert isinstance(meta, dict)
    return meta


def test_a_token_payment_makes_the_recipients_account_and_moves_the_units(
    node: SolanaNode, client: Client, alice: Keypair
) -> None:
    mint, bob = node.chain.usdc, Keypair().pubkey()

    signature = client.send(client.sign(pay_token(alice, bob, mint, 7 * USDC), alice))
    node.advance(1)

    assert client.token_units(bob, mint) == 7 * USDC
    assert client.token_units(alice.pubkey(), mint) == 93 * USDC
    assert client.lamports(alice.pubkey()) == 10 * SOL - TOKEN_ACCOUNT_RENT - FEE
    meta = meta_of(client, signature, UiTransactionEncoding.JsonParsed)
    held = {entry["owner"]: entry["uiTokenAmount"]["amount"] for entry in meta["postTokenBalances"]}
    assert held == {str(alice.pubkey()): str(93 * USDC), str(bob): str(7 * USDC)}


def test_paying_an_existing_token_account_costs_no_second_rent(
    node: SolanaNode, client: Client, alice: Keypair
) -> None:
    mint, bob = node.chain.usdc, Keypair().pubkey()
    node.mint_usdc(bob, USDC)
    node.advance(1)

    land(node, client, client.sign(pay_token(alice, bob, mint, USDC), alice))

    assert client.token_units(bob, mint) == 2 * USDC
    assert client.lamports(alice.pubkey()) == 10 * SOL - FEE


def test_a_new_account_below_rent_is_refused(client: Client, alice: Keypair) -> None:
    too_little = client.sign([pay_sol(alice, Keypair().pubkey(), RENT_EXEMPT_MINIMUM - 1)], alice)
    enough = client.sign([pay_sol(alice, Keypair().pubkey(), RENT_EXEMPT_MINIMUM)], alice)

    with pytest.raises(RefusedError, match="insufficient funds for rent"):
        client.send(too_little)
    client.send(enough)


def test_an_account_can_be_emptied_but_not_left_below_rent(node: SolanaNode, client: Client, alice: Keypair) -> None:
    bob = Keypair().pubkey()
    everything = 10 * SOL - FEE

    with pytest.raises(RefusedError, match="insufficient funds for rent"):
        client.send(client.sign([pay_sol(alice, bob, everything - 1)], alice))
    land(node, client, client.sign([pay_sol(alice, bob, everything)], alice))

    assert client.lamports(alice.pubkey()) == 0
    assert client.lamports(bob) == everything


def test_a_failed_transaction_lands_and_costs_its_fee(node: SolanaNode, client: Client, alice: Keypair) -> None:
    mint, bob = node.chain.usdc, Keypair().pubkey()
    too_much = client.sign(pay_token(alice, bob, mint, 101 * USDC), alice)

    with pytest.raises(RefusedError, match="custom program error: 0x1") as refusal:
        client.send(too_much)
    assert isinstance(refusal.value.answer, SendTransactionPreflightFailureMessage)
    assert refusal.value.answer.data.logs
    assert client.status(too_much.signatures[0]) is None

    land(node, client, too_much)
    status = client.status(too_much.signatures[0])
    assert status is not None
    assert "Custom" in str(status.err)
    assert client.lamports(alice.pubkey()) == 10 * SOL - FEE
    assert client.token_units(alice.pubkey(), mint) == 100 * USDC


def test_a_payer_without_funds_leaves_no_trace(node: SolanaNode, client: Client) -> None:
    poor = Keypair()
    transaction = client.sign([pay_sol(poor, Keypair().pubkey(), SOL)], poor)

    with pytest.raises(RefusedError, match="no record of a prior credit"):
        client.send(transaction)
    signature = land(node, client, transaction)

    assert client.status(signature) is None


def test_the_same_bytes_sent_again_pay_once(node: SolanaNode, client: Client, alice: Keypair) -> None:
    bob = Keypair().pubkey()
    transaction = client.sign([pay_sol(alice, bob, SOL)], alice)

    for _ in range(3):
        land(node, client, transaction)

    assert client.lamports(bob) == SOL
    with pytest.raises(RefusedError, match="already been processed"):
        client.send(transaction)


def test_many_senders_of_the_same_bytes_pay_once(node: SolanaNode, client: Client, alice: Keypair) -> None:
    bob = Keypair().pubkey()
    payments = [client.sign([pay_sol(alice, bob, SOL)], alice, salt=salt) for salt in range(3)]

    def send(number: int) -> None:
        with Client(node.url) as sender:
            sender.send(payments[number % len(payments)], preflight=None)

    with ThreadPoolExecutor(8) as senders:
        list(senders.map(send, range(24)))

    assert client.lamports(bob, PROCESSED) == 3 * SOL
    assert client.lamports(alice.pubkey(), PROCESSED) == 7 * SOL - 3 * FEE


def test_two_equal_payments_over_one_blockhash_are_one_transaction(
    node: SolanaNode, client: Client, alice: Keypair
) -> None:
    bob, blockhash = Keypair().pubkey(), client.blockhash()
    payment = [pay_sol(alice, bob, SOL)]

    first = land(node, client, client.sign(payment, alice, blockhash=blockhash))
    second = land(node, client, client.sign(payment, alice, blockhash=blockhash))
    salted = land(node, client, client.sign(payment, alice, blockhash=blockhash, salt=1))

    assert first == second != salted
    assert client.lamports(bob) == 2 * SOL


def test_a_forged_signature_never_lands(node: SolanaNode, client: Client, alice: Keypair) -> None:
    bob = Keypair().pubkey()
    message = client.sign([pay_sol(alice, bob, SOL)], alice).message
    forged = VersionedTransaction.populate(message, [Keypair().sign_message(b"something else")])

    with pytest.raises(RefusedError, match="SignatureVerificationFailure"):
        client.send(forged)
    signature = land(node, client, forged)

    assert client.status(signature) is None
    assert client.lamports(bob) == 0


def test_a_durable_nonce_outlives_blockhashes_and_pays_once(node: SolanaNode, client: Client, alice: Keypair) -> None:
    nonce, bob = Keypair(), Keypair().pubkey()
    creation = create_nonce_account(alice.pubkey(), nonce.pubkey(), alice.pubkey(), 1_447_680)
    land(node, client, client.sign(creation, alice, nonce))
    stored = node.call("getAccountInfo", str(nonce.pubkey()), {"encoding": "jsonParsed", "commitment": "confirmed"})
    value = Hash.from_string(stored["value"]["data"]["parsed"]["info"]["blockhash"])
    use = advance_nonce_account(
        AdvanceNonceAccountParams(nonce_pubkey=nonce.pubkey(), authorized_pubkey=alice.pubkey())
    )
    message = MessageV0.try_compile(alice.pubkey(), [use, pay_sol(alice, bob, SOL)], [], value)
    payment = VersionedTransaction(message, [alice])
    node.advance(1000)

    client.send(payment)
    node.advance(1)
    land(node, client, payment)

    assert client.lamports(bob) == SOL
    spent = MessageV0.try_compile(alice.pubkey(), [use, pay_sol(alice, bob, 2 * SOL)], [], value)
    with pytest.raises(RefusedError, match="Blockhash not found"):
        client.send(VersionedTransaction(spent, [alice]))


def test_addresses_from_a_lookup_table_are_paid_and_shown(node: SolanaNode, client: Client, alice: Keypair) -> None:
    bob, table = Keypair().pubkey(), Keypair().pubkey()
    never = (2**64 - 1).to_bytes(8, "little")
    header = (1).to_bytes(4, "little") + never + bytes(8) + bytes(36)
    node.set_account(table, Account(10 * SOL, header + bytes(bob), LOOKUP_TABLE_PROGRAM))
    node.advance(1)
    tables = [AddressLookupTableAccount(table, [bob])]
    message = MessageV0.try_compile(alice.pubkey(), [pay_sol(alice, bob, SOL)], tables, client.blockhash())
    payment = VersionedTransaction(message, [alice])

    signature = client.send(payment)
    node.advance(1)

    assert client.lamports(bob) == SOL
    meta = meta_of(client, signature, UiTransactionEncoding.Json)
    assert meta["loadedAddresses"] == {"writable": [str(bob)], "readonly": []}
    shown = node.call(
        "getTransaction",
        str(signature),
        {"encoding": "jsonParsed", "commitment": "confirmed", "maxSupportedTransactionVersion": 0},
    )
    assert shown["transaction"]["message"]["accountKeys"][-1] == {
        "pubkey": str(bob),
        "signer": False,
        "source": "lookupTable",
        "writable": True,
    }


def test_a_closed_token_account_is_gone(node: SolanaNode, client: Client, alice: Keypair) -> None:
    mint = node.chain.usdc
    bob = Keypair()
    node.airdrop(bob.pubkey(), SOL)
    node.mint_usdc(bob.pubkey(), USDC)
    node.advance(1)
    account = associated_token_address(bob.pubkey(), mint)
    close = Instruction(
        Pubkey.from_string(TOKEN),
        bytes([9]),
        [
            AccountMeta(account, is_signer=False, is_writable=True),
            AccountMeta(bob.pubkey(), is_signer=False, is_writable=True),
            AccountMeta(bob.pubkey(), is_signer=True, is_writable=False),
        ],
    )

    land(node, client, client.sign([*pay_token(bob, alice.pubkey(), mint, USDC), close], bob))

    assert client.lamports(bob.pubkey()) == SOL + TOKEN_ACCOUNT_RENT - FEE
    assert node.call("getAccountInfo", str(account), {"commitment": "confirmed"})["value"] is None
    owned = node.call(
        "getTokenAccountsByOwner",
        str(bob.pubkey()),
        {"mint": str(mint)},
        {"encoding": "base64", "commitment": "confirmed"},
    )
    assert owned["value"] == []


def test_a_simulation_returns_the_outcome_and_changes_nothing(node: SolanaNode, client: Client, alice: Keypair) -> None:
    mint, bob = node.chain.usdc, Keypair().pubkey()
    config = {
        "encoding": "base64",
        "replaceRecentBlockhash": True,
        "commitment": "confirmed",
        "innerInstructions": True,
    }

    def simulate(units: int) -> dict[str, Any]:
        transaction = client.sign(pay_token(alice, bob, mint, units), alice, blockhash=Hash.default())
        blob = base64.b64encode(bytes(transaction)).decode()
        value = node.call("simulateTransaction", blob, config)["value"]
        assert isinstance(value, dict)
        return value

    good, bad = simulate(USDC), simulate(101 * USDC)
    node.advance(1)

    assert good["err"] is None
    assert good["unitsConsumed"]
    assert good["innerInstructions"][0]["instructions"][1]["parsed"]["type"] == "createAccount"
    assert bad["err"] == {"InstructionError": [2, {"Custom": 1}]}
    assert client.lamports(bob, PROCESSED) == 0
    assert client.lamports(alice.pubkey(), PROCESSED) == 10 * SOL
