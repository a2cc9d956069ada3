"""Making a database that was set back to an earlier state safe to work on, before any process does.

What happened after the backup is not in it, and some of that would be done or taken twice: payments count again,
purchases are queued again, movements look lost. The chains know what was sent; this compares.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from app.core import clock
from app.core.unit_of_work import unit_of_work
from app.payments import horizon, topups, treasury
from app.payments.treasury import Role
from app.platform import trail
from app.platform.actors import Actor
from app.platform.trail import Act, Action, SubjectKind
from app.ports import provider
from app.ports.chain import Does, Sent
from app.ports.errors import PortError
from app.shopping import sweeping as purchases
from app.wallets import unrecorded
from app.wallets.unrecorded import Gap, Overtaken


@dataclass(frozen=True, slots=True)
class Closed:
    """What may have come to its end after the backup, and is closed for that."""

    at: datetime
    payments: int
    purchases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """A sentence for the operator; `open` where somebody has to look before the service may go on."""

    said: str
    open: bool = False


def close(actor: Actor) -> Closed:
    """Let nothing be used or bought a second time that was open at the backup, and note it in the trail."""
    now = clock.now()
    with unit_of_work():
        payments = horizon.draw(now)
        ended = tuple(purchases.leave_all_open())
        after = {"payments": payments, "purchases": trail.listed(ended)}
        trail.record(actor, Act(Action.DATABASE_SET_BACK, SubjectKind.SERVICE, None, after=after))
    return Closed(now, payments, ended)


def compare(*, mends: bool, most: int) -> Iterator[Line]:
    """Say what the chains know and the database does not; where it `mends`, let it know as far as it must.

    Of the transactions that nothing here knows at most so many are looked up one by one.
    """
    for name in provider.current().chains:
        held: list[str] = []
        try:
            for found in unrecorded.overtaken(name):
                if mends and found.is_untold:
                    unrecorded.hold(found)
                    held.append(found.movement.id)
                yield _overtaken(found, mends=mends)
            if mends:
                unrecorded.let_go(name, but=held)
            for gap in unrecorded.gaps(name):
                if mends:
                    unrecorded.catch_up(gap)
                yield from _gap(gap, most=most)
                most = max(0, most - len(gap.slots))
        except PortError as error:
            yield Line(f"{name.value}: cannot be read ({error.reason}); run this again", open=True)


def _overtaken(found: Overtaken, *, mends: bool) -> Line:
    movement, sent = found.movement, found.sent
    what = f"{movement.chain.value}: movement {movement.id} of {movement.sender}, slot {movement.nonce}"
    if sent is None:
        return Line(
            f"{what}: the slot is used, and no node can tell by what; name one that keeps old states",
            open=True,
        )
    done = "was cancelled" if sent.does is Does.NOTHING else "was carried out"
    by = f"after the backup by {sent.tx_hash}"
    if sent.does is Does.OTHER:
        return Line(
            f"{what}: another transaction used the slot, {sent.tx_hash}; look whether it stands for this movement",
            open=True,
        )
    if found.purpose is None:
        return Line(
            f"{what}: {done} {by}, whose signed bytes no node tells in full; name another one, until then it is"
            f" {movement.status.value} here",
            open=True,
        )
    if not mends or not found.is_mended_by_adoption:
        return Line(f"{what}: {done} {by}")
    if not unrecorded.adopt(found, reopen_beside=topups.reopen):
        return Line(
            f"{what}: {done} {by}, and could not be changed (deleted, or moving at this moment); run this again",
            open=True,
        )
    return Line(f"{what}: {done} {by}; a worker settles it")


def _gap(gap: Gap, *, most: int) -> Iterator[Line]:
    who = "the service itself" if gap.agent_id == treasury.OWNER else f"agent {gap.agent_id}"
    yield Line(
        f"{gap.chain.value}: {who}, wallet {gap.wallet_id}, {gap.address} has sent {len(gap.slots)} transactions"
        " that are not in this database"
    )
    for slot in gap.slots[:most]:
        yield Line(f"{gap.chain.value}:   slot {slot}: {_described(unrecorded.sent_in(gap, slot), gap)}")
    if len(gap.slots) > most:
        yield Line(f"{gap.chain.value}:   and {len(gap.slots) - most} more; see the address in an explorer")


def _described(sent: Sent | None, gap: Gap) -> str:
    if sent is None:
        return "no node can tell what it was; see the address in an explorer"
    if sent.amount is None:
        return f"{sent.tx_hash}, a call of {sent.recipient}"
    to = "the treasury: credits may be owed" if _is_treasury(sent, gap) else sent.recipient
    return f"{sent.tx_hash}, {sent.amount} {sent.amount.token.symbol} to {to}"


def _is_treasury(sent: Sent, gap: Gap) -> bool:
    return treasury.is_made(Role.TREASURY) and sent.recipient == treasury.recipient(gap.chain)
