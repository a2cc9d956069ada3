"""Is the audit trail whole? Every number, every hash, and the end, read in pages inside a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Row, select

from app.extensions import db
from app.platform import chain_of_hashes, trail
from app.platform.models import AuditEntry, AuditHead
from app.platform.trail import Entry, Head
from app.ports.errors import Rejected

_PER_PAGE = 1000
_SHOWN = 10


def check(*, newest: int | None = None, expected: Head | None = None) -> list[str]:
    """Return one sentence for each thing that is wrong, none when the trail is whole.

    `newest` looks at so many entries of the end only. `expected` is a head that was noted earlier, outside of the
    database: only that shows a trail that was set back, head and all, to an earlier state of itself.
    """
    rows = db.session.execute(
        select(AuditHead.name, AuditHead.number, AuditHead.hash, AuditHead.proof, AuditHead.sealed)
    ).all()
    # One chain has one head. Another row was never written by this service, whatever it says.
    strange = [
        f"there is a head of the name {row.name[:_SHOWN]!r}, which this service has not written"
        for row in rows
        if row.name != trail.NAME
    ]
    return [
        *strange[:_SHOWN],
        *_check(next((row for row in rows if row.name == trail.NAME), None), newest, expected),
    ]


def _check(row: Row[*tuple[Any, ...]] | None, newest: int | None, expected: Head | None) -> list[str]:
    if row is None:
        found = db.session.scalar(select(AuditEntry.number).limit(1)) is not None
        return (
            ["the head of the trail is missing, its entries are there"] if found else _unlike(expected, None)
        )
    try:
        key = trail.key_of(row.sealed)
    except Rejected:
        return [
            "the trail's key cannot be opened: it was replaced, or ENCRYPTION_KEYS lack the key that sealed it"
        ]
    wrong = []
    if not chain_of_hashes.same(row.proof, chain_of_hashes.proof_of(key, row.number, row.hash)):
        wrong.append(f"the head says {row.number} entries, and was not written by this service")
    # Whoever can write to the table may number a forged entry where no walk would come by.
    wrong += [
        f"entry {number} lies before the first"
        for number in db.session.scalars(select(AuditEntry.number).where(AuditEntry.number < 1).limit(_SHOWN))
    ]
    first = 1 if newest is None else max(1, row.number - newest + 1)
    return [*wrong, *_walk(key, Head(row.number, row.hash), first), *_unlike(expected, row.number)]


def head() -> Head:
    """Return the end of the trail, to be noted. Works in a reading unit."""
    return trail.head_of_trail()


def _walk(key: bytes, head: Head, first: int) -> Iterator[str]:
    number, previous = first - 1, chain_of_hashes.GENESIS
    if first > 1:
        previous = db.session.scalar(select(AuditEntry.hash).where(AuditEntry.number == number)) or ""
    for entry in _entries_from(first):
        if entry.number > head.number:
            yield f"entry {entry.number} lies beyond the head, which says {head.number} entries"
            break
        if entry.number != number + 1:
            yield _missing(number + 1, entry.number - 1)
            # What follows cannot be proved against what is gone: only against itself.
            if entry.number > first:
                previous = ""
        if previous and not chain_of_hashes.same(
            entry.hash, chain_of_hashes.hash_of(key, previous, trail.hashed(entry))
        ):
            yield f"entry {entry.number} was changed"
        number, previous = entry.number, entry.hash
    if number < head.number:
        yield _missing(number + 1, head.number)
    elif previous and not chain_of_hashes.same(previous, head.hash):
        yield "the last entry is not the one that the head names"


def _entries_from(number: int) -> Iterator[Entry]:
    while True:
        rows = db.session.execute(
            select(*trail.columns())
            .where(AuditEntry.number >= number)
            .order_by(AuditEntry.number)
            .limit(_PER_PAGE)
        ).all()
        for row in rows:
            yield Entry(*row)
        if len(rows) < _PER_PAGE:
            return
        number = rows[-1].number + 1


def _unlike(expected: Head | None, number: int | None) -> list[str]:
    if expected is None or expected.number == 0:
        return []
    if number is None or number < expected.number:
        return [f"the trail ends at entry {number or 0}, but had {expected.number} when its head was noted"]
    found = db.session.scalar(select(AuditEntry.hash).where(AuditEntry.number == expected.number))
    if found != expected.hash:
        return [f"entry {expected.number} is not the one that was noted"]
    return []


def _missing(first: int, last: int) -> str:
    return f"entry {first} is missing" if first == last else f"entries {first} to {last} are missing"
