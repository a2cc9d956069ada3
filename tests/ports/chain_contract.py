"""What every chain behind the port promises, whichever its family: real movements on a real local node.

A test module makes a fixture `world` and imports these tests; nothing here knows nonces, gas or slots.
"""

from __future__ import annotations

import json
from typing import Protocol

import pytest

from app.core import unit_of_work
from app.core.chains import USDC, Token, native, tokens
from app.core.money import TokenAmount
from app.ports.chain import Attempt, Chain, Draft, Fate, Intent, Outcome, Signed, Watch, WatchedAddress
from app.ports.errors import Rejected, Unreachable
from app.ports.vault import Signer


class World(Protocol):
    """A chain with people on it; one whole native coin is enough for every fee."""

    @property
    def chain(self) -> Chain:
        """The chain under test."""
        ...

    @property
    def deserted(self) -> Chain:
        """The same chain, none of whose endpoints is there."""
        ...

    def person(self, *, native_units: int = 0, usdc_units: int = 0) -> tuple[Signer, str]:
        """Return somebody new and their address, holding this much from far enough back."""
        ...

    def settle(self) -> None:
        """Let time pass until everything sent so far is as deep as deposits must be."""
        ...


def whole(token: Token, count: int = 1) -> int:
    """Return whole tokens in base units."""
    return count * int(10**token.decimals)


def _held(world: World, address: str, token: Token) -> int:
    return world.chain.balances(address).of(token).units


def _sign(world: World, signer: Signer, intent: Intent) -> tuple[Draft, Signed]:
    draft = world.chain.draft(intent)
    return draft, world.chain.sign(draft, signer, sequence=draft.sequence)


def _watch(intent: Intent, signed: Signed, key: str = "it") -> Watch:
    return Watch(key, intent.sender, signed.sequence, (signed.tx_hash,), signed.expires_at_height)


def _end(world: World, intent: Intent, signed: Signed) -> Outcome:
    world.settle()
    return world.chain.outcomes([_watch(intent, signed)])["it"]


