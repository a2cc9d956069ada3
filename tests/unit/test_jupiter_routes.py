"""Jupiter's two route instructions, by their published layouts: any deviation from the swap is refused."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey
from solders.token import ID as TOKEN_PROGRAM

from app.adapters.swaps.jupiter.exchange import JUPITER, SwapAccounts, with_minimum
from app.core.chains import USDC, ChainName
from app.core.money import TokenAmount
from app.ports.errors import Rejected
from signer import solana_checks
from signer.intended import Intended, Refused

EVENT_AUTHORITY = Pubkey.from_string("D8cy77BBepLMngZx6ZukaTff5hCt1HrWyKk3Hnd9oitf")
OWNER, GIVEN, WANTED, GIVEN_MINT, WANTED_MINT = (Pubkey.new_unique() for _ in range(5))
PAIR = SwapAccounts(OWNER, GIVEN, WANTED, GIVEN_MINT, WANTED_MINT)
OTHER = Pubkey.new_unique()
PLAN = b"a plan of the route"
UNITS, MINIMUM = 10_000_000, 66_000_000
TOKENS = (TOKEN_PROGRAM, TOKEN_PROGRAM)
# By the program's IDL. The authority and both token accounts in the middle of the second are the program's own.
ROUTE = (bytes.fromhex("bb64facc31c4af14"), [
    OWNER, GIVEN, WANTED, GIVEN_MINT, WANTED_MINT, *TOKENS, JUPITER, EVENT_AUTHORITY, JUPITER,
])  # fmt: skip
SHARED = (bytes.fromhex("d19853937cfed8e9") + b"\x07", [
    Pubkey.new_unique(), OWNER, GIVEN, Pubkey.new_unique(), Pubkey.new_unique(), WANTED, GIVEN_MINT, WANTED_MINT,
    *TOKENS, EVENT_AUTHORITY, JUPITER,
])  # fmt: skip
KINDS = pytest.mark.parametrize(("head", "keys"), [ROUTE, SHARED], ids=["route_v2", "shared_accounts_route_v2"])


def _route(
    head: bytes,
    keys: list[Pubkey],
    *,
    figures: tuple[int, int, int, int, int] = (UNITS, 70_000_000, 50, 0, 0),
    signers: frozenset[Pubkey] = frozenset({OWNER}),
) -> Instruction:
    further = [*keys, *(Pubkey.new_unique() for _ in range(4))]
    metas = [AccountMeta(key, is_signer=key in signers, is_writable=True) for key in further]
    return Instruction(JUPITER, head + struct.pack("<QQHHH", *figures) + PLAN, metas)


def _read(route: Instruction) -> Instruction:
    return with_minimum(route, PAIR, units=UNITS, minimum_units=MINIMUM)


@KINDS
def test_our_minimum_replaces_quote_and_slippage_and_nothing_else_changes(head: bytes, keys: list[Pubkey]) -> None:
    route = _route(head, keys)
    written = _read(route)
    assert bytes(written.data) == head + struct.pack("<QQHHH", UNITS, MINIMUM, 0, 0, 0) + PLAN
    assert (written.program_id, written.accounts) == (JUPITER, route.accounts)


@KINDS
@pytest.mark.parametrize(
    "figures",
    [
        (UNITS + 1, 70_000_000, 50, 0, 0),
        (UNITS - 1, 70_000_000, 50, 0, 0),
        (UNITS, 70_000_000, 50, 1, 0),
        (UNITS, 70_000_000, 50, 0, 1),
    ],
)
def test_another_amount_or_any_fee_is_refused(
    figures: tuple[int, int, int, int, int], head: bytes, keys: list[Pubkey]
) -> None:
    with pytest.raises(Rejected, match=r"unsafe_instructions"):
        _read(_route(head, keys, figures=figures))


@KINDS
def test_another_account_at_a_checked_index_is_refused(head: bytes, keys: list[Pubkey]) -> None:
    known = {OWNER, GIVEN, WANTED, GIVEN_MINT, WANTED_MINT, TOKEN_PROGRAM, EVENT_AUTHORITY, JUPITER}
    places = [place for place, key in enumerate(keys) if key in known]
    assert len(places) >= 9
    for place in places:
        changed = [*keys[:place], OTHER, *keys[place + 1 :]]
        with pytest.raises(Rejected, match=r"unsafe_instructions"):
            _read(_route(head, changed, signers=frozenset({OWNER} & set(changed))))


def _swapped(keys: list[Pubkey]) -> list[Pubkey]:
    """Return the keys with the two token accounts exchanged."""
    return [{GIVEN: WANTED, WANTED: GIVEN}.get(key, key) for key in keys]


CHANGES: list[Callable[[Instruction], Instruction]] = [
    lambda route: Instruction(TOKEN_PROGRAM, bytes(route.data), route.accounts),
    lambda route: Instruction(JUPITER, b"\0" + bytes(route.data)[1:], route.accounts),
    lambda route: Instruction(JUPITER, bytes(route.data)[:20], route.accounts),
    lambda route: Instruction(JUPITER, b"", route.accounts),
    lambda route: Instruction(JUPITER, bytes(route.data), route.accounts[:8]),
    lambda route: Instruction(JUPITER, bytes(route.data), []),
]


@KINDS
@pytest.mark.parametrize("change", CHANGES)
def test_another_program_instruction_or_length_is_refused(
    change: Callable[[Instruction], Instruction], head: bytes, keys: list[Pubkey]
) -> None:
    with pytest.raises(Rejected, match=r"unsafe_instructions"):
        _read(change(_route(head, keys)))


@KINDS
@pytest.mark.parametrize("signers", [set(), {OWNER, GIVEN}, {GIVEN}, {OWNER, GIVEN_MINT}])
def test_any_signer_but_the_owner_is_refused(signers: set[Pubkey], head: bytes, keys: list[Pubkey]) -> None:
    with pytest.raises(Rejected, match=r"unsafe_instructions"):
        _read(_route(head, keys, signers=frozenset(signers)))


@KINDS
def test_the_reversed_pair_is_refused(head: bytes, keys: list[Pubkey]) -> None:
    with pytest.raises(Rejected, match=r"unsafe_instructions"):
        _read(_route(head, _swapped(keys)))


@KINDS
def test_the_signer_process_signs_a_route_of_the_owner_to_the_owner_alone(head: bytes, keys: list[Pubkey]) -> None:
    amount = TokenAmount(UNITS, USDC)
    intended = Intended("", "", "swap", ChainName.SOLANA, "", amount, MINIMUM, "", str(OWNER), False, True)  # noqa: FBT003
    data = head + struct.pack("<QQHHH", UNITS, MINIMUM, 0, 0, 0) + PLAN

    def check(accounts: list[Pubkey]) -> None:
        solana_checks._check_route(solana_checks.Step(JUPITER, data, accounts), OWNER, (GIVEN, WANTED), intended)

    check([*keys, Pubkey.new_unique()])
    places = [keys.index(key) for key in (OWNER, GIVEN, WANTED)] + ([7] if keys[0] == OWNER else [])
    for place in places:
        with pytest.raises(Refused, match="not_as_recorded"):
            check([*keys[:place], OTHER, *keys[place + 1 :]])
    with pytest.raises(ValueError, match="shorter"):
        check(keys[:7])
