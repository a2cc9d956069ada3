"""Spending controls of wallets: reading, changing, defaults, inheritance and locks; and their current usage.

Changes lock the account row first, so that no movement is decided by controls that are being replaced.
The only writer of `spending_controls`.
"""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, Table, bindparam, func, insert, select
from sqlalchemy.orm import Session

from app.authenticated import RowSeal, change, is_permitted
from app.core import clock
from app.core.money import usd_string
from app.db.prepared import PreparedInsert, PreparedRead
from app.db.tables import delete_rows, table_of, update_rows
from app.errors import ControlsLocked, WalletFrozen
from app.events import outbox
from app.events.outbox import EventType
from app.identity import budgets
from app.spending import accounts, policy
from app.spending.models import ApprovedPayee, SpendingAccount, SpendingControls, SpendingHold, SpendingSession
from app.spending.policy import DEFAULT, Controls, Window

_SEAL = RowSeal(SpendingControls, wallet_id="controlled_id", mac="controls_mac")
COLUMNS = (*_SEAL.columns, SpendingControls.updated_at)
_MAX_LISTED = 3
_INSERT = PreparedInsert(SpendingControls)
# Every read of a wallet executes one of them.
_OF_WALLET = PreparedRead(select(*COLUMNS).where(SpendingControls.wallet_id == bindparam("of_wallet")))
_CONTROLS, _ACCOUNTS = table_of(SpendingControls), table_of(SpendingAccount)
_OF_WALLETS = select(*COLUMNS).where(SpendingControls.wallet_id.in_(bindparam("wallet_ids", expanding=True)))
HAS_BUDGETS = budgets.is_member(_ACCOUNTS.c.wallet_id, _ACCOUNTS.c.agent_id).label("has_budgets")
_WITH_CONTROLS = (
    select(*accounts.COLUMNS, *COLUMNS, HAS_BUDGETS)
    .select_from(SpendingAccount)
    .outerjoin(SpendingControls, SpendingControls.wallet_id == SpendingAccount.wallet_id)
)
_STATUS = PreparedRead(_WITH_CONTROLS.where(SpendingAccount.wallet_id == bindparam("of_wallet")))


@dataclass(frozen=True, slots=True)
class ControlsChange:
    """Values to set; None keeps a value. Without controls yet, it is 0 or empty, or the default if they are locked.

    Addresses are canonical (`app.core.chains`) and domains lower-case host names: the schema normalises them.
    """

    daily_limit_nanos: int | None = None
    weekly_limit_nanos: int | None = None
    monthly_limit_nanos: int | None = None
    per_tx_limit_nanos: int | None = None
    allowed_addresses: Sequence[str] | None = None
    allowed_domains: Sequence[str] | None = None
    locked: bool | None = None
    approval_threshold_nanos: int | None = None
    approve_new_recipients: bool | None = None
    approve_new_domains: bool | None = None


@dataclass(frozen=True, slots=True)
class ControlsReplacement:
    """The controls of a wallet before and after a change; `old` is None if it had none."""

    agent_id: str
    wallet_id: str
    old: Controls | None
    new: Controls

    @property
    def has_changed(self) -> bool:
        return self.old != self.new

    @property
    def loosens(self) -> bool:
        """Return whether the new controls allow anything that the old ones refused."""
        return self.old is not None and policy.is_looser(self.old, self.new)

    def as_json(self, changes: ControlsChange) -> dict[str, Any]:
        """Return the values that were sent, before and after, as events and audit entries show them.

        Controls that were created are shown with all values: a lock adds the default limits.
        """
        sent = [name for name, value in asdict(changes).items() if value is not None]
        return {
            "before": None if self.old is None else _shown(self.old, sent, self.new),
            "after": _shown(self.new, sent if self.old else asdict(changes), self.old or Controls()),
        }


@dataclass(frozen=True, slots=True)
class WindowUsage:
    """One window: what counts in it, and what remains (0 if it is unlimited)."""

    spent_nanos: int
    remaining_nanos: int
    unlimited: bool
    resets_at: datetime


@dataclass(frozen=True, slots=True)
class SpendingStatus:
    controls: Controls | None
    frozen: bool
    today: WindowUsage
    week: WindowUsage
    month: WindowUsage


def controls_of(session: Session, wallet_ids: Sequence[str]) -> dict[str, Controls]:
    """Return the controls of wallets by wallet id, in one query; wallets without controls are absent."""
    if not wallet_ids:
        return {}
    rows = session.execute(_OF_WALLETS, {"wallet_ids": list(wallet_ids)})
    return {row.controlled_id: controls for row in rows if (controls := controls_from_row(row))}


