"""What our addresses have sent and the database does not know: after it was set back to an earlier state.

The keys are ours alone, so nothing is ever found in a database that was not. Reading changes nothing; `adopt` and
`catch_up` make it safe to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select, update

from app.core import clock
from app.core.chains import ChainName, Family
from app.core.unit_of_work import reading, unit_of_work
from app.errors import NotFound
from app.ports import provider
from app.ports.chain import Does, Fate, Outcome, Sent
from app.spending import service as spending
from app.wallets import nonces, open_movements, settlement
from app.wallets.lifecycle import Reason, Status
from app.wallets.models import Nonce, SignedAttempt, Transaction, Wallet
from app.wallets.open_movements import HELD, OpenMovement
from app.wallets.settlement import Purpose

_PER_LOOK = 500
_RECENT = 200


@dataclass(frozen=True, slots=True)
class Gap:
    """An address that has used more slots on a chain than the database has handed out."""

    chain: ChainName
    wallet_id: str
    agent_id: str
    address: str
    handed_out: int
    used: int

    @property
    def slots(self) -> range:
        """Return the slots that nothing here knows of."""
        return range(self.handed_out, self.used)


@dataclass(frozen=True, slots=True)
class Overtaken:
    """A movement of ours whose slot was used by bytes that we do not know; `sent` is None where no node can tell."""

    movement: OpenMovement
    sent: Sent | None

    @property
    def purpose(self) -> Purpose | None:
        """Return what the unknown bytes were for; None where they cannot be had, or are none of this movement's."""
        if self.sent is None or self.sent.raw is None:
            return None
        return {Does.SAME: Purpose.PAYMENT, Does.NOTHING: Purpose.CANCELLATION}.get(self.sent.does)

    @property
    def is_untold(self) -> bool:
        """Tell whether it may have been carried out for all that is known."""
        return self.purpose is None and (self.sent is None or self.sent.does is not Does.OTHER)

    @property
    def is_mended_by_adoption(self) -> bool:
        """Tell whether the record is wrong, or will be, until the unknown bytes are watched."""
        # Where a cancellation used the slot, a movement that has failed has failed.
        return self.purpose is Purpose.PAYMENT or (
            self.purpose is Purpose.CANCELLATION and self.movement.status is Status.PENDING
        )


def gaps(chain: ChainName) -> Iterator[Gap]:
    """Ask a chain about every wallet. Raises: PortError."""
    last = ""
    while chain.family is Family.EVM:
        with reading() as session:
            found = session.execute(
                select(Wallet.id, Wallet.agent_id, Wallet.evm_address)
                .where(Wallet.id > last if last else Wallet.id.is_not(None))
                .order_by(Wallet.id)
                .limit(_PER_LOOK)
            ).all()
        if not found:
            return
        yield from _gaps(chain, [(row.id, row.agent_id, row.evm_address) for row in found])
        last = found[-1].id


def recent_gaps(chain: ChainName) -> list[Gap]:
    """Ask a chain about the wallets that signed something last: enough to show that all is not well.

    Raises: PortError.
    """
    with reading() as session:
        newest = (
            select(SignedAttempt.transaction_id).order_by(SignedAttempt.id.desc()).limit(_RECENT).subquery()
        )
        found = session.execute(
            select(Wallet.id, Wallet.agent_id, Wallet.evm_address)
            .join(Transaction, Transaction.wallet_id == Wallet.id)
            .join(newest, newest.c.transaction_id == Transaction.id)
            .distinct()
        ).all()
    return list(_gaps(chain, [(row.id, row.agent_id, row.evm_address) for row in found]))


def overtaken(chain: ChainName) -> Iterator[Overtaken]:
    """Find movements that the worker would take for failed, or has, though other bytes of ours took their slots.

    Raises: PortError.
    """
    served = provider.current().chains[chain]
    found = open_movements.undone_by_others(chain)
    for start in range(0, len(found), _PER_LOOK):
        some = found[start : start + _PER_LOOK]
        used = served.sent_counts(sorted({movement.sender for movement in some}))
        past = [each for each in some if each.nonce is not None and each.nonce < used[each.sender]]
        told = served.outcomes([each.watch for each in past])
        for movement in past:
            if not _has_landed(told, movement):
                sent = served.sent_in_slot(
                    movement.sender, movement.nonce or 0, instead_of=movement.attempt()
                )
                # Beside a running service it may land, or be signed again, while this looks.
                is_known = (
                    _has_landed(served.outcomes([movement.watch]), movement)
                    if sent is None
                    else _is_known(chain, sent.tx_hash)
                )
                if not is_known:
                    yield Overtaken(movement, sent)


