"""The stories of one agent: created, shown, changed, given credits and keys, deleted.

Each does its deed and notes it in one unit; the entry goes last, for its head is a row that all share.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from app.agents import claims
from app.agents.service import DEFAULT_NAME
from app.catalog import services
from app.core import clock, identifiers, money
from app.core.pagination import Page, PageRequest
from app.core.unit_of_work import reading, unit_of_work
from app.credits import service as credits_service
from app.errors import WalletFrozen
from app.identity import agents, api_keys
from app.identity import service as identity
from app.identity.caller import KeyKind
from app.identity.service import AgentSnapshot
from app.platform import trail
from app.platform.actors import Actor
from app.platform.trail import Act, Action, SubjectKind
from app.ports import provider
from app.spending import service as spending
from app.wallets import service as wallets
from app.wallets.service import WalletView
from app.web import idempotency

_EMAIL_BYTES = 4


@dataclass(frozen=True, slots=True)
class AgentView:
    """An agent as an operator sees it, key included; the repr does not show it."""

    id: str
    name: str
    email: str | None
    api_key: str | None = field(repr=False)
    credits_nanos: int
    spent_nanos: int
    wallet: WalletView | None
    claimed_at: datetime | None
    claimed_email: str | None
    frozen_at: datetime | None
    created_at: datetime
    wallets: tuple[WalletView, ...] = ()

    @property
    def frozen(self) -> bool:
        """Tell whether nothing new of this agent may move."""
        return self.frozen_at is not None

    @property
    def spending_controls(self) -> spending.ControlsView | None:
        """Return the controls of the first wallet."""
        return self.wallet.spending_controls if self.wallet else None


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a new agent's wallet, in nano-dollars; None is the default."""

    daily_limit_nanos: int | None = None
    weekly_limit_nanos: int | None = None
    monthly_limit_nanos: int | None = None
    per_tx_limit_nanos: int | None = None

    def given(self) -> dict[str, int]:
        """Return those that are set."""
        return {name: getattr(self, name) for name in Limits.__slots__ if getattr(self, name) is not None}


@dataclass(frozen=True, slots=True)
class NewKey:
    """What a rotation answers; the repr does not show the key."""

    agent_id: str
    api_key: str = field(repr=False)
    rotated_at: datetime
    older_until: datetime


@dataclass(frozen=True, slots=True)
class Grant:
    """What an agent was given, and what it has now."""

    agent_id: str
    granted_nanos: int
    credits_nanos: int


def create(actor: Actor, *, name: str | None, credits_nanos: int | None, limits: Limits) -> str:
    """Make an agent with key, wallet under controls, and credits that take from no budget; return its id."""
    key = identity.mint_api_key(KeyKind.AGENT)
    wallet_key = wallets.new_wallet()
    email = f"agent-{secrets.token_hex(_EMAIL_BYTES)}@agents.invalid"
    nanos = _initial_nanos() if credits_nanos is None else credits_nanos
    with unit_of_work():
        agent = identity.add_agent(key, name=name or DEFAULT_NAME, email=email)
        wallet = wallets.create(agent.id, wallet_key, name=None)
        controls = spending.set_default(wallet.id, **limits.given())
        credits_service.open_account(agent.id)
        credits_service.grant(agent.id, nanos, reference=f"initial:{agent.id}")
        idempotency.bind(agent.id)
        after = {
            "name": agent.name,
            "email": email,
            "key_id": key.id,
            "wallet_id": wallet.id,
            "credits_usd": usd(nanos),
            "daily_limit_usd": usd(controls.daily_limit_nanos),
            "weekly_limit_usd": usd(controls.weekly_limit_nanos),
            "monthly_limit_usd": usd(controls.monthly_limit_nanos),
            "per_tx_limit_usd": usd(controls.per_tx_limit_nanos),
        }
        trail.record(actor, Act(Action.AGENT_CREATED, SubjectKind.AGENT, agent.id, after=after))
    return agent.id


def created(agent_id: str) -> AgentView:
    """Return an agent as its creation is answered. Raises: NotFound when it was deleted since."""
    with reading():
        return _detail(agent_id)


