"""Several signers share a journal: asked at once, they keep each rule as if one had followed the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Barrier

import pytest

from app.core.chains import USDC, ChainName
from app.core.identifiers import new_id
from app.core.money import TokenAmount
from signer.intended import Intended, Refused, Signable
from signer.journal import Journal, UnsafeJournalError
from tests.support.transaction_pooler import transaction_pooler

SENDER = "0x00000000000000000000000000000000000000A1"
ROUNDS = 12


@pytest.fixture(params=["sqlite", "postgres"])
def journals(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sequence[Journal]]:
    url = f"sqlite:///{tmp_path}/signed.sqlite"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    made = [Journal(url) for _ in range(4)]
    yield made
    for each in made:
        each.disconnect()


def signable(*, intent: str = "", nonce: int | None = 0, digest: int = 0, effect: str = "pays") -> Signable:
    intended = Intended(
        intent or new_id(), new_id(), "transfer", ChainName.BASE, SENDER, TokenAmount(1, USDC), None, SENDER, "",
        is_service=False, is_covered=True,
    )  # fmt: skip
    until = None if nonce is not None else 2**40
    return Signable(
        [intended], "transaction", ChainName.BASE, SENDER, digest.to_bytes(32), effect, nonce, valid_until=until
    )


def outcome(act: Callable[[], object]) -> str:
    try:
        act()
    except Refused as refusal:
        return str(refusal)
    return "signed"


def withdraw_into(closed: dict[str, object], journal: Journal, intent: str) -> None:
    closed.update(journal.close([intent]))


def at_once(*acts: Callable[[], object]) -> list[str]:
    barrier = Barrier(len(acts))

    def run(act: Callable[[], object]) -> str:
        barrier.wait(10)
        return outcome(act)

    with ThreadPoolExecutor(len(acts)) as pool:
        return sorted(pool.map(run, acts))


def test_one_intent_is_signed_for_one_content(journals: Sequence[Journal]) -> None:
    for nonce in range(ROUNDS):
        intent = new_id()
        contents = [signable(intent=intent, nonce=nonce, digest=number, effect=str(number)) for number in range(4)]
        acts = [partial(each.record, content) for each, content in zip(journals, contents, strict=True)]
        assert at_once(*acts) == ["signed", *["signed_before"] * 3]


def test_one_nonce_is_signed_for_one_intent(journals: Sequence[Journal]) -> None:
    for nonce in range(ROUNDS):
        contents = [signable(nonce=nonce, digest=number) for number in range(4)]
        acts = [partial(each.record, content) for each, content in zip(journals, contents, strict=True)]
        assert at_once(*acts) == ["nonce_in_use", "nonce_in_use", "nonce_in_use", "signed"]


def test_what_is_said_to_be_unsigned_is_never_signed_afterwards(journals: Sequence[Journal]) -> None:
    for nonce in range(ROUNDS):
        content, closed = signable(nonce=nonce), dict[str, object]()
        intent = content.intents[0].id
        withdraw = partial(withdraw_into, closed, journals[1], intent)
        outcomes = at_once(partial(journals[0].record, content), withdraw, partial(journals[2].record, content))
        was_signed = outcomes.count("signed") > 1  # one of them is the withdrawal itself
        assert (intent in closed) is was_signed, outcomes
        again = partial(journals[3].record, signable(intent=intent, nonce=nonce, digest=1))
        assert outcome(again) == "withdrawn"


def test_the_same_content_is_signed_again_and_a_withdrawn_nonce_is_free(journals: Sequence[Journal]) -> None:
    first = signable()
    for journal in journals:
        journal.record(first)
    cancellation = replace(first, digest=bytes([1] * 32), effect="")
    journals[1].record(cancellation)
    other = signable(digest=7)
    assert outcome(partial(journals[2].record, other)) == "nonce_in_use"
    journals[3].close([first.intents[0].id])
    journals[2].record(other)
    assert set(journals[0].signed_since(0)) == {first.intents[0].id, other.intents[0].id}


def test_a_refusal_in_the_middle_records_nothing(journals: Sequence[Journal]) -> None:
    taken, free = signable(nonce=None, digest=1), signable(nonce=None, digest=2)
    journals[0].close([taken.intents[0].id])
    both = replace(free, intents=[*free.intents, *taken.intents])
    assert outcome(partial(journals[1].record, both)) == "withdrawn"
    assert journals[2].signed_since(0) == {}


def test_behind_a_pooler_that_ignores_the_isolation_no_signer_starts(postgres_url: str) -> None:
    with transaction_pooler(postgres_url) as url, pytest.raises(UnsafeJournalError, match="pooler"):
        Journal(url)


def test_a_database_server_that_disappears_does_not_stop_a_signer_until_tcp_times_out(postgres_url: str) -> None:
    journal = Journal(postgres_url)
    given = journal._connection.info.get_parameters()
    journal.disconnect()
    assert {"connect_timeout", "keepalives_idle", "tcp_user_timeout"} <= given.keys()


def test_a_server_that_commits_before_it_has_written_does_not_make_the_journal_forget(postgres_url: str) -> None:
    journal = Journal(postgres_url)
    [shown] = journal._connection.execute("SHOW synchronous_commit").fetchone()
    journal.disconnect()
    assert shown == "on"