def adopt(found: Overtaken, *, reopen_beside: Callable[[str], None]) -> bool:
    """Keep bytes that were signed for a movement after the backup among those that are watched for it.

    A movement that was taken for failed is pending again, until the worker settles it by what landed, and whatever
    hangs on it is reopened in the same unit. Tells whether anything was done.
    """
    movement, sent, purpose = found.movement, found.sent, found.purpose
    if sent is None or sent.raw is None or purpose is None or not found.is_mended_by_adoption:
        return False
    now = clock.now()
    with unit_of_work() as session:
        # As a settlement locks: a worker that calls it lost has done so before, or sees these bytes.
        try:
            spending.lock_account(movement.wallet_id)
        except NotFound:
            return False  # its wallet was deleted
        if purpose is Purpose.PAYMENT and settlement.reopen_failed(movement.id, reason=Reason.FOUND):
            reopen_beside(movement.id)
        locked = session.execute(
            update(Transaction)
            .where(Transaction.id == movement.id, Transaction.status == Status.PENDING.value)
            .values(next_check_at=now, checks=0)
            .returning(Transaction.id)
        ).one_or_none()
        known = session.scalar(
            select(SignedAttempt.id).where(
                SignedAttempt.chain == movement.chain.value, SignedAttempt.tx_hash == sent.tx_hash
            )
        )
        if locked is None or known is not None:
            return False
        session.add(
            SignedAttempt(
                transaction_id=movement.id, chain=movement.chain.value, tx_hash=sent.tx_hash,
                purpose=purpose.value, raw=sent.raw, terms=dict(movement.latest.terms), sent_at=now,
                created_at=now,
            )
        )  # fmt: skip
    return True


def hold(found: Overtaken) -> None:
    """Let no worker settle a pending movement of which nobody can tell whether it took place."""
    with unit_of_work() as session:
        # As a settlement locks: one that calls it lost has done so before, or sees this.
        try:
            spending.lock_account(found.movement.wallet_id)
        except NotFound:
            return  # its wallet was deleted
        session.execute(
            update(Transaction)
            .where(Transaction.id == found.movement.id, Transaction.status == Status.PENDING.value)
            .values(next_check_at=HELD)
        )


def let_go(chain: ChainName, *, but: Collection[str]) -> None:
    """Let workers settle what was held and is clear by now."""
    with unit_of_work() as session:
        session.execute(
            update(Transaction)
            .where(
                Transaction.chain == chain.value,
                Transaction.status == Status.PENDING.value,
                Transaction.next_check_at == HELD,
                Transaction.id.not_in(but),
            )
            .values(next_check_at=clock.now(), checks=0)
        )


def sent_in(gap: Gap, slot: int) -> Sent | None:
    """Find what used a slot that nothing here knows of. Raises: PortError."""
    return provider.current().chains[gap.chain].sent_in_slot(gap.address, slot)


def catch_up(gap: Gap) -> None:
    """Hand out no slot that is used already, however many there are, in one unit."""
    with unit_of_work():
        nonces.learn(gap.chain, gap.address, used=gap.used)


def _has_landed(told: Mapping[str, Outcome], movement: OpenMovement) -> bool:
    outcome = told.get(movement.id)
    return outcome is not None and outcome.fate not in (Fate.WAITING, Fate.VOID)


def _is_known(chain: ChainName, tx_hash: str) -> bool:
    """Tell whether bytes are recorded, also since the movement was read."""
    with reading() as session:
        known = select(SignedAttempt.id).where(
            SignedAttempt.chain == chain.value, SignedAttempt.tx_hash == tx_hash
        )
        return session.scalar(known) is not None


def _gaps(chain: ChainName, wallets: Sequence[tuple[str, str, str]]) -> Iterator[Gap]:
    addresses = [address for _, _, address in wallets]
    # The chain goes first: a slot is handed out before it is used.
    used = provider.current().chains[chain].sent_counts(addresses)
    with reading() as session:
        rows = session.execute(
            select(Nonce.address, Nonce.next_nonce).where(
                Nonce.chain == chain.value, Nonce.address.in_(addresses)
            )
        )
        handed_out = {row.address: row.next_nonce for row in rows}
    for wallet_id, agent_id, address in wallets:
        known = handed_out.get(address, 0)
        if used[address] > known:
            yield Gap(chain, wallet_id, agent_id, address, known, used[address])