@pytest.mark.parametrize("kind", ["native", "usdc"])
def test_a_movement_moves_exactly_its_amount_and_costs_exactly_the_fee_it_reports(
    world: World, kind: str
) -> None:
    coin = native(world.chain.name)
    is_native = kind == "native"
    token = coin if is_native else USDC
    signer, sender = world.person(native_units=whole(coin), usdc_units=whole(USDC, 5))
    _, recipient = world.person()
    intent = Intent(sender, recipient, TokenAmount(whole(token) // 4 + 1, token))

    draft, signed = _sign(world, signer, intent)
    world.chain.broadcast(signed.raw)
    outcome = _end(world, intent, signed)

    assert (outcome.fate, outcome.tx_hash) == (Fate.SUCCEEDED, signed.tx_hash)
    assert _held(world, recipient, token) == intent.amount.units
    assert outcome.fee_units is not None
    assert 0 < outcome.fee_units <= draft.fee_units
    spent = whole(coin) - _held(world, sender, coin)
    assert spent == outcome.fee_units + (intent.amount.units if is_native else 0)
    assert _held(world, sender, USDC) == whole(USDC, 5) - (0 if is_native else intent.amount.units)


def test_a_draft_tells_the_balances_it_was_made_on(world: World) -> None:
    coin = native(world.chain.name)
    _, sender = world.person(native_units=whole(coin), usdc_units=whole(USDC, 5))
    _, recipient = world.person(native_units=whole(coin))

    of_usdc = world.chain.draft(Intent(sender, recipient, TokenAmount(whole(USDC), USDC)))
    of_coin = world.chain.draft(Intent(sender, recipient, TokenAmount(whole(coin) // 2, coin)))

    assert (of_usdc.native_units, of_usdc.token_units) == (whole(coin), whole(USDC, 5))
    assert (of_coin.native_units, of_coin.token_units) == (whole(coin), whole(coin))


@pytest.mark.parametrize("kind", ["native", "usdc"])
def test_too_little_money_is_refused_with_figures_before_anything_is_signed(world: World, kind: str) -> None:
    coin = native(world.chain.name)
    is_native = kind == "native"
    token = coin if is_native else USDC
    _, sender = world.person(native_units=whole(coin), usdc_units=whole(USDC))
    _, recipient = world.person(native_units=whole(coin))

    with pytest.raises(Rejected) as refused:
        world.chain.draft(Intent(sender, recipient, TokenAmount(whole(token, 3), token)))

    assert refused.value.reason == "insufficient_funds"
    assert refused.value.details["currency"] == token.symbol
    assert refused.value.details["available"] == "1"
    required = refused.value.details["required"]
    assert required == "3" if not is_native else required.startswith("3.0")


def test_tokens_without_anything_for_the_fee_are_refused_as_such(world: World) -> None:
    coin = native(world.chain.name)
    _, sender = world.person(usdc_units=whole(USDC, 5))
    _, recipient = world.person(native_units=whole(coin))

    with pytest.raises(Rejected) as refused:
        world.chain.draft(Intent(sender, recipient, TokenAmount(whole(USDC), USDC)))

    assert refused.value.reason == "insufficient_gas"
    assert refused.value.details["currency"] == coin.symbol
    assert refused.value.details["missing"] == refused.value.details["required"]


def test_the_same_bytes_sent_again_and_again_pay_once(world: World) -> None:
    coin = native(world.chain.name)
    signer, sender = world.person(native_units=whole(coin), usdc_units=whole(USDC, 5))
    _, recipient = world.person()
    intent = Intent(sender, recipient, TokenAmount(whole(USDC), USDC))
    _, signed = _sign(world, signer, intent)

    for _ in range(3):
        world.chain.broadcast(signed.raw)
    world.chain.rebroadcast([signed.raw, signed.raw])
    world.settle()
    world.chain.broadcast(signed.raw)
    world.chain.rebroadcast([signed.raw])
    world.settle()

    assert _held(world, recipient, USDC) == whole(USDC)


def test_bytes_that_never_arrived_are_delivered_by_sending_them_again_among_others(world: World) -> None:
    coin = native(world.chain.name)
    signer, sender = world.person(native_units=whole(coin), usdc_units=whole(USDC, 5))
    _, recipient = world.person()
    intent = Intent(sender, recipient, TokenAmount(whole(USDC), USDC))
    _, signed = _sign(world, signer, intent)

    world.chain.rebroadcast([b"\x02nonsense", signed.raw])

    assert _end(world, intent, signed).fate is Fate.SUCCEEDED
    assert _held(world, recipient, USDC) == whole(USDC)


def test_the_hash_is_known_and_watched_before_anything_is_sent(world: World) -> None:
    coin = native(world.chain.name)
    signer, sender = world.person(native_units=whole(coin))
    _, recipient = world.person(native_units=whole(coin))
    intent = Intent(sender, recipient, TokenAmount(whole(coin) // 10, coin))
    draft, signed = _sign(world, signer, intent)

    assert world.chain.outcomes([_watch(intent, signed)])["it"] == Outcome(Fate.WAITING)
    assert world.chain.sign(draft, signer, sequence=draft.sequence) == signed
    world.chain.broadcast(signed.raw)
    assert _end(world, intent, signed).tx_hash == signed.tx_hash


def test_many_movements_are_told_apart_in_one_question(world: World) -> None:
    coin = native(world.chain.name)
    _, recipient = world.person(native_units=whole(coin))
    watches: list[Watch] = []
    for number in range(3):
        signer, sender = world.person(native_units=whole(coin))
        intent = Intent(sender, recipient, TokenAmount(whole(coin) // 10, coin))
        _, signed = _sign(world, signer, intent)
        if number != 1:
            world.chain.broadcast(signed.raw)
        watches.append(_watch(intent, signed, key=str(number)))
    world.settle()

    fates = {key: outcome.fate for key, outcome in world.chain.outcomes(watches).items()}

    assert fates == {"0": Fate.SUCCEEDED, "1": Fate.WAITING, "2": Fate.SUCCEEDED}


def test_what_was_signed_survives_the_database(world: World) -> None:
    coin = native(world.chain.name)
    signer, sender = world.person(native_units=whole(coin))
    _, recipient = world.person(native_units=whole(coin))
    intent = Intent(sender, recipient, TokenAmount(whole(coin) // 10, coin))
    _, signed = _sign(world, signer, intent)
    stored = Attempt(
        intent, signed.tx_hash, signed.raw, signed.sequence, json.loads(json.dumps(dict(signed.terms)))
    )

    again = world.chain.replacement(stored)

    assert again is None or again.intent == intent
    assert json.loads(json.dumps(dict(world.chain.mark(sender)))) == world.chain.mark(sender)


def test_balances_list_every_served_token_also_for_strangers(world: World) -> None:
    _, nobody = world.person()

    amounts = world.chain.balances(nobody).amounts

    assert tuple(amount.token for amount in amounts) == tokens(world.chain.name)
    assert [amount.units for amount in amounts] == [0, 0]


@pytest.mark.parametrize("kind", ["native", "usdc"])
def test_a_deposit_is_found_once_with_its_payer_and_never_before_the_mark(world: World, kind: str) -> None:
    coin = native(world.chain.name)
    is_native = kind == "native"
    token = coin if is_native else USDC
    signer, payer = world.person(native_units=whole(coin), usdc_units=whole(USDC, 5))
    # Something is there before the watching starts: it must not count.
    _, watched = world.person(native_units=whole(coin), usdc_units=whole(USDC))
    mark = world.chain.mark(watched)
    intent = Intent(payer, watched, TokenAmount(whole(token) // 4, token))
    _, signed = _sign(world, signer, intent)
    world.chain.broadcast(signed.raw)
    world.settle()

    scan = world.chain.deposits([WatchedAddress(watched, mark)], cursor=None)
    again = world.chain.deposits([WatchedAddress(watched, scan.marks.get(watched, mark))], cursor=scan.cursor)

    (deposit,) = scan.deposits
    assert (deposit.address, deposit.amount, deposit.payer) == (watched, intent.amount, payer)
    assert deposit.tx_hash == signed.tx_hash
    assert again.deposits == ()


def test_every_verb_of_the_network_refuses_to_run_inside_a_unit_of_work(world: World) -> None:
    coin = native(world.chain.name)
    signer, sender = world.person(native_units=whole(coin))
    _, recipient = world.person(native_units=whole(coin))
    intent = Intent(sender, recipient, TokenAmount(whole(coin) // 10, coin))
    draft, signed = _sign(world, signer, intent)
    mark = world.chain.mark(sender)
    chain = world.chain
    token = unit_of_work._current.set(unit_of_work._Unit())
    try:
        for verb in (
            chain.head,
            chain.verify_identity,
            lambda: chain.draft(intent),
            lambda: chain.balances(sender),
            lambda: chain.broadcast(signed.raw),
            lambda: chain.rebroadcast([signed.raw]),
            lambda: chain.outcomes([_watch(intent, signed)]),
            lambda: chain.orphaned([]),
            lambda: chain.mark(sender),
            lambda: chain.deposits([WatchedAddress(sender, mark)], cursor=None),
        ):
            with pytest.raises(unit_of_work.UnitError):
                verb()
        assert chain.sign(draft, signer, sequence=draft.sequence) == signed, "signing is pure"
    finally:
        unit_of_work._current.reset(token)


def test_a_chain_without_nodes_is_unreachable_and_nothing_else(world: World) -> None:
    coin = native(world.chain.name)
    signer, sender = world.person(native_units=whole(coin))
    _, recipient = world.person(native_units=whole(coin))
    intent = Intent(sender, recipient, TokenAmount(whole(coin) // 10, coin))
    _, signed = _sign(world, signer, intent)
    mark = world.chain.mark(sender)
    gone = world.deserted
    for verb in (
        gone.head,
        gone.verify_identity,
        lambda: gone.draft(intent),
        lambda: gone.balances(sender),
        lambda: gone.broadcast(signed.raw),
        lambda: gone.rebroadcast([signed.raw]),
        lambda: gone.outcomes([_watch(intent, signed)]),
        lambda: gone.mark(sender),
        lambda: gone.deposits([WatchedAddress(sender, mark)], cursor=None),
    ):
        with pytest.raises(Unreachable):
            verb()
