"""The local exchange on Solana and its stand-in for Jupiter: quotes and outputs agree to the unit."""

from __future__ import annotations

import base64
import random
import struct
from collections.abc import Iterator

import pytest
import requests
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from sandbox.jupiter import JupiterServer
from solana_node import SolanaNode
from solana_node.addresses import TOKEN, USDC_MINT, WRAPPED_SOL_MINT, associated_token_address
from solana_node.exchange import JUPITER, POOL, ROUTE_V2, SLIPPAGE_EXCEEDED, quote
from solana_node.tokens import create_token_account, read_token_account

WRAPPED, USDC = Pubkey.from_string(WRAPPED_SOL_MINT), Pubkey.from_string(USDC_MINT)
EVENT_AUTHORITY = Pubkey.from_string("D8cy77BBepLMngZx6ZukaTff5hCt1HrWyKk3Hnd9oitf")


@pytest.fixture
def node() -> Iterator[SolanaNode]:
    with SolanaNode(slot_ms=0) as started:
        yield started


@pytest.fixture
def trader(node: SolanaNode) -> Keypair:
    keys = Keypair()
    node.airdrop(keys.pubkey(), 10**9)
    node.mint_usdc(keys.pubkey(), 10**12)
    node.advance(2)
    return keys


def units_in(node: SolanaNode, owner: Pubkey, mint: Pubkey) -> int:
    account = read_token_account(node.chain.runtime.account(str(associated_token_address(owner, mint))))
    return 0 if account is None else account.amount


def route(owner: Pubkey, units: int, quoted: int, *, slippage_bps: int = 0, signs: bool = True) -> Instruction:
    token = Pubkey.from_string(TOKEN)
    places = [
        (owner, signs, False),
        *((associated_token_address(owner, mint), False, True) for mint in (USDC, WRAPPED)),
        *((key, False, False) for key in (USDC, WRAPPED, token, token, JUPITER, EVENT_AUTHORITY, JUPITER)),
        *((associated_token_address(POOL, mint), False, True) for mint in (USDC, WRAPPED)),
        (POOL, False, False),
    ]
    data = ROUTE_V2 + struct.pack("<QQHHHI", units, quoted, slippage_bps, 0, 0, 0)
    return Instruction(JUPITER, data, [AccountMeta(key, is_signer=s, is_writable=w) for key, s, w in places])


def run(node: SolanaNode, payer: Keypair, owner: Pubkey, instruction: Instruction) -> object:
    """Execute a route and return its error."""
    latest = node.call("getLatestBlockhash", {"commitment": "confirmed"})["value"]["blockhash"]
    making = create_token_account(payer.pubkey(), owner, WRAPPED)
    message = MessageV0.try_compile(payer.pubkey(), [making, instruction], [], Hash.from_string(latest))
    transaction = VersionedTransaction(message, [payer])
    signature = str(transaction.signatures[0])
    options = {"encoding": "base64", "skipPreflight": True, "preflightCommitment": "confirmed"}
    node.call("sendTransaction", base64.b64encode(bytes(transaction)).decode(), options)
    node.advance(2)
    (status,) = node.call("getSignatureStatuses", [signature])["value"]
    return status["err"]


def test_the_output_equals_the_quote_to_the_unit(node: SolanaNode, trader: Keypair) -> None:
    chance, owner = random.Random(7), trader.pubkey()
    for _ in range(25):
        units = chance.choice([1_000, 10**6, 10**9]) * chance.randrange(1, 50) + chance.randrange(1000)
        reserves = {"reserve_in": units_in(node, POOL, USDC), "reserve_out": units_in(node, POOL, WRAPPED)}
        expected, before = quote(units, **reserves), units_in(node, owner, WRAPPED)
        assert run(node, trader, owner, route(owner, units, expected)) is None
        assert units_in(node, owner, WRAPPED) - before == expected
        assert units_in(node, POOL, USDC) == reserves["reserve_in"] + units


def test_less_than_the_minimum_fails_with_jupiter_s_error(node: SolanaNode, trader: Keypair) -> None:
    owner = trader.pubkey()
    given = quote(10**6, reserve_in=units_in(node, POOL, USDC), reserve_out=units_in(node, POOL, WRAPPED))
    refused = {"InstructionError": [1, {"Custom": SLIPPAGE_EXCEEDED}]}
    assert run(node, trader, owner, route(owner, 10**6, given + 1)) == refused
    assert run(node, trader, owner, route(owner, 10**6, given * 10_000 // 9_900, slippage_bps=100)) is None


def test_tokens_do_not_move_without_their_owner_s_signature(node: SolanaNode, trader: Keypair) -> None:
    victim = Keypair().pubkey()
    node.mint_usdc(victim, 10**9)
    node.advance(2)
    assert run(node, trader, victim, route(victim, 10**6, 1, signs=False)) is not None
    assert units_in(node, victim, USDC) == 10**9


def test_the_stand_in_refuses_invalid_requests(node: SolanaNode, trader: Keypair) -> None:
    server = JupiterServer(node.url)
    server.start()
    good = {
        "inputMint": USDC_MINT, "outputMint": WRAPPED_SOL_MINT, "amount": "5", "taker": str(trader.pubkey()),
    }  # fmt: skip
    try:
        answers = {
            name: requests.get(f"{server.url}/swap/v2/build", params={**good, **change}, timeout=10)
            for name, change in {
                "good": {},
                "pair": {"outputMint": USDC_MINT},
                "amount": {"amount": "-1"},
                "taker": {"taker": "me"},
            }.items()
        }
    finally:
        server.stop()
    assert {name: answer.status_code for name, answer in answers.items()} == {
        "good": 200, "pair": 400, "amount": 400, "taker": 400,
    }  # fmt: skip
    assert "No routes found" in answers["pair"].text
    assert answers["good"].json()["swapMode"] == "ExactIn"
