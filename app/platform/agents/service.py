"""Use cases for one agent: create, read, update, freeze, grant credits, rotate keys, delete.

Each makes its change and records it in one unit; the audit entry is last, because its head is a shared row.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from app.agents import claims
from app.agents.service import DEFAULT_NAME
from app.audit_log import trail
from app.audit_log.actors import Actor, ActorKind
from app.audit_log.trail import AuditAction, AuditEvent
from app.catalog.models import Service
from app.catalog.services import service as services
from app.core import clock, identifiers, money
from app.core.money import usd_string
from app.core.pagination import Page, PageRequest
from app.credits import accounts as credit_accounts
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import WalletFrozen
from app.idempotency.service import Claim
from app.identity import api_keys
from app.identity import service as identity
from app.identity.principal import KeyKind
from app.identity.service import AgentSnapshot
from app.payments import topups
from app.platform import personal_data
from app.spending.controls import status_of
from app.spending.policy import DEFAULT, Controls
from app.state import app_state
from app.wallets.core import custody, wallets
from app.wallets.core.wallets import WalletView
from app.wallets.views import history
from app.wallets.views.history import TransactionView

# A payment or refund that a bridge's service reports, and the chain does not show in full: the options of the command.
_LOST = {"payment_not_seen": "", "refund_not_seen": "", "refund_short": " --accept-partial-refund"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentView(AgentSnapshot):
    """An agent as an operator sees it, key included; the repr does not show it."""

    api_key: str | None = field(repr=False)
    credits_nanos: int
    spent_nanos: int
    wallet: WalletView | None
    wallets: tuple[WalletView, ...] = ()
    owed_nanos: int = 0

    @property
    def spending_controls(self) -> Controls | None:
        return self.wallet.spending_controls if self.wallet else None


@dataclass(frozen=True, slots=True)
class AgentKeyRotation:
    agent_id: str
    api_key: str = field(repr=False)
    rotated_at: datetime
    older_until: datetime


def create(
    actor: Actor, *, name: str | None, credits_nanos: int | None, limits: Mapping[str, int | None], claim: Claim
) -> str:
    """Create an agent with a key, a wallet with controls, and credits outside every grant budget; return its id.

    `limits` are fields of the controls, in nano-dollars; None is the default.
    """
    key, wallet_key = identity.mint_api_key(KeyKind.AGENT), custody.new_key()
    email = f"agent-{secrets.token_hex(4)}@agents.invalid"
    initial_usd = app_state().settings.initial_credits_usd
    nanos = money.nanos_from_usd(initial_usd) if credits_nanos is None else credits_nanos
    with unit_of_work() as session:
        agent_id = identity.add_agent(session, key, name=name or DEFAULT_NAME, email=email)
        specified: dict[str, Any] = {limit: nanos for limit, nanos in limits.items() if nanos is not None}
        controls = replace(DEFAULT, **specified)
        wallet = wallets.create(session, agent_id, wallet_key, name=None, controls=controls)
        credit_accounts.open_account(session, agent_id)
        credit_accounts.grant(session, agent_id, nanos, reference=f"initial:{agent_id}")
        claim.bind(session, agent_id)
        after = {
            "name": name or DEFAULT_NAME, "email": email, "key_id": key.id, "wallet_id": wallet.id,
            "credits_usd": usd_string(nanos),
            **{limit.replace("_nanos", "_usd"): usd_string(getattr(controls, limit)) for limit in limits},
        }  # fmt: skip
        trail.record(session, actor, AuditEvent(AuditAction.AGENT_CREATED, agent_id, after=after))
    return agent_id


def created_agent(agent_id: str) -> AgentView:
    """Return an agent for the response to its creation. Raises: NotFound when it has been deleted since."""
    with read_only_unit() as session:
        return _agent_detail(session, agent_id)


def get_agent(actor: Actor, agent_id: str) -> AgentView:
    """Return one agent with its key and wallets, and record that they were shown. Raises: NotFound."""
    with read_only_unit() as session:
        view = _agent_detail(session, parse_agent_id(agent_id))
    trail.record_alone(actor, AuditAction.AGENT_SHOWN, view.id)
    return view


def list_agents(actor: Actor, page: PageRequest, *, search: str, **are: bool | None) -> Page[AgentView]:
    """Return a page of agents with their keys, and record which were shown. Seven queries for any number of rows.

    `search` is a part of a name or email address, or the whole of a wallet's address, or of an agent's or wallet's id.
    """
    with read_only_unit() as session:
        named = {*wallets.agents_with(session, search), *([search] if identifiers.parse_id(search) else [])}
        found = identity.list_agents(session, page, search=search, or_ids=named, **are)
        ids = [agent.id for agent in found.items]
        views = _agent_views(session, found.items, wallets.first_wallets(session, ids))
    trail.record_alone(
        actor, AuditAction.AGENTS_SHOWN, limit=page.limit, offset=page.offset, count=len(ids),
        first=ids[0] if ids else None, last=ids[-1] if ids else None,
    )  # fmt: skip
    return Page(views, found.total, found.request)


def list_transactions(agent_id: str, page: PageRequest, filters: Mapping[str, str | None]) -> Page[TransactionView]:
    """Return the transactions of all wallets of an agent, newest first. Raises: NotFound."""
    with read_only_unit() as session:
        agent = identity.get_agent(session, parse_agent_id(agent_id))
        listed = wallets.all_of(session, agent.id)
    return history.page_of_wallets([each.id for each in listed], page, filters)


def list_stuck(page: PageRequest) -> Page[dict[str, Any]]:
    """Return the movements that have been pending for more than an hour, oldest first, with their commands."""
    found, items = history.stuck(page, timedelta(hours=1)), []
    with read_only_unit() as session:
        for each in found.items:
            command, option = "python -m workers.schedule --once", _LOST.get((each.error or "").partition(":")[0])
            if option is not None:
                command = f"flask --app wsgi bridges write-off {each.id}{option}"
            agent_id = next(iter(wallets.agents_with(session, each.wallet_id)), None)
            items.append({"movement": each, "agent_id": agent_id, "command": command})
    return Page(items, found.total, found.request)


def set_service_suspended(actor: Actor, service_id: str, *, suspended: bool) -> Service:
    """Stop or permit the calls of a service. Raises: NotFound."""
    action = AuditAction.SERVICE_PAUSED if suspended else AuditAction.SERVICE_RESUMED
    with unit_of_work() as session:
        view = services.set_suspended(session, service_id, suspended=suspended)
        trail.record(session, actor, AuditEvent(action, view.id, after={"name": view.name, "agent_id": view.agent_id}))
    return view


def update(actor: Actor, agent_id: str, changes: Mapping[str, Any]) -> AgentSnapshot:
    """Change an agent's name, its owner's email or its rate of requests, and return it. Raises: NotFound."""
    with unit_of_work() as session:
        before = identity.lock_agent(session, parse_agent_id(agent_id))
        identity.update_agent(session, before.id, **changes)
        old = {name: getattr(before, name) for name in changes}
        trail.record(session, actor, AuditEvent(AuditAction.AGENT_CHANGED, before.id, before=old, after=changes))
        return identity.get_agent(session, before.id)


def delete(actor: Actor, agent_id: str) -> str:
    """Delete an agent with all its wallets, retire their sealed keys and its services; return its id.

    Ledger and usage are kept.

    Raises: NotFound; WalletFrozen; TransactionInProgress while one of its movements is open: then nothing is deleted.
    """
    with unit_of_work() as session:
        before = identity.lock_agent(session, parse_agent_id(agent_id))
        if before.is_frozen:
            raise WalletFrozen("This agent is frozen. To delete it, rotate its key, then unfreeze it.")
        removed = wallets.delete_all(session, before.id)
        retired = services.retire_all(session, before.id)
        claims.revoke(session, before.id)
        personal_data.erase_rows(session, before.id, personal_data.WITH_AGENT)
        identity.delete_agent(session, before.id)
        previous_values = {
            "name": before.name,
            # Only whether there were addresses: the trail is never pruned.
            "had_email": before.email is not None,
            "was_claimed": before.claimed_at is not None,
            "wallet_ids": removed,
            "service_ids": retired,
            "credits_usd": usd_string(credit_accounts.balance(session, before.id).credits_nanos),
        }
        trail.record(session, actor, AuditEvent(AuditAction.AGENT_DELETED, before.id, before=previous_values))
    return before.id


def rotate_key(actor: Actor, agent_id: str, *, grace: timedelta, claim: Claim) -> AgentKeyRotation:
    """Give an agent a new key; older ones work until the grace period ends. Raises: NotFound."""
    with unit_of_work() as session:
        agent = identity.lock_agent(session, parse_agent_id(agent_id))
        act = _replace_key(session, agent.id, grace=grace)
        # The response can be rebuilt from the entry.
        claim.bind(session, act.id)
        trail.record(session, actor, act)
    return rotation_of_entry(act.id)


def _replace_key(session: Session, agent_id: str, *, grace: timedelta) -> AuditEvent:
    """Replace the key of a locked agent; return the entry to record."""
    key = identity.mint_api_key(KeyKind.AGENT)
    now = clock.now()
    previous_key_ids = api_keys.rotate_api_key(session, agent_id, key, now=now, grace=grace)
    # A repeated claim would show the new key to a client that has the code.
    claims.erase_response_of(session, agent_id)
    after = {"key_id": key.id, "rotated_at": clock.isoformat(now), "older_until": clock.isoformat(now + grace)}
    before = {"key_ids": trail.summarized_list(previous_key_ids)}
    return AuditEvent(AuditAction.KEY_ROTATED, agent_id, before=before, after=after)


def rotation_of_entry(entry_id: str) -> AgentKeyRotation:
    with read_only_unit() as session:
        entry = trail.get_entry(session, entry_id)
        recorded = entry.after or {}
        times = (datetime.fromisoformat(recorded[name]) for name in ("rotated_at", "older_until"))
        return AgentKeyRotation(str(entry.subject_id), api_keys.reveal_key(session, recorded["key_id"]), *times)


def record_rotation_replay(actor: Actor, entry_id: str) -> None:
    with unit_of_work() as session:
        entry = trail.get_entry(session, entry_id)
        shown = {"key_id": (entry.after or {})["key_id"], "repeated": True}
        trail.record(session, actor, AuditEvent(AuditAction.AGENT_SHOWN, entry.subject_id, after=shown))


def grant(actor: Actor, agent_id: str, nanos: int, *, claim: Claim) -> dict[str, Any]:
    """Grant credits to an agent. Raises: NotFound; InvalidInput if the account's maximum would be exceeded."""
    with unit_of_work() as session:
        agent = identity.lock_agent(session, parse_agent_id(agent_id))
        before = credit_accounts.balance(session, agent.id).credits_nanos
        credit_accounts.grant(session, agent.id, nanos, reference=f"platform:{identifiers.new_id()}")
        balance = credit_accounts.balance(session, agent.id).credits_nanos
        had = {"credits_usd": usd_string(before)}
        has = {"credits_usd": usd_string(balance), "granted_nanos": str(nanos), "credits_nanos": str(balance)}
        act = AuditEvent(AuditAction.CREDITS_GRANTED, agent.id, before=had, after=has)
        # The response can be rebuilt from the entry.
        claim.bind(session, act.id)
        trail.record(session, actor, act)
    return {"agent_id": agent.id, "granted_nanos": nanos, "credits_nanos": balance}


