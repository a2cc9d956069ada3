"""The stories of keys that are not an agent's: master, owner and gateway-only keys, keys of deleted wallets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog
from sqlalchemy.exc import IntegrityError

from app.agents import claims
from app.core import clock, identifiers
from app.core.pagination import Page, PageRequest
from app.core.unit_of_work import reading, unit_of_work
from app.credits import service as credits_service
from app.errors import NotFound, SelfRevoke
from app.identity import api_keys, master_keys, owner_keys
from app.identity import service as identity
from app.identity.api_keys import GatewayKeyView
from app.identity.master_keys import MasterKeyView
from app.platform import trail
from app.platform.actors import Actor, ActorKind
from app.platform.trail import Act, Action, SubjectKind
from app.ports.errors import PortError
from app.wallets import retired
from app.wallets.retired import RetiredWallet
from app.web import idempotency

DEFAULT_NAME = "unnamed-key"
_BOOTSTRAP_NAME = "bootstrap"
_LOOK_AGAIN = timedelta(days=7)
_CONFIRM_EMPTY = timedelta(days=1)
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class GatewayKey:
    """A gateway-only key with what it has left."""

    view: GatewayKeyView
    credits_nanos: int


@dataclass(frozen=True, slots=True)
class Rescue:
    """All that opens a deleted wallet; the repr does not show the words."""

    wallet: RetiredWallet
    phrase: str = field(repr=False)


def create_master_key(actor: Actor, *, name: str | None, owner_email: str | None) -> MasterKeyView:
    """Make a further master key; this is when its maker sees it."""
    key = master_keys.mint()
    with unit_of_work():
        made = master_keys.add(key, name=name or DEFAULT_NAME, owner_email=owner_email)
        idempotency.bind(made.id)
        after = {"name": made.name, "owner_email": owner_email}
        trail.record(actor, Act(Action.MASTER_KEY_CREATED, SubjectKind.MASTER_KEY, made.id, after=after))
    return made


def created_master_key(key_id: str) -> MasterKeyView:
    """Return a master key as its making is answered."""
    with reading():
        return master_keys.one(key_id)


def note_repeated_master_key(actor: Actor, key_id: str) -> None:
    """Note that the answer to a master key's making is given once more."""
    shown = {"key_ids": [key_id], "repeated": True}
    with unit_of_work():
        trail.record(actor, Act(Action.MASTER_KEYS_SHOWN, SubjectKind.SERVICE, None, after=shown))


def bootstrap_master_key(actor: Actor, key: str) -> bool:
    """Create the first master key if there is none at all, and tell whether this call did.

    Processes that start together are told apart by the unique digest: one of them creates it.

    Raises: ValueError when the key is too short or not of the form `mk_…`.
    """
    sealed = master_keys.seal_given(key)
    try:
        with unit_of_work():
            if master_keys.exists():
                return False
            made = master_keys.add(sealed, name=_BOOTSTRAP_NAME, owner_email=None)
            after = {"name": made.name}
            trail.record(actor, Act(Action.MASTER_KEY_CREATED, SubjectKind.MASTER_KEY, made.id, after=after))
    except IntegrityError:
        return False
    return True


def show_master_keys(actor: Actor) -> list[MasterKeyView]:
    """Return all master keys, and note that the active ones were shown."""
    with reading():
        found = master_keys.every()
    shown = {"key_ids": [each.id for each in found if each.active]}
    with unit_of_work():
        trail.record(actor, Act(Action.MASTER_KEYS_SHOWN, SubjectKind.SERVICE, None, after=shown))
    return found


def revoke_master_key(actor: Actor, key_id: str) -> str:
    """Revoke another master key and return its id; one that was revoked before stays as it is.

    Raises: NotFound; SelfRevoke; Unauthorized when the acting key was revoked first; LastMasterKeyError.
    """
    canonical = identifiers.parse_id(key_id)
    if canonical is None:
        raise NotFound("There is no such master key.")
    if canonical == actor.id:
        raise SelfRevoke
    by = actor.id if actor.kind is ActorKind.MASTER_KEY else None
    with unit_of_work():
        key, was_active = master_keys.revoke(canonical, by=by)
        act = Act(
            Action.MASTER_KEY_REVOKED,
            SubjectKind.MASTER_KEY,
            key.id,
            before={"name": key.name, "active": was_active},
            after={"active": False},
        )
        trail.record(actor, act)
    return key.id