def find_controls(session: Session, wallet_id: str) -> Controls | None:
    row = _OF_WALLET.one_or_none(session, {"of_wallet": wallet_id})
    return None if row is None else controls_from_row(row)


def read_status(session: Session, wallet_id: str) -> Row[*tuple[Any, ...]]:
    """Return the row of a wallet's account and controls. One query, no lock. Raises: NotFound."""
    row: Row[*tuple[Any, ...]] | None = _STATUS.one_or_none(session, {"of_wallet": wallet_id})
    if row is None:
        raise accounts.wallet_not_found()
    return row


def with_status(
    table: Table, wallet_id: ColumnElement[str], condition: ColumnElement[bool]
) -> Select[*tuple[Any, ...]]:
    """Return the query of rows of a table with all that `read_status` returns of the wallet of each.

    Of columns that both have, the row has the table's.
    """
    joined = table.join(_ACCOUNTS, _ACCOUNTS.c.wallet_id == wallet_id).outerjoin(
        _CONTROLS, _CONTROLS.c.wallet_id == wallet_id
    )
    return select(*table.c, *accounts.COLUMNS, *COLUMNS, HAS_BUDGETS).select_from(joined).where(condition)


def verified(session: Session, row: Any) -> tuple[accounts.Account, Controls | None]:
    """Return the account and the controls in a row of `read_status`. Raises: RowChanged."""
    account = accounts.verified_account(session, row)
    return account, verified_controls(session, account, row)


def verified_controls(session: Session, account: accounts.Account, row: Any) -> Controls | None:
    """Return the controls of an account from a row of `COLUMNS`. Raises: RowChanged, also if they were deleted."""
    if row is None or row.controlled_id is None:
        if account.controls_version and not is_permitted(session):
            raise _SEAL.refusal(account.wallet_id)
        return None
    _SEAL.verify(session, row, is_expected=row.version == account.controls_version)
    return controls_from_row(row)


def status_of(session: Session, wallet_id: str) -> SpendingStatus:
    """Return the controls of a wallet and their current usage. One query, no lock. Raises: NotFound."""
    return status_from_row(read_status(session, wallet_id))


def status_from_row(row: Any) -> SpendingStatus:
    """Return the controls of a wallet and their current usage, from its row of `read_status`, to show them."""
    account, found = accounts.account_from_row(row), controls_from_row(row)
    limits, windows = (found or Controls()).limits[1:], policy.windows(account.today)
    return SpendingStatus(found, account.frozen, *map(_window_usage, account.spent, limits, windows))


def put_controls(session: Session, wallet_id: str, changes: ControlsChange) -> tuple[Controls, ControlsReplacement]:
    """Create or update a wallet's controls for the agent's own key; return them, and the change.

    It may tighten but not loosen locked controls, and never locks or unlocks. Raises: ControlsLocked, NotFound.
    """
    changes = replace(changes, locked=None)
    account, old = _locked_controls(session, wallet_id)
    if old is not None and old.locked and policy.is_looser(old, apply_changes(old, changes)):
        raise ControlsLocked
    [done] = replace_controls(session, [wallet_id], changes)
    if done.has_changed:
        data = {"wallet_id": wallet_id, "loosens": done.loosens, **done.as_json(changes)}
        outbox.record(session, EventType.CONTROLS_CHANGED, agent_id=account.agent_id, object_id=wallet_id, data=data)
    return done.new, done


def replace_controls(
    session: Session, wallet_ids: Collection[str], changes: ControlsChange
) -> list[ControlsReplacement]:
    """Create or update the controls of wallets for their owner or the operator, even locked ones; return each change.

    Their accounts must be locked. Three statements, whatever their number.
    """
    of_wallets = _WITH_CONTROLS.where(SpendingAccount.wallet_id.in_(wallet_ids))
    rows = session.execute(of_wallets.order_by(SpendingAccount.wallet_id)).all()
    now = clock.now()
    replacements = []
    for account, old in (verified(session, row) for row in rows):
        new = apply_changes(old, changes)
        new = new if new == old else replace(new, updated_at=now)
        replacements.append(ControlsReplacement(account.agent_id, account.wallet_id, old, new))
    created = [
        SpendingControls.stamp({"wallet_id": each.wallet_id, **_values(each.new, now), "version": 1})
        for each in replacements
        if each.old is None
    ]
    if created:
        session.execute(insert(SpendingControls), created)
    changed = [each.wallet_id for each in replacements if each.old is not None and each.has_changed]
    if changed:
        values = {**_changed_values(changes), "updated_at": now, "version": SpendingControls.version + 1}
        change(session, SpendingControls, SpendingControls.wallet_id.in_(changed), **values)
    if created or changed:
        accounts.advance_controls_version(session, [*(each["wallet_id"] for each in created), *changed])
    return replacements


