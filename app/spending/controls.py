"""Controls of wallets: read, put, default, inherit, lock; and where a wallet stands against them.

Changes lock the account row first, so that no movement is decided by controls that are being replaced.
Alone writes `spending_controls`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Row, bindparam, delete, insert, select, update

from app.core import clock
from app.errors import ControlsLocked, WalletFrozen
from app.extensions import db
from app.spending import accounts, policy
from app.spending.models import SpendingAccount, SpendingControls, SpendingHold
from app.spending.policy import DEFAULT, Controls, Window

COLUMNS = (
    SpendingControls.wallet_id.label("controlled_id"),
    SpendingControls.daily_limit_nanos,
    SpendingControls.weekly_limit_nanos,
    SpendingControls.monthly_limit_nanos,
    SpendingControls.per_tx_limit_nanos,
    SpendingControls.allowed_addresses,
    SpendingControls.allowed_domains,
    SpendingControls.locked,
    SpendingControls.updated_at,
)
# Made once, for every reading of a wallet asks one of them.
_OF_WALLETS = select(*COLUMNS).where(SpendingControls.wallet_id.in_(bindparam("wallet_ids", expanding=True)))
_STANDING = (
    select(*accounts.COLUMNS, *COLUMNS)
    .outerjoin(SpendingControls, SpendingControls.wallet_id == SpendingAccount.wallet_id)
    .where(SpendingAccount.wallet_id == bindparam("of_wallet"))
)


@dataclass(frozen=True, slots=True)
class ControlsView:
    """The controls of a wallet and when they were last changed."""

    daily_limit_nanos: int
    weekly_limit_nanos: int
    monthly_limit_nanos: int
    per_tx_limit_nanos: int
    allowed_addresses: tuple[str, ...]
    allowed_domains: tuple[str, ...]
    locked: bool
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Changes:
    """What to change; None keeps a value (0 or empty where there are no controls yet).

    Addresses are canonical (`core.addresses`) and domains lower-case host names: the schema made them so.
    """

    daily_limit_nanos: int | None = None
    weekly_limit_nanos: int | None = None
    monthly_limit_nanos: int | None = None
    per_tx_limit_nanos: int | None = None
    allowed_addresses: Sequence[str] | None = None
    allowed_domains: Sequence[str] | None = None
    locked: bool | None = None


@dataclass(frozen=True, slots=True)
class Replaced:
    """What a change did to one wallet: `old` is None where it had no controls, and equals `new` if nothing changed."""

    agent_id: str
    wallet_id: str
    old: Controls | None
    new: Controls

    @property
    def is_change(self) -> bool:
        """Tell whether anything is different."""
        return self.old != self.new

    @property
    def loosens(self) -> bool:
        """Tell whether the new controls allow anything that the old ones refused."""
        return self.old is not None and policy.loosens(self.old, self.new)


@dataclass(frozen=True, slots=True)
class WindowStanding:
    """One window: what counts in it, and what remains (0 where it is unlimited)."""

    spent_nanos: int
    remaining_nanos: int
    unlimited: bool
    resets_at: datetime


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a wallet stands: its controls, if it has any, and the three windows."""

    controls: ControlsView | None
    frozen: bool
    today: WindowStanding
    week: WindowStanding
    month: WindowStanding


def controls_of(wallet_ids: Sequence[str]) -> dict[str, ControlsView]:
    """Return the controls of those wallets that have any, in one query."""
    if not wallet_ids:
        return {}
    rows = db.session.execute(_OF_WALLETS, {"wallet_ids": list(wallet_ids)})
    return {
        row.controlled_id: _view(controls, row.updated_at) for row in rows if (controls := controls_in(row))
    }


def standing(wallet_id: str, now: datetime | None = None) -> Standing:
    """Return where a wallet stands now. One query, no lock. Raises: NotFound."""
    row = db.session.execute(_STANDING, {"of_wallet": wallet_id}).one_or_none()
    if row is None:
        raise accounts.gone()
    account = accounts.account_of(row, now=now or clock.now())
    found = controls_in(row)
    limits = found or Controls()
    windows = policy.windows(account.today)
    return Standing(
        controls=_view(found, row.updated_at) if found else None,
        frozen=account.frozen,
        today=_stand(account.spent.day, limits.daily_limit_nanos, windows.day),
        week=_stand(account.spent.week, limits.weekly_limit_nanos, windows.week),
        month=_stand(account.spent.month, limits.monthly_limit_nanos, windows.month),
    )


def put_controls(wallet_id: str, changes: Changes, *, by_agent: bool) -> ControlsView:
    """Create or update a wallet's controls and return them.

    Where the controls are locked, the agent's own key (`by_agent`) may tighten but not loosen them; it never
    locks or unlocks. Raises: ControlsLocked, NotFound.
    """
    old = _locked_controls(wallet_id)
    new = _changed(old or Controls(), changes)
    if by_agent:
        new = replace(new, locked=old is not None and old.locked)
        if old is not None and old.locked and policy.loosens(old, new):
            raise ControlsLocked
    return _write(wallet_id, new, exists=old is not None)


def replace_controls(wallet_id: str, agent_id: str, changes: Changes) -> Replaced:
    """Create or update the controls of one of an agent's wallets, as its owner does; return what became of them.

    Raises: NotFound.
    """
    old = _locked_controls(wallet_id)
    done = Replaced(agent_id, wallet_id, old, _changed(old or Controls(), changes))
    if old is None or done.is_change:
        _write(wallet_id, done.new, exists=old is not None)
    return done


