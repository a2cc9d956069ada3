"""Use cases for master, owner and gateway-only keys, and for keys of deleted wallets."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import structlog
from sqlalchemy.exc import IntegrityError

from app.agents import claims
from app.audit_log import actors, trail
from app.audit_log.actors import Actor, ActorKind
from app.audit_log.trail import AuditAction, AuditEvent
from app.core import clock, identifiers
from app.core.pagination import Page, PageRequest
from app.credits import accounts as credit_accounts
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import NotFound, SelfRevoke
from app.events import targets
from app.idempotency.service import Claim
from app.identity import api_keys, master_keys, owner_keys
from app.identity.master_keys import MasterKeyView
from app.identity.principal import MasterKeyRole
from app.ports.errors import PortError
from app.state import app_state
from app.wallets.core import custody
from app.wallets.core.models import RetiredKey

DEFAULT_NAME = "unnamed-key"
_EMPTY_CONFIRMATION_DELAY = timedelta(days=1)
_log = structlog.get_logger(__name__)


def create_master_key(
    actor: Actor, *, name: str | None, role: MasterKeyRole = MasterKeyRole.ADMIN, owner_email: str | None, claim: Claim
) -> MasterKeyView:
    """Create a master key; it is shown to its creator only now."""
    key = master_keys.mint(role)
    with unit_of_work() as session:
        created = master_keys.add(session, key, name=name or DEFAULT_NAME, owner_email=owner_email)
        claim.bind(session, created.id)
        after = {"name": created.name, "role": role.value, "owner_email": owner_email}
        trail.record(session, actor, AuditEvent(AuditAction.MASTER_KEY_CREATED, created.id, after=after))
    return created


def get_master_key(key_id: str) -> MasterKeyView:
    with read_only_unit() as session:
        return master_keys.get(session, key_id)


def create_bootstrap_master_key() -> None:
    """Create the master key BOOTSTRAP_MASTER_KEY unless there is one; web and scheduler call this when they start."""
    key = app_state().settings.bootstrap_master_key.get_secret_value()
    if key:
        bootstrap_master_key(actors.system_actor("bootstrap"), key)


def bootstrap_master_key(actor: Actor, key: str) -> bool:
    """Create the first master key if none exists, and return whether this call did.

    Of processes that start concurrently, the unique digest lets only one create it.

    Raises: ValueError when the key is too short or not of the form `mk_…`.
    """
    sealed = master_keys.seal_supplied_key(key)
    try:
        with unit_of_work() as session:
            if master_keys.exists(session):
                return False
            created = master_keys.add(session, sealed, name="bootstrap", owner_email=None)
            act = AuditEvent(AuditAction.MASTER_KEY_CREATED, created.id, after={"name": created.name})
            trail.record(session, actor, act)
    except IntegrityError:
        return False
    return True


def list_master_keys(actor: Actor) -> list[MasterKeyView]:
    """Return all master keys, and record that the active ones were shown."""
    with read_only_unit() as session:
        found = master_keys.list_all(session)
    trail.record_alone(actor, AuditAction.MASTER_KEYS_SHOWN, key_ids=[each.id for each in found if each.active])
    return found


def revoke_master_key(actor: Actor, key_id: str) -> tuple[str, list[str]]:
    """Revoke another master key and disable the webhooks that it created; return its id and theirs.

    Revoking it again changes nothing.

    Raises: NotFound; SelfRevoke; Unauthorized when the acting key was revoked first.
    """
    canonical = identifiers.require_id(key_id, NotFound("No master key has this id."))
    if canonical == actor.id:
        raise SelfRevoke
    by = actor.id if actor.kind is ActorKind.MASTER_KEY else None
    with unit_of_work() as session:
        key, was_active = master_keys.revoke(session, canonical, revoked_by=by)
        webhook_ids = targets.disable_set_up_by(session, master_key_id=key.id)
        before = {"name": key.name, "active": was_active}
        after = {"active": False, "disabled_webhooks": trail.summarized_list(webhook_ids)}
        trail.record(session, actor, AuditEvent(AuditAction.MASTER_KEY_REVOKED, key.id, before=before, after=after))
    return key.id, webhook_ids


def replace_owner_key(actor: Actor, agent_id: str) -> str:
    """Give a claimed agent a new owner key at once, as a thief would cancel a recovery; return it: shown only now.

    The previous key becomes invalid. Raises: NotFound, including for an agent that was not claimed.
    """
    key = identifiers.new_key(owner_keys.PREFIX)
    with unit_of_work() as session:
        owner = owner_keys.lock_owner(session, agent_id)
        key_id = owner_keys.replace(session, agent_id, key, email=owner.owner_email)
        claims.erase_response_of(session, agent_id)
        after = {"key_id": key_id, "disabled_targets": targets.disable_set_up_by(session, owner_of=agent_id)}
        claims.announce(session, actor, agent_id, "owner_key_replaced")
        trail.record(session, actor, AuditEvent(AuditAction.OWNER_KEY_REPLACED, agent_id, after=after))
    return key


def list_gateway_keys(actor: Actor, page: PageRequest) -> Page[dict[str, Any]]:
    """Return a page of gateway-only keys, truncated, with their credits, and record that they were listed."""
    with read_only_unit() as session:
        found = api_keys.list_gateway_keys(session, page)
        balances = credit_accounts.balances(session, [row.account_id for row, _ in found.items])
    rows = [
        {"row": row, "key": key, "active": row.revoked_at is None, "balance": balances[row.account_id]}
        for row, key in found.items
    ]
    trail.record_alone(actor, AuditAction.GATEWAY_KEYS_SHOWN, limit=page.limit, offset=page.offset, count=len(rows))
    return Page(rows, found.total, page)


def revoke_gateway_key(actor: Actor, key_id: str) -> str:
    """Revoke a gateway-only key and return its id; its credits stay in the ledger. Raises: NotFound."""
    canonical = identifiers.require_id(key_id, NotFound("No gateway-only key has this id."))
    with unit_of_work() as session:
        was_active = api_keys.revoke_gateway_key(session, canonical)
        before, after = {"active": was_active}, {"active": False}
        trail.record(session, actor, AuditEvent(AuditAction.GATEWAY_KEY_REVOKED, canonical, before=before, after=after))
    return canonical


def export_retired_key(actor: Actor, wallet_id: str) -> tuple[RetiredKey, str]:
    """Return a deleted wallet and its recovery phrase. The entry is committed before the phrase is returned.

    Raises: NotFound.
    """
    canonical = identifiers.require_id(wallet_id, NotFound("This is not the id of a wallet."))
    wallet, phrase = custody.export_retired(canonical)
    with unit_of_work() as session:
        after = {"evm_address": wallet.evm_address, "solana_address": wallet.solana_address}
        trail.record(session, actor, AuditEvent(AuditAction.RETIRED_KEY_EXPORTED, canonical, after=after))
    return wallet, phrase


def purge_retired_keys(actor: Actor, *, now: datetime | None = None, limit: int = 10) -> Sequence[str]:
    """Delete due keys of deleted wallets that are proven empty; return the wallets' ids.

    A wallet is empty if two checks, at least a day apart, found it so on every chain. A wallet that
    holds anything is checked again after a week, one that could not be read after a day.
    """
    now = now or clock.now()
    with read_only_unit() as session:
        due = custody.due_for_purge(session, now, limit=limit)
    return [wallet.wallet_id for wallet in due if _purge_if_empty(actor, wallet, now)]


def _purge_if_empty(actor: Actor, wallet: RetiredKey, now: datetime) -> bool:
    until, empty_since = None, wallet.empty_since
    try:
        holdings = custody.remaining_balances(wallet)
    except PortError as error:
        _log.warning("retired_key_check_failed", wallet_id=wallet.wallet_id, reason=error.reason)
        until = now + _EMPTY_CONFIRMATION_DELAY
    else:
        if holdings:
            _log.warning("retired_key_not_empty", wallet_id=wallet.wallet_id, held=holdings)
            until, empty_since = now + timedelta(days=7), None
        elif empty_since is None or now < empty_since + _EMPTY_CONFIRMATION_DELAY:
            empty_since = empty_since or now
            until = empty_since + _EMPTY_CONFIRMATION_DELAY
    with unit_of_work() as session:
        if until is not None:
            custody.postpone(session, wallet, until=until, empty_since=empty_since)
            return False
        if not custody.purge(session, wallet):
            return False
        before = {name: getattr(wallet, name) for name in ("agent_id", "evm_address", "solana_address")}
        before["retired_at"] = clock.isoformat(wallet.retired_at)
        trail.record(session, actor, AuditEvent(AuditAction.RETIRED_KEY_PURGED, wallet.wallet_id, before=before))
    return True
