"""Reconciliation of a restored database with the chains, before any process of the service starts.

What happened after the backup is missing from it, and some of it could happen twice: payments would be accepted again,
purchases queued again, transactions look lost. The chains show what was sent.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from app.audit_log import trail
from app.audit_log.actors import Actor
from app.audit_log.trail import AuditAction, AuditEvent
from app.catalog.payouts import service as payouts
from app.core import clock
from app.core.chains import ChainName
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.payments import claimed_payments, topups, treasury
from app.payments.treasury import WalletRole
from app.ports.chain import Chain, NonceUse, SentTransaction
from app.ports.errors import PortError
from app.shopping import maintenance as purchases
from app.state import app_state
from app.wallets.maintenance import restore_reconciliation
from app.wallets.maintenance.restore_reconciliation import NonceGap, UnknownSpend


@dataclass(frozen=True, slots=True)
class ReportLine:
    """A sentence for the operator; `needs_action` when an operator must act before the service starts."""

    text: str
    needs_action: bool = False


def close_open_items(actor: Actor) -> tuple[datetime, int, list[str]]:
    """Prevent a second use of what may have ended after the backup, and record it in the trail.

    Returns until when payments are no longer accepted, the number of open ones, and the ids of open purchases.
    """
    now = clock.now()
    with unit_of_work() as session:
        payments = claimed_payments.set_restore_cutoff(session, now)
        purchase_ids = purchases.mark_all_unknown(session)
        after = {"payments": payments, "purchases": trail.summarized_list(purchase_ids)}
        trail.record(session, actor, AuditEvent(AuditAction.DATABASE_RESTORED, after=after))
    return now, payments, purchase_ids


def reconcile(*, repair: bool, max_lookups: int) -> Iterator[ReportLine]:
    """Yield the differences between the chains and the database; with `repair`, update the database if necessary.

    At most `max_lookups` unknown transactions are looked up.
    """
    with read_only_unit() as session:
        restored_at = claimed_payments.restore_cutoff(session) or clock.now()
    for name, chain in app_state().ports.chains.items():
        quarantined_ids: list[str] = []
        try:
            for found in restore_reconciliation.unknown_spends(chain):
                if repair and found.is_undetermined:
                    restore_reconciliation.quarantine(found)
                    quarantined_ids.append(found.movement.id)
                yield _spend_line(found, repair=repair)
            if repair:
                restore_reconciliation.release_quarantine(name, except_ids=quarantined_ids)
            for gap in restore_reconciliation.nonce_gaps(chain):
                yield from _gap_lines(chain, gap, max_lookups=max_lookups, repair=repair)
                if repair:
                    # Last: until then, a second run finds what this one has not booked.
                    restore_reconciliation.advance_nonce(gap)
                max_lookups = max(0, max_lookups - len(gap.missing_nonces))
            for wallet_id, agent_id, sent in restore_reconciliation.unknown_outflows(chain, restored_at=restored_at):
                yield _payment_line(name, wallet_id, agent_id, sent, repair=repair)
        except PortError as error:
            yield ReportLine(f"{name.value}: cannot be read ({error.reason}); run this again", needs_action=True)


def _spend_line(found: UnknownSpend, *, repair: bool) -> ReportLine:
    movement, sent = found.movement, found.sent
    text = f"{movement.chain.value}: movement {movement.id} of {movement.sender}, nonce {movement.nonce}: "
    if sent is None:
        text += "the nonce is used, but no node shows by which transaction; configure an archive node"
        return ReportLine(text, needs_action=True)
    if sent.nonce_use is NonceUse.OTHER:
        text += f"another transaction used its nonce: {sent.tx_hash}; check whether it is this movement"
        return ReportLine(text, needs_action=True)
    text += "was cancelled" if sent.nonce_use is NonceUse.NOTHING else "was executed"
    text += f" after the backup by {sent.tx_hash}"
    if found.purpose is None:
        text += ", but no node returns its signed bytes in full; configure another node; until then its status is"
        return ReportLine(f"{text} {movement.status.value}", needs_action=True)
    if not repair or not found.needs_adoption:
        return ReportLine(text)
    if not restore_reconciliation.adopt_onchain_tx(found, on_reopened=_reopen):
        text += ", and could not be updated (deleted, or changing concurrently); run this again"
        return ReportLine(text, needs_action=True)
    return ReportLine(f"{text}; a worker settles it")


def _reopen(session: Session, transaction_id: str) -> None:
    topups.reopen_grant(session, transaction_id)
    payouts.reopen(session, transaction_id)


def _gap_lines(chain: Chain, gap: NonceGap, *, max_lookups: int, repair: bool) -> Iterator[ReportLine]:
    owner_text = "the service itself" if gap.agent_id == treasury.OWNER_AGENT_ID else f"agent {gap.agent_id}"
    yield ReportLine(
        f"{gap.chain.value}: {owner_text}, wallet {gap.wallet_id}, {gap.address} has sent"
        f" {len(gap.missing_nonces)} transactions that are not in this database"
    )
    for slot in gap.missing_nonces[:max_lookups]:
        sent = chain.transaction_at_nonce(gap.address, slot)
        if sent is None:
            yield ReportLine(f"{gap.chain.value}:   nonce {slot}: no node returns it; see the address in an explorer")
        else:
            yield _payment_line(gap.chain, gap.wallet_id, gap.agent_id, sent, repair=repair)
    if (more := len(gap.missing_nonces) - max_lookups) > 0:
        yield ReportLine(f"{gap.chain.value}:   and {more} more; see the address in an explorer")


def _payment_line(
    chain: ChainName, wallet_id: str, agent_id: str, sent: SentTransaction, *, repair: bool
) -> ReportLine:
    text = f"{chain.value}:   wallet {wallet_id}: {sent.tx_hash}, "
    if sent.amount is None:
        return ReportLine(f"{text}a call of {sent.recipient}")
    is_to_treasury = treasury.has_wallets(WalletRole.TREASURY) and sent.recipient == treasury.recipient(chain)
    to = "the treasury: credits may be owed" if is_to_treasury else sent.recipient
    is_booked = repair and agent_id != treasury.OWNER_AGENT_ID and restore_reconciliation.book(chain, wallet_id, sent)
    booked_text = ", booked; a worker settles it" if is_booked else ""
    return ReportLine(f"{text}{sent.amount} {sent.amount.token.symbol} to {to}{booked_text}")
