"""Verification of the audit log: every number, every hash, and the end, read in pages within a snapshot."""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Row, select
from sqlalchemy.orm import Session

from app.audit_log import trail, witness
from app.audit_log.trail import AuditEntry, AuditEntryRow, AuditHead
from app.audit_log.witness import AuditHeadView
from app.db.tables import table_of
from app.db.unit_of_work import snapshot
from app.ports.errors import Rejected

_PAGE_SIZE = 1000
_MAX_PROBLEMS_SHOWN = 10


def verify(*, newest: int | None = 10_000, expected: AuditHeadView | None = None) -> dict[str, Any]:
    """Return the problems of the audit log, or of its newest entries, and of its witness; and its head."""
    with snapshot() as session:
        problems = find_problems(session, newest=newest, expected=expected) + find_witness_problems(session)
        return {"intact": not problems, "problems": problems, "head": trail.get_head(session)}


def find_problems(session: Session, *, newest: int | None = None, expected: AuditHeadView | None = None) -> list[str]:
    """Return one sentence per problem, none when the trail is intact.

    `newest` restricts the check to the last entries. `expected` is a head recorded earlier, outside the database:
    only it reveals that the trail, head included, was set to an earlier state of itself (as does the witness).
    """
    rows = session.execute(
        select(AuditHead.name, AuditHead.number, AuditHead.hash, AuditHead.proof, AuditHead.sealed)
    ).all()
    # One chain has one head. The service never writes another row.
    others = [row.name for row in rows if row.name != trail.TRAIL_NAME][:_MAX_PROBLEMS_SHOWN]
    problem = "there is a head named {!r}, which this service has not written"
    own = next((row for row in rows if row.name == trail.TRAIL_NAME), None)
    unexpected = [problem.format(name[:_MAX_PROBLEMS_SHOWN]) for name in others]
    return [*unexpected, *_check(session, own, newest, expected)]


def find_witness_problems(session: Session) -> list[str]:
    """Return one sentence per head of the witness that the trail disagrees with. Raises: OSError."""
    found = witness.read()
    if found is None:
        return []
    number = trail.get_head(session).number
    return [
        *(f"line {line} of the witness was not written by this service" for line in found.forged_lines),
        *(problem for head in dict.fromkeys(found.heads) for problem in _head_mismatches(session, head, number)),
    ][:_MAX_PROBLEMS_SHOWN]


def _check(
    session: Session, row: Row[*tuple[Any, ...]] | None, newest: int | None, expected: AuditHeadView | None
) -> list[str]:
    if row is None:
        if session.scalar(select(AuditEntry.number).limit(1)) is not None:
            return ["the head of the trail is missing, its entries exist"]
        return _head_mismatches(session, expected, None)
    try:
        key = trail.unseal_chain_key(row.sealed)
    except Rejected:
        return ["the trail's key cannot be opened: it was replaced, or ENCRYPTION_KEYS lacks the key that sealed it"]
    problems = []
    if row.proof != trail.head_proof(key, row.number, row.hash):
        problems.append(f"the head counts {row.number} entries, and was not written by this service")
    # A forged entry could have a number that the check would not reach.
    problems += [
        f"entry {number} precedes the first"
        for number in session.scalars(select(AuditEntry.number).where(AuditEntry.number < 1).limit(_MAX_PROBLEMS_SHOWN))
    ]
    first = 1 if newest is None else max(1, row.number - newest + 1)
    walked = _walk(session, key, AuditHeadView(row.number, row.hash), first)
    return [*problems, *walked, *_head_mismatches(session, expected, row.number)]


def _walk(session: Session, key: bytes, head: AuditHeadView, first: int) -> Iterator[str]:
    number, previous = first - 1, trail.GENESIS
    if first > 1:
        previous = session.scalar(select(AuditEntry.hash).where(AuditEntry.number == number)) or ""
    for entry in _entries_from(session, first):
        if entry.number > head.number:
            yield f"entry {entry.number} follows the head, which counts {head.number} entries"
            break
        if entry.number != number + 1:
            yield _missing(number + 1, entry.number - 1)
            # What follows a gap can only be verified against itself.
            if entry.number > first:
                previous = ""
        if previous and not trail.is_authentic(key, previous, entry._asdict()):
            yield f"entry {entry.number} was changed"
        number, previous = entry.number, entry.hash
    if number < head.number:
        yield _missing(number + 1, head.number)
    elif previous not in {"", head.hash}:
        yield "the last entry is not the one in the head"


def _entries_from(session: Session, number: int) -> Iterator[AuditEntryRow]:
    while True:
        following = select(table_of(AuditEntry)).where(AuditEntry.number >= number).order_by(AuditEntry.number)
        rows = session.execute(following.limit(_PAGE_SIZE)).all()
        yield from rows
        if len(rows) < _PAGE_SIZE:
            return
        number = rows[-1].number + 1


def _head_mismatches(session: Session, expected: AuditHeadView | None, number: int | None) -> list[str]:
    if expected is None or expected.number == 0:
        return []
    if number is None or number < expected.number:
        return [f"the trail ends at entry {number or 0}, but had {expected.number} when its head was recorded"]
    found = session.scalar(select(AuditEntry.hash).where(AuditEntry.number == expected.number))
    return [] if found == expected.hash else [f"entry {expected.number} is not the recorded one"]


def _missing(first: int, last: int) -> str:
    return f"entry {first} is missing" if first == last else f"entries {first} to {last} are missing"
