"""The meaning of a change of limits: its differences, and its decisions about the payments of the last 30 days."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import TypeAlias
from urllib.parse import urlsplit

from app.approvals import service as approvals
from app.approvals.models import ApprovalStatus
from app.buying import records as service_purchases
from app.core import clock
from app.core.movement_kinds import MovementKind
from app.core.pagination import PageRequest
from app.db.unit_of_work import read_only_unit
from app.shopping import service as shopping
from app.spending import accounts, approval_rules, controls, holds, policy, preview
from app.spending.policy import SpendingRequest
from app.spending.preview import PastPayment, Verdict
from app.wallets.core.wallets import WalletView
from app.wallets.views import history

DAYS = timedelta(days=30)
MOST_PAYMENTS = 500
"""With more, a page would take longer than 150 ms of processor time."""
_MOST_SHOWN = 5
_TO_PAYEES = {MovementKind.TRANSFER, MovementKind.WITHDRAWAL, MovementKind.X402}


Decided: TypeAlias = tuple[PastPayment, Verdict, Verdict]


@dataclass(frozen=True, slots=True)
class LimitsPreview:
    """The payments of 30 days with what the controls before and after a change decide, the latest first."""

    loosens: bool
    added: Sequence[str]
    payments: Sequence[Decided]

    def total(self, verdict: str = "", *, which: int = 0) -> tuple[int, int]:
        """Return the number and the value of payments, of all or of those that are decided so; `which` is 1 or 2."""
        values = [each[0].request.value_nanos or 0 for each in self.payments if not which or each[which] == verdict]
        return len(values), sum(values)

    @property
    def changed(self) -> Sequence[Decided]:
        """Return the latest payments that are decided otherwise."""
        return [each for each in self.payments if each[1] != each[2]][:_MOST_SHOWN]


def preview_of(wallet: WalletView, changes: controls.ControlsChange) -> LimitsPreview | None:
    """Return what a change means; None if it changes nothing."""
    old = wallet.spending_controls
    new = controls.apply_changes(old, changes)
    if new == old:
        return None
    first = clock.now() - DAYS
    payments = _payments(wallet, first)
    payees = {payee for each in payments for payee in approval_rules.payees_of(each.request)}
    with read_only_unit() as session:
        known = accounts.known_payees(session, wallet.id, payees, clock.now().date())
    before, after = (list(preview.replay(each, payments, known)) for each in (old, new))
    decided = list(zip(payments, before, after, strict=True))
    return LimitsPreview(
        loosens=old is not None and policy.is_looser(old, new),
        added=[each for each in new.allowed_addresses if old is None or each not in old.allowed_addresses],
        payments=[each for each in reversed(decided) if each[0].at >= first],
    )


def _payments(wallet: WalletView, first: datetime) -> list[PastPayment]:
    """Return what counted since the windows of an instant began, with its payees."""
    windows = policy.windows(first.date())
    since = min(windows.week.start, windows.month.start)
    with read_only_unit() as session:
        counted = holds.counted_since(session, wallet.id, since, most=MOST_PAYMENTS)
        targets = history.targets_of(session, [row.reference for row in counted])
    requests = service_purchases.requests_of([each for each, (kind, _) in targets.items() if kind == MovementKind.X402])
    page = PageRequest(MOST_PAYMENTS, 0, None, datetime.combine(since, time(), UTC))
    waiting = approvals.list_of(PageRequest(MOST_PAYMENTS, 0), wallet_id=wallet.id, status=ApprovalStatus.AWAITING)
    orders = shopping.list_of(wallet.agent_id, page, wallet_id=wallet.id)
    domains = {each: urlsplit(text.partition(" ")[2]).hostname for each, text in requests.items()}
    domains |= {each.id: each.host for each in orders.items} | {each.id: each.domain for each in waiting.items}
    recipients: dict[str, str | None] = {
        each: address for each, (kind, address) in targets.items() if kind in _TO_PAYEES
    }
    recipients |= {each.id: each.recipient for each in waiting.items}
    return [
        PastPayment(
            row.created_at,
            row.made_on,
            SpendingRequest(
                row.amount_nanos,
                recipients.get(row.reference),
                domain=domains.get(row.reference),
                is_network_fee=targets.get(row.reference, ("",))[0] == MovementKind.GAS,
            ),
        )
        for row in counted
    ]