def note_repeated(actor: Actor, agent_id: str) -> None:
    """Note that the answer to an agent's creation, key included, is given once more."""
    with unit_of_work():
        trail.record(actor, Act(Action.AGENT_SHOWN, SubjectKind.AGENT, agent_id, after={"repeated": True}))


def show(actor: Actor, agent_id: str) -> AgentView:
    """Return one agent with its key and wallets, and note that they were shown. Raises: NotFound."""
    with reading():
        view = _detail(known(agent_id))
    with unit_of_work():
        trail.record(actor, Act(Action.AGENT_SHOWN, SubjectKind.AGENT, view.id))
    return view


def show_all(actor: Actor, page: PageRequest) -> Page[AgentView]:
    """Return a page of agents with their keys, and note which were shown. Six queries, however many rows."""
    with reading():
        found = agents.page_of_agents(page)
        ids = [agent.id for agent in found.items]
        keys = api_keys.keys_of(ids)
        balances = credits_service.balances(ids)
        firsts = wallets.firsts_of(ids)
        views = [
            _view(agent, keys.get(agent.id), balances[agent.id], firsts.get(agent.id))
            for agent in found.items
        ]
    shown = {
        "limit": page.limit,
        "offset": page.offset,
        "count": len(ids),
        "first": ids[0] if ids else None,
        "last": ids[-1] if ids else None,
    }
    with unit_of_work():
        trail.record(actor, Act(Action.AGENTS_SHOWN, SubjectKind.SERVICE, None, after=shown))
    return Page(views, found.total, page)


def change(actor: Actor, agent_id: str, changes: Mapping[str, str | None]) -> AgentSnapshot:
    """Give an agent another name or owner's e-mail and return it. Raises: NotFound."""
    with unit_of_work():
        before = identity.lock_agent(known(agent_id))
        old: dict[str, str | None] = {"name": before.name, "email": before.email}
        new = {**old, **changes}
        agents.change(before.id, name=str(new["name"]), email=new["email"])
        act = Act(
            Action.AGENT_CHANGED,
            SubjectKind.AGENT,
            before.id,
            before={name: old[name] for name in changes},
            after={name: new[name] for name in changes},
        )
        trail.record(actor, act)
        return identity.agent(before.id)


def delete(actor: Actor, agent_id: str) -> str:
    """Delete an agent with all its wallets, whose sealed keys are retired, and retire its services; return its id.

    Ledger and usage stay.

    Raises: NotFound; WalletFrozen; TransactionInProgress while any of its movements is open: then nothing is deleted.
    """
    with unit_of_work():
        before = identity.lock_agent(known(agent_id))
        if before.is_frozen:
            raise WalletFrozen(
                "This agent is frozen, so it is not deleted; rotate its key, then unfreeze it first."
            )
        removed = wallets.remove_all(before.id)
        retired = services.retire_all(before.id)
        claims.bury(before.id)
        agents.erase(before.id)
        was = {
            "name": before.name,
            # Of addresses only that there were some: the trail is never pruned.
            "had_email": before.email is not None,
            "was_claimed": before.claimed_at is not None,
            "wallet_ids": removed,
            "service_ids": retired,
            "credits_usd": usd(credits_service.balance(before.id).credits_nanos),
        }
        trail.record(actor, Act(Action.AGENT_DELETED, SubjectKind.AGENT, before.id, before=was))
    return before.id


def rotate_key(actor: Actor, agent_id: str, *, grace: timedelta) -> NewKey:
    """Give an agent a new key; older ones work until the grace is over. Raises: NotFound."""
    key = identity.mint_api_key(KeyKind.AGENT)
    with unit_of_work():
        agent = identity.lock_agent(known(agent_id))
        rotation = api_keys.rotate(agent.id, key, grace=grace)
        after = {
            "key_id": key.id,
            "rotated_at": clock.isoformat(rotation.at),
            "older_until": clock.isoformat(rotation.older_until),
        }
        act = Act(
            Action.KEY_ROTATED,
            SubjectKind.AGENT,
            agent.id,
            before={"key_ids": trail.listed(rotation.older_ids)},
            after=after,
        )
        # The answer can be made again from the entry.
        idempotency.bind(act.id)
        trail.record(actor, act)
    return NewKey(agent.id, key.key, rotation.at, rotation.older_until)