def inherit(session: Session, wallet_id: str, from_wallet_id: str) -> Controls | None:
    """Copy the controls of another wallet of the agent to a new one if they are locked."""
    _, source = _locked_controls(session, from_wallet_id)
    if source is None or not source.locked:
        return None
    accounts.advance_controls_version(session, [wallet_id])
    return insert_new(session, wallet_id, source)


def assert_deletable(session: Session, wallet_id: str, *, by_agent: bool = True) -> None:
    """Lock the wallet's account; refuse to delete a frozen wallet, or one with locked controls if the agent asks.

    Raises: WalletFrozen, ControlsLocked, NotFound.
    """
    account, rules = _locked_controls(session, wallet_id)
    if account.frozen:
        raise WalletFrozen
    if by_agent and rules is not None and rules.locked:
        raise ControlsLocked


def close_account(session: Session, wallet_id: str) -> None:
    """Delete the account, controls, holds, sessions and approved payees of a wallet that is being deleted."""
    for table in (SpendingAccount, SpendingControls, SpendingHold, SpendingSession, ApprovedPayee):
        delete_rows(session, table, table.wallet_id == wallet_id)


def align_versions(session: Session) -> None:
    """Set the versions that accounts expect to those of the controls as they are, before both are sealed anew."""
    version = select(SpendingControls.version).where(SpendingControls.wallet_id == SpendingAccount.wallet_id)
    found = func.coalesce(version.scalar_subquery(), 0)
    update_rows(session, SpendingAccount, SpendingAccount.controls_version != found, controls_version=found)


def controls_from_row(row: Any) -> Controls | None:
    """Return the controls in a row of `COLUMNS`, or None when the wallet has none."""
    if row.controlled_id is None:
        return None
    values = {name: getattr(row, name) for name in Controls.__slots__}
    values |= {name: tuple(values[name]) for name in ("allowed_addresses", "allowed_domains")}
    return Controls(**values)


def _shown(rules: Controls, names: Iterable[str], other: Controls) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name in names:
        value = getattr(rules, name)
        if name.endswith("_nanos"):
            shown[name.replace("_nanos", "_usd")] = usd_string(value)
        else:
            shown[name] = value if isinstance(value, bool) else _shown_list(value, getattr(other, name))
    return shown


def _shown_list(values: Sequence[str], others: Sequence[str]) -> Any:
    if len(values) <= _MAX_LISTED:
        return list(values)
    different = list(islice((each for each in values if each not in others), _MAX_LISTED))
    digest = hashlib.sha256("\n".join(values).encode()).hexdigest()
    return {"count": len(values), "sha256": digest, "different": different}


def _locked_controls(session: Session, wallet_id: str) -> tuple[accounts.Account, Controls | None]:
    """Lock the account of a wallet; return it with its controls, if it has any. Raises: NotFound, RowChanged."""
    account = accounts.lock_account(session, wallet_id)
    return account, verified_controls(session, account, _OF_WALLET.one_or_none(session, {"of_wallet": wallet_id}))


def apply_changes(old: Controls | None, changes: ControlsChange) -> Controls:
    """Return the controls after a change; locking a wallet without controls sets the default ones."""
    if old is None:
        old = DEFAULT if changes.locked else Controls()
    new = _changed_values(changes)
    new |= {name: tuple(value) for name, value in new.items() if isinstance(value, list)}
    return replace(old, **new)


def _changed_values(changes: ControlsChange) -> dict[str, Any]:
    """Return the values that a change sets, by column; duplicates in lists are dropped."""
    return {
        name: value if isinstance(value, bool | int) else list(dict.fromkeys(value))
        for name, value in asdict(changes).items()
        if value is not None
    }


def _values(rules: Controls, at: datetime) -> dict[str, Any]:
    return {
        # `asdict` would copy each.
        **{name: getattr(rules, name) for name in Controls.__slots__},
        "allowed_addresses": list(rules.allowed_addresses),
        "allowed_domains": list(rules.allowed_domains),
        "updated_at": at,
    }


def insert_new(session: Session, wallet_id: str, rules: Controls) -> Controls:
    """Give a new wallet its first controls; its account expects the version 1 of them."""
    now = clock.now()
    _INSERT.execute(session, {"wallet_id": wallet_id, **_values(rules, now), "version": 1})
    return replace(rules, updated_at=now)


def _window_usage(spent_nanos: int, limit_nanos: int, window: Window) -> WindowUsage:
    remaining_nanos = max(0, limit_nanos - spent_nanos) if limit_nanos else 0
    return WindowUsage(spent_nanos, remaining_nanos, limit_nanos == 0, window.resets_at)