def grant_of_entry(entry_id: str) -> dict[str, Any]:
    with read_only_unit() as session:
        entry = trail.get_entry(session, entry_id)
    recorded = entry.after or {}
    amounts = {name: int(recorded[name]) for name in ("granted_nanos", "credits_nanos")}
    return {"agent_id": entry.subject_id, **amounts}


def frozen_by_operator(session: Session, agent_id: str) -> bool:
    """Return whether an operator froze an agent last."""
    last, _ = trail.list_entries(session, PageRequest(1, 0), action=AuditAction.AGENT_FROZEN.value, subject_id=agent_id)
    return not last.items or last.items[0].actor_kind != ActorKind.OWNER.value


def set_frozen(actor: Actor, agent_id: str, *, frozen: bool, block_keys: bool = False) -> AgentSnapshot:
    """Freeze or unfreeze an agent with all its wallets, including new ones; pending payments are completed.

    With `block_keys`, its API keys become invalid, too, and a new one waits until it is unfrozen.

    Raises: NotFound; WalletFrozen for its owner if an operator froze it.
    """
    with unit_of_work() as session:
        before = wallets.set_frozen(session, parse_agent_id(agent_id), frozen=frozen)
        is_recorded = actor.kind is not ActorKind.OWNER or not before.is_frozen or not frozen
        if actor.kind is ActorKind.OWNER and before.is_frozen and not frozen and frozen_by_operator(session, before.id):
            raise WalletFrozen("The operator of this service froze this agent. Only the operator can unfreeze it.")
        acts = [_replace_key(session, before.id, grace=timedelta())] if block_keys else []
        after = identity.get_agent(session, before.id)
        # An owner's second freeze is not recorded: otherwise an operator's would become the owner's to undo.
        if is_recorded:
            action = AuditAction.AGENT_FROZEN if frozen else AuditAction.AGENT_UNFROZEN
            values = {"frozen": after.is_frozen, **({"keys_blocked": True} if block_keys else {})}
            acts.append(AuditEvent(action, before.id, before={"frozen": before.is_frozen}, after=values))
        if acts:
            trail.record(session, actor, *acts)
    return after


