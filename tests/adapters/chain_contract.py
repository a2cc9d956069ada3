"""The contract of every chain behind the port: real movements on a real local node.

A test module defines a fixture `world` and imports these tests; nothing here depends on nonces, gas or slots.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Protocol

import pytest

from app.core.chains import USDC, Token, native, tokens
from app.core.money import TokenAmount
from app.db import unit_of_work
from app.ports.chain import (
    Chain,
    SignedTransaction,
    StoredTransaction,
    TransactionDraft,
    TransactionOutcome,
    TransactionQuery,
    TransactionStatus,
    TransferIntent,
    WatchedAddress,
)
from app.ports.errors import Rejected, Unreachable
from app.ports.vault import Signer


class World(Protocol):
    """A chain with accounts on it; one whole native coin is enough for every fee."""

    @property
    def chain(self) -> Chain:
        """The chain under test."""
        ...

    @property
    def unreachable(self) -> Chain:
        """The same chain with unreachable endpoints only."""
        ...

    def person(self, *, native_units: int = 0, usdc_units: int = 0) -> tuple[Signer, str]:
        """Return a new account and its address, with these balances from far enough back."""
        ...

    def settle(self) -> None:
        """Wait until everything sent so far has the depth that deposits require."""
        ...


def whole(token: Token, count: int = 1) -> int:
    """Return whole tokens in base units."""
    return count * int(10**token.decimals)


def _held(world: World, address: str, token: Token) -> int:
    return world.chain.balances(address).of(token).units


def _sign(world: World, signer: Signer, intent: TransferIntent) -> tuple[TransactionDraft, SignedTransaction]:
    draft = world.chain.draft(intent)
    return draft, world.chain.sign(draft, signer, sequence=draft.sequence)


def _watch(intent: TransferIntent, signed: SignedTransaction, key: str = "it") -> TransactionQuery:
    return TransactionQuery(key, intent.sender, signed.sequence, (signed.tx_hash,), signed.expires_at_height)


def _prepared(world: World, *, dollars: int = 0) -> tuple[Signer, TransferIntent, TransactionDraft, SignedTransaction]:
    """Sign a transfer of a tenth of a native coin to a known account, or of dollars to a new one."""
    coin = native(world.chain.name)
    signer, sender = world.person(native_units=whole(coin), usdc_units=whole(USDC, 5) if dollars else 0)
    _, recipient = world.person(native_units=0 if dollars else whole(coin))
    amount = TokenAmount(whole(USDC, dollars), USDC) if dollars else TokenAmount(whole(coin) // 10, coin)
    intent = TransferIntent(sender, recipient, amount)
    return signer, intent, *_sign(world, signer, intent)


def _network_calls(
    chain: Chain, world: World, intent: TransferIntent, signed: SignedTransaction
) -> list[Callable[[], object]]:
    """Return a call of each method that needs a node, on a chain with the accounts of `world`."""
    mark = world.chain.scan_state(intent.sender)
    return [
        chain.head,
        lambda: chain.draft(intent),
        lambda: chain.balances(intent.sender),
        lambda: chain.broadcast(signed.raw),
        lambda: chain.rebroadcast([signed.raw]),
        lambda: chain.outcomes([_watch(intent, signed)]),
        lambda: chain.scan_state(intent.sender),
        lambda: chain.deposits([WatchedAddress(intent.sender, mark)], cursor=None),
    ]


def _end(world: World, intent: TransferIntent, signed: SignedTransaction) -> TransactionOutcome:
    world.settle()
    return world.chain.outcomes([_watch(intent, signed)])["it"]


@pytest.mark.parametrize("kind", ["native", "usdc"])
def test_a_transfer_costs_exactly_its_amount_and_the_reported_fee(world: World, kind: str) -> None:
    coin = native(world.chain.name)
    is_native = kind == "native"
    token = coin if is_native else USDC
    signer, sender = world.person(native_units=whole(coin), usdc_units=whole(USDC, 5))
    _, recipient = world.person()
    intent = TransferIntent(sender, recipient, TokenAmount(whole(token) // 4 + 1, token))

    draft, signed = _sign(world, signer, intent)
    world.chain.broadcast(signed.raw)
    outcome = _end(world, intent, signed)

    assert (outcome.status, outcome.tx_hash) == (TransactionStatus.SUCCEEDED, signed.tx_hash)
    assert _held(world, recipient, token) == intent.amount.units
    assert outcome.fee_units is not None
    assert 0 < outcome.fee_units <= draft.fee_units
    spent = whole(coin) - _held(world, sender, coin)
    assert spent == outcome.fee_units + (intent.amount.units if is_native else 0)
    assert _held(world, sender, USDC) == whole(USDC, 5) - (0 if is_native else intent.amount.units)


def test_a_draft_contains_the_balances_that_it_was_based_on(world: World) -> None:
    coin = native(world.chain.name)
    _, sender = world.person(native_units=whole(coin), usdc_units=whole(USDC, 5))
    _, recipient = world.person(native_units=whole(coin))

    of_usdc = world.chain.draft(TransferIntent(sender, recipient, TokenAmount(whole(USDC), USDC)))
    of_coin = world.chain.draft(TransferIntent(sender, recipient, TokenAmount(whole(coin) // 2, coin)))

    assert (of_usdc.native_units, of_usdc.token_units) == (whole(coin), whole(USDC, 5))
    assert (of_coin.native_units, of_coin.token_units) == (whole(coin), whole(coin))


@pytest.mark.parametrize("kind", ["native", "usdc"])
def test_insufficient_funds_are_refused_with_figures_before_signing(world: World, kind: str) -> None:
    coin = native(world.chain.name)
    is_native = kind == "native"
    token = coin if is_native else USDC
    _, sender = world.person(native_units=whole(coin), usdc_units=whole(USDC))
    _, recipient = world.person(native_units=whole(coin))

    with pytest.raises(Rejected) as refused:
        world.chain.draft(TransferIntent(sender, recipient, TokenAmount(whole(token, 3), token)))

    assert refused.value.reason == "insufficient_funds"
    assert refused.value.details["currency"] == token.symbol
    assert refused.value.details["available"] == "1"
    required = refused.value.details["required"]
    assert required == "3" if not is_native else required.startswith("3.0")


def test_tokens_without_native_coins_for_the_fee_are_refused_as_such(world: World) -> None:
    coin = native(world.chain.name)
    _, sender = world.person(usdc_units=whole(USDC, 5))
    _, recipient = world.person(native_units=whole(coin))

    with pytest.raises(Rejected) as refused:
        world.chain.draft(TransferIntent(sender, recipient, TokenAmount(whole(USDC), USDC)))

    assert refused.value.reason == "insufficient_gas"
    assert refused.value.details["currency"] == coin.symbol
    assert refused.value.details["missing"] == refused.value.details["required"]


def test_repeated_broadcasts_of_the_same_bytes_pay_once(world: World) -> None:
    _, intent, _, signed = _prepared(world, dollars=1)

    for _ in range(3):
        world.chain.broadcast(signed.raw)
    world.chain.rebroadcast([signed.raw, signed.raw])
    world.settle()
    world.chain.broadcast(signed.raw)
    world.chain.rebroadcast([signed.raw])
    world.settle()

    assert _held(world, intent.recipient, USDC) == whole(USDC)


def test_rebroadcast_delivers_bytes_that_never_arrived(world: World) -> None:
    _, intent, _, signed = _prepared(world, dollars=1)

    world.chain.rebroadcast([b"\x02nonsense", signed.raw])

    assert _end(world, intent, signed).status is TransactionStatus.SUCCEEDED
    assert _held(world, intent.recipient, USDC) == whole(USDC)


def test_the_hash_is_known_and_watched_before_anything_is_sent(world: World) -> None:
    signer, intent, draft, signed = _prepared(world)

    assert world.chain.outcomes([_watch(intent, signed)])["it"] == TransactionOutcome(TransactionStatus.WAITING)
    assert world.chain.sign(draft, signer, sequence=draft.sequence) == signed
    world.chain.broadcast(signed.raw)
    assert _end(world, intent, signed).tx_hash == signed.tx_hash


def test_one_query_returns_the_outcome_of_each_movement(world: World) -> None:
    coin = native(world.chain.name)
    _, recipient = world.person(native_units=whole(coin))
    watches: list[TransactionQuery] = []
    for number in range(3):
        signer, sender = world.person(native_units=whole(coin))
        intent = TransferIntent(sender, recipient, TokenAmount(whole(coin) // 10, coin))
        _, signed = _sign(world, signer, intent)
        if number != 1:
            world.chain.broadcast(signed.raw)
        watches.append(_watch(intent, signed, key=str(number)))
    world.settle()

    fates = {key: outcome.status for key, outcome in world.chain.outcomes(watches).items()}

    assert fates == {"0": TransactionStatus.SUCCEEDED, "1": TransactionStatus.WAITING, "2": TransactionStatus.SUCCEEDED}


def test_a_signed_transaction_survives_the_database(world: World) -> None:
    _, intent, _, signed = _prepared(world)
    stored = StoredTransaction(
        intent, signed.tx_hash, signed.raw, signed.sequence, json.loads(json.dumps(dict(signed.terms)))
    )

    mark = world.chain.scan_state(intent.sender)
    again = world.chain.draft_replacement(stored)

    assert again is None or again.intent == intent
    assert json.loads(json.dumps(dict(mark))) == mark


def test_balances_list_every_supported_token_of_any_address(world: World) -> None:
    _, unused = world.person()

    amounts = world.chain.balances(unused).amounts

    assert tuple(amount.token for amount in amounts) == tokens(world.chain.name)
    assert [amount.units for amount in amounts] == [0, 0]


@pytest.mark.parametrize("kind", ["native", "usdc"])
def test_a_deposit_is_found_once_with_its_payer_and_never_before_the_scan_state(world: World, kind: str) -> None:
    coin = native(world.chain.name)
    is_native = kind == "native"
    token = coin if is_native else USDC
    signer, payer = world.person(native_units=whole(coin), usdc_units=whole(USDC, 5))
    # A transfer before the scan state is taken: it must not count.
    _, watched = world.person(native_units=whole(coin), usdc_units=whole(USDC))
    mark = world.chain.scan_state(watched)
    intent = TransferIntent(payer, watched, TokenAmount(whole(token) // 4, token))
    _, signed = _sign(world, signer, intent)
    world.chain.broadcast(signed.raw)
    world.settle()

    scan = world.chain.deposits([WatchedAddress(watched, mark)], cursor=None)
    again = world.chain.deposits([WatchedAddress(watched, scan.scan_states.get(watched, mark))], cursor=scan.cursor)

    (deposit,) = scan.deposits
    assert (deposit.address, deposit.amount, deposit.payer) == (watched, intent.amount, payer)
    assert deposit.tx_hash == signed.tx_hash
    assert again.deposits == ()


def test_network_methods_refuse_to_run_inside_a_unit_of_work(world: World) -> None:
    signer, intent, draft, signed = _prepared(world)
    calls = [*_network_calls(world.chain, world, intent, signed), lambda: world.chain.orphaned_blocks([])]
    token = unit_of_work._current.set(unit_of_work._Unit())
    try:
        for call in calls:
            with pytest.raises(unit_of_work.UnitError):
                call()
        assert world.chain.sign(draft, signer, sequence=draft.sequence) == signed, "signing is pure"
    finally:
        unit_of_work._current.reset(token)


def test_a_chain_without_nodes_raises_unreachable_only(world: World) -> None:
    _, intent, _, signed = _prepared(world)
    for call in _network_calls(world.unreachable, world, intent, signed):
        with pytest.raises(Unreachable):
            call()