def rotated(entry_id: str) -> NewKey:
    """Return what a rotation was answered, from its entry."""
    with reading():
        entry = trail.one(entry_id)
        noted = entry.after or {}
        return NewKey(
            str(entry.subject_id),
            api_keys.key_of_row(noted["key_id"]),
            datetime.fromisoformat(noted["rotated_at"]),
            datetime.fromisoformat(noted["older_until"]),
        )


def note_repeated_rotation(actor: Actor, entry_id: str) -> None:
    """Note that the answer to a rotation, key included, is given once more."""
    with unit_of_work():
        entry = trail.one(entry_id)
        shown = {"key_id": (entry.after or {})["key_id"], "repeated": True}
        trail.record(actor, Act(Action.AGENT_SHOWN, SubjectKind.AGENT, entry.subject_id, after=shown))


def grant(actor: Actor, agent_id: str, nanos: int) -> Grant:
    """Give an agent credits. Raises: NotFound; InvalidInput beyond what an account can be given in all."""
    with unit_of_work():
        agent = identity.lock_agent(known(agent_id))
        before = credits_service.balance(agent.id).credits_nanos
        credits_service.grant(agent.id, nanos, reference=f"platform:{identifiers.new_id()}")
        has = credits_service.balance(agent.id).credits_nanos
        act = Act(
            Action.CREDITS_GRANTED,
            SubjectKind.AGENT,
            agent.id,
            before={"credits_usd": usd(before)},
            after={"credits_usd": usd(has), "granted_nanos": str(nanos), "credits_nanos": str(has)},
        )
        # The answer can be made again from the entry.
        idempotency.bind(act.id)
        trail.record(actor, act)
    return Grant(agent.id, nanos, has)


def granted(entry_id: str) -> Grant:
    """Return what a grant was answered, from its entry."""
    with reading():
        entry = trail.one(entry_id)
    noted = entry.after or {}
    return Grant(str(entry.subject_id), int(noted["granted_nanos"]), int(noted["credits_nanos"]))


def revoke_claim_code(actor: Actor, agent_id: str) -> bool:
    """Make an agent's open claim code worthless; tell whether there was one. Raises: NotFound."""
    with unit_of_work():
        agent = identity.lock_agent(known(agent_id))
        revoked = claims.revoke(agent.id)
        after = {"revoked": revoked}
        trail.record(actor, Act(Action.CLAIM_CODE_REVOKED, SubjectKind.AGENT, agent.id, after=after))
    return revoked


def known(agent_id: str) -> str:
    """Return an id in the form that the database has. Raises: NotFound for what is no id."""
    canonical = identifiers.parse_id(agent_id)
    if canonical is None:
        raise identity.no_such_agent()
    return canonical


def usd(nanos: int) -> str:
    """Write dollars as an entry has them."""
    return money.decimal_string(nanos, 9)


def _initial_nanos() -> int:
    return money.nanos_from_usd(provider.settings().initial_credits_usd)


def _detail(agent_id: str) -> AgentView:
    agent = identity.agent(agent_id)
    owned = wallets.all_of(agent.id)
    return _view(
        agent,
        api_keys.keys_of([agent.id]).get(agent.id),
        credits_service.balance(agent.id),
        owned[0] if owned else None,
        tuple(owned),
    )


def _view(
    agent: AgentSnapshot,
    api_key: str | None,
    balance: credits_service.Balance,
    wallet: WalletView | None,
    owned: tuple[WalletView, ...] = (),
) -> AgentView:
    shown: dict[str, Any] = {
        name: getattr(agent, name)
        for name in ("id", "name", "email", "claimed_at", "claimed_email", "frozen_at", "created_at")
    }
    return AgentView(
        **shown,
        api_key=api_key,
        credits_nanos=balance.credits_nanos,
        spent_nanos=balance.spent_nanos,
        wallet=wallet,
        wallets=owned,
    )