def revoke_claim_code(actor: Actor, agent_id: str) -> bool:
    """Revoke an agent's open claim code; return whether there was one. Raises: NotFound."""
    with unit_of_work() as session:
        agent = identity.lock_agent(session, parse_agent_id(agent_id))
        revoked = claims.revoke(session, agent.id)
        after = {"revoked": revoked}
        trail.record(session, actor, AuditEvent(AuditAction.CLAIM_CODE_REVOKED, agent.id, after=after))
    return revoked


def parse_agent_id(agent_id: str) -> str:
    """Return an id in the database's form. Raises: NotFound for a malformed id."""
    return identifiers.require_id(agent_id, identity.agent_not_found())


def _agent_detail(session: Session, agent_id: str) -> AgentView:
    agent = identity.get_agent(session, agent_id)
    found = wallets.all_of(session, agent.id)
    owned = [replace(each, spending_status=status_of(session, each.id)) for each in found]
    [view] = _agent_views(session, [agent], {agent.id: owned[0]} if owned else {})
    return replace(view, wallets=tuple(owned), owed_nanos=topups.owed_nanos(session, agent.id))


def _agent_views(session: Session, found: Sequence[AgentSnapshot], firsts: Mapping[str, WalletView]) -> list[AgentView]:
    ids = [agent.id for agent in found]
    keys, balances = identity.newest_keys_of(session, ids), credit_accounts.balances(session, ids)
    return [
        AgentView(
            **asdict(agent), api_key=keys.get(agent.id), credits_nanos=balances[agent.id].credits_nanos,
            spent_nanos=balances[agent.id].spent_nanos, wallet=firsts.get(agent.id),
        )
        for agent in found
    ]  # fmt: skip