def put_controls_of_agents(agent_ids: Collection[str], changes: Changes) -> list[Replaced]:
    """Create or update the controls of all wallets of some agents, as the platform does; return what became of each.

    The agents must be locked, so that no wallet is made meanwhile. Five statements, however many there are.
    """
    wallet_ids = accounts.lock_accounts_of(agent_ids)
    rows = db.session.execute(
        select(SpendingAccount.wallet_id, SpendingAccount.agent_id, *COLUMNS)
        .outerjoin(SpendingControls, SpendingControls.wallet_id == SpendingAccount.wallet_id)
        .where(SpendingAccount.wallet_id.in_(wallet_ids))
        .order_by(SpendingAccount.wallet_id)
    ).all()
    done = [
        Replaced(row.agent_id, row.wallet_id, old, _changed(old or Controls(), changes))
        for row in rows
        for old in (controls_in(row),)
    ]
    now = clock.now()
    created = [{"wallet_id": each.wallet_id, **_values(each.new, now)} for each in done if each.old is None]
    if created:
        db.session.execute(insert(SpendingControls), created)
    changed = [each.wallet_id for each in done if each.old is not None and each.is_change]
    if changed:
        db.session.execute(
            update(SpendingControls)
            .where(SpendingControls.wallet_id.in_(changed))
            .values(**_given(changes), updated_at=now)
            .execution_options(synchronize_session=False)
        )
    return done


def set_default(
    wallet_id: str,
    *,
    daily_limit_nanos: int = DEFAULT.daily_limit_nanos,
    weekly_limit_nanos: int = DEFAULT.weekly_limit_nanos,
    monthly_limit_nanos: int = DEFAULT.monthly_limit_nanos,
    per_tx_limit_nanos: int = DEFAULT.per_tx_limit_nanos,
) -> ControlsView:
    """Give a new wallet the default controls: 100 USD a day, 500 a week, 1000 a month, 50 per transaction."""
    rules = Controls(
        daily_limit_nanos=daily_limit_nanos,
        weekly_limit_nanos=weekly_limit_nanos,
        monthly_limit_nanos=monthly_limit_nanos,
        per_tx_limit_nanos=per_tx_limit_nanos,
    )
    return _write(wallet_id, rules, exists=False)


def inherit(wallet_id: str, from_wallet_id: str) -> ControlsView | None:
    """Give a new wallet the controls of another one of the agent if those are locked, else none."""
    source = _locked_controls(from_wallet_id)
    return _write(wallet_id, source, exists=False) if source is not None and source.locked else None


def assert_deletable(wallet_id: str, *, by_agent: bool = True) -> None:
    """Lock the wallet's account and refuse the deletion of a frozen wallet, or by the agent of a locked one.

    Raises: WalletFrozen, ControlsLocked, NotFound.
    """
    account = accounts.locked(SpendingAccount.wallet_id == wallet_id, now=clock.now())
    if account.frozen:
        raise WalletFrozen
    rules = _read(wallet_id)
    if by_agent and rules is not None and rules.locked:
        raise ControlsLocked


def close_account(wallet_id: str) -> None:
    """Remove the account, the controls and the holds of a wallet that is being deleted."""
    for table in (SpendingAccount, SpendingControls, SpendingHold):
        db.session.execute(
            delete(table).where(table.wallet_id == wallet_id).execution_options(synchronize_session=False)
        )


def controls_in(row: Row[*tuple[Any, ...]]) -> Controls | None:
    """Return the controls in a row of `COLUMNS`, or None when the wallet has none."""
    if row.controlled_id is None:
        return None
    return Controls(
        daily_limit_nanos=row.daily_limit_nanos,
        weekly_limit_nanos=row.weekly_limit_nanos,
        monthly_limit_nanos=row.monthly_limit_nanos,
        per_tx_limit_nanos=row.per_tx_limit_nanos,
        allowed_addresses=tuple(row.allowed_addresses),
        allowed_domains=tuple(row.allowed_domains),
        locked=row.locked,
    )


def _locked_controls(wallet_id: str) -> Controls | None:
    accounts.lock_account(wallet_id)
    return _read(wallet_id)


def _read(wallet_id: str) -> Controls | None:
    row = db.session.execute(select(*COLUMNS).where(SpendingControls.wallet_id == wallet_id)).one_or_none()
    return None if row is None else controls_in(row)


def _changed(old: Controls, changes: Changes) -> Controls:
    new: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in _given(changes).items()
    }
    return replace(old, **new)


def _given(changes: Changes) -> dict[str, Any]:
    """Return what a change sets, by column; of what a list names twice, once."""
    return {
        name: value if isinstance(value, bool | int) else list(dict.fromkeys(value))
        for name, value in asdict(changes).items()
        if value is not None
    }


def _values(rules: Controls, at: datetime) -> dict[str, Any]:
    return {
        **asdict(rules),
        "allowed_addresses": list(rules.allowed_addresses),
        "allowed_domains": list(rules.allowed_domains),
        "updated_at": at,
    }


def _write(wallet_id: str, rules: Controls, *, exists: bool) -> ControlsView:
    now = clock.now()
    values = _values(rules, now)
    if exists:
        db.session.execute(
            update(SpendingControls)
            .where(SpendingControls.wallet_id == wallet_id)
            .values(**values)
            .execution_options(synchronize_session=False)
        )
    else:
        db.session.execute(insert(SpendingControls).values(wallet_id=wallet_id, **values))
    return _view(rules, now)


def _view(rules: Controls, updated_at: datetime) -> ControlsView:
    return ControlsView(**asdict(rules), updated_at=updated_at)


def _stand(spent_nanos: int, limit_nanos: int, window: Window) -> WindowStanding:
    remaining_nanos = max(0, limit_nanos - spent_nanos) if limit_nanos else 0
    return WindowStanding(spent_nanos, remaining_nanos, limit_nanos == 0, window.resets_at)