def replace_owner_key(actor: Actor, agent_id: str) -> str:
    """Give a claimed agent another owner key, for an owner who has lost theirs, and return it: shown only now.

    The key before opens nothing any more. Raises: NotFound, also when nobody has claimed the agent.
    """
    canonical = identifiers.parse_id(agent_id)
    if canonical is None:
        raise identity.no_such_agent()
    key = identifiers.new_key(owner_keys.PREFIX)
    with unit_of_work():
        agent = identity.lock_agent(canonical)
        if agent.claimed_at is None:
            raise NotFound("Nobody has claimed this agent; its claim code is what it needs.")
        key_id = owner_keys.replace(agent.id, key, email=agent.claimed_email)
        claims.forget_answer_of(agent.id)
        act = Act(Action.OWNER_KEY_REPLACED, SubjectKind.AGENT, agent.id, after={"key_id": key_id})
        trail.record(actor, act)
    return key


def show_gateway_keys(actor: Actor, page: PageRequest) -> Page[GatewayKey]:
    """Return a page of gateway-only keys, truncated, and note that they were listed."""
    with reading():
        found = api_keys.page_of_gateway_keys(page)
        balances = credits_service.balances([each.id for each in found.items])
        rows = [GatewayKey(each, balances[each.id].credits_nanos) for each in found.items]
    shown = {"limit": page.limit, "offset": page.offset, "count": len(rows)}
    with unit_of_work():
        trail.record(actor, Act(Action.GATEWAY_KEYS_SHOWN, SubjectKind.SERVICE, None, after=shown))
    return Page(rows, found.total, page)


def revoke_gateway_key(actor: Actor, key_id: str) -> str:
    """Revoke a gateway-only key and return its id; its credits stay in the books. Raises: NotFound."""
    canonical = identifiers.parse_id(key_id)
    if canonical is None:
        raise NotFound("There is no such gateway-only key.")
    with unit_of_work():
        was_active = api_keys.revoke_gateway_key(canonical)
        act = Act(
            Action.GATEWAY_KEY_REVOKED,
            SubjectKind.GATEWAY_KEY,
            canonical,
            before={"active": was_active},
            after={"active": False},
        )
        trail.record(actor, act)
    return canonical


def retired_keys(page: PageRequest) -> Page[RetiredWallet]:
    """Return a page of deleted wallets whose keys are kept; no key is opened."""
    with reading():
        return retired.page_of_retired(page)


def export_retired_key(actor: Actor, wallet_id: str) -> Rescue:
    """Open the key of a deleted wallet for a rescue. The entry is there before anybody sees the words.

    Raises: NotFound.
    """
    canonical = identifiers.parse_id(wallet_id)
    if canonical is None:
        raise NotFound("This is no wallet's id.")
    with unit_of_work():
        wallet = retired.one(canonical)
        phrase = retired.recovery_phrase(canonical)
        after = {"evm_address": wallet.evm_address, "solana_address": wallet.solana_address}
        trail.record(actor, Act(Action.RETIRED_KEY_EXPORTED, SubjectKind.WALLET, canonical, after=after))
    return Rescue(wallet, phrase)


def purge_retired_keys(actor: Actor, *, now: datetime | None = None, limit: int = 10) -> Sequence[str]:
    """Forget due keys of deleted wallets that are certainly empty; return the wallets' ids.

    Empty is what two looks, a day apart at least, found so on every chain. What holds anything is looked at again
    in a week, and so is what could not be read.
    """
    now = now or clock.now()
    with reading():
        due = retired.due(now, limit=limit)
    return [wallet.wallet_id for wallet in due if _purge(actor, wallet, now)]


def _purge(actor: Actor, wallet: RetiredWallet, now: datetime) -> bool:
    try:
        held = retired.holdings(wallet)
    except PortError as error:
        _log.warning("retired_key_not_checked", wallet_id=wallet.wallet_id, reason=error.reason)
        with unit_of_work():
            retired.postpone(wallet, until=now + _CONFIRM_EMPTY, empty_since=wallet.empty_since)
        return False
    if held:
        _log.warning("retired_key_still_holds", wallet_id=wallet.wallet_id, held=held)
        with unit_of_work():
            retired.postpone(wallet, until=now + _LOOK_AGAIN, empty_since=None)
        return False
    if wallet.empty_since is None or now < wallet.empty_since + _CONFIRM_EMPTY:
        with unit_of_work():
            since = wallet.empty_since or now
            retired.postpone(wallet, until=since + _CONFIRM_EMPTY, empty_since=since)
        return False
    with unit_of_work():
        if not retired.purge(wallet):
            return False
        before = {
            "agent_id": wallet.agent_id,
            "evm_address": wallet.evm_address,
            "solana_address": wallet.solana_address,
            "retired_at": clock.isoformat(wallet.retired_at),
        }
        trail.record(
            actor, Act(Action.RETIRED_KEY_PURGED, SubjectKind.WALLET, wallet.wallet_id, before=before)
        )
    return True
