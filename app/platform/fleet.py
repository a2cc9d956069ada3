"""Controls for one agent or a fleet: all wallets of an agent change in one unit, or none of them does.

A fleet is changed some agents at a time, so no lock is held for long. What was done when a process dies stays done;
repeating the call finds it unchanged and does the rest.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import structlog
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as SqlTimeoutError

from app.core import identifiers
from app.core.unit_of_work import reading, unit_of_work
from app.errors import ErrorCode, NotFound
from app.identity import agents
from app.identity import service as identity
from app.platform import service, trail
from app.platform.actors import Actor
from app.platform.trail import Act, Action, SubjectKind
from app.spending import service as spending
from app.spending.service import Changes, Replaced
from app.wallets import service as wallets
from app.wallets.service import WalletView

MAX_AGENTS = 10_000
_PER_UNIT = 50
_PATIENCE_NS = 60 * 10**9
_log = structlog.get_logger(__name__)


class LoosensError(Exception):
    """The change would allow what is refused, and may only tighten."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An agent that was not changed, and why."""

    agent_id: str
    code: ErrorCode
    error: str


@dataclass(slots=True)
class Result:
    """What became of a fleet; `next_after` is where the next call goes on, when all agents were asked for."""

    changed: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    next_after: str | None = None


def set_controls(actor: Actor, agent_id: str, changes: Changes) -> list[WalletView]:
    """Change the controls of all wallets of one agent; return the wallets.

    Raises: NotFound for an unknown agent, and for one without a wallet: there is nothing to control.
    """
    with unit_of_work():
        agent = identity.lock_agent(service.known(agent_id))
        done = spending.put_controls_of_agents([agent.id], changes)
        if not done:
            raise NotFound("This agent has no wallet whose controls could be set.")
        trail.record(actor, _act(agent.id, done, changes))
    with reading():
        return wallets.all_of(agent.id)


def set_controls_of_wallet(actor: Actor, wallet: WalletView, changes: Changes, *, may_loosen: bool) -> bool:
    """Change the controls of one wallet; tell whether anything is different.

    Raises: NotFound; LoosensError when it only may tighten and would not: then nothing is changed.
    """
    with unit_of_work():
        done = spending.replace_controls(wallet.id, wallet.agent_id, changes)
        if done.loosens and not may_loosen:
            raise LoosensError
        trail.record(actor, *([_act(wallet.agent_id, [done], changes)] if done.is_change else []))
    return done.is_change


def set_controls_of_all(actor: Actor, changes: Changes, *, after: str | None) -> Result:
    """Change the controls of agents in the order of their ids, at most `MAX_AGENTS` in a call."""
    with reading():
        ids = agents.ids_after(after, limit=MAX_AGENTS)
    result = set_controls_of(actor, ids, changes)
    result.next_after = ids[-1] if len(ids) == MAX_AGENTS else None
    return result


def set_controls_of(actor: Actor, agent_ids: Sequence[str], changes: Changes) -> Result:
    """Change the controls of many agents, each of them wholly or not at all; tell what became of each.

    Raises: Unauthorized when the acting master key is revoked meanwhile; agents before stay changed.
    """
    result = Result()
    deadline_ns = time.monotonic_ns() + _PATIENCE_NS
    ids = list(dict.fromkeys(agent_ids))
    result.failed += [_unknown(each) for each in ids if identifiers.parse_id(each) is None]
    # In one order, as everybody who locks several agents.
    usable = sorted(each for each in ids if identifiers.parse_id(each) is not None)
    for start in range(0, len(usable), _PER_UNIT):
        some = usable[start : start + _PER_UNIT]
        if time.monotonic_ns() > deadline_ns:
            result.failed += [_not_now(each, "There was no time left; repeat the call.") for each in some]
            continue
        try:
            _change(actor, some, changes, result)
        except (OperationalError, SqlTimeoutError):
            _log.warning("fleet_one_by_one", agents=len(some))
            _change_one_by_one(actor, some, changes, result, deadline_ns=deadline_ns)
    return result


def _change_one_by_one(
    actor: Actor, ids: Sequence[str], changes: Changes, result: Result, *, deadline_ns: int
) -> None:
    """Find out which of several agents kept the others from being changed."""
    for agent_id in ids:
        try:
            if time.monotonic_ns() <= deadline_ns:
                _change(actor, [agent_id], changes, result)
                continue
        except (OperationalError, SqlTimeoutError):
            _log.warning("fleet_agent_busy", agent_id=agent_id)
        result.failed.append(_not_now(agent_id, "Its wallets were busy for too long; repeat the call."))


def _change(actor: Actor, ids: Sequence[str], changes: Changes, result: Result) -> None:
    by_agent: dict[str, list[Replaced]] = defaultdict(list)
    with unit_of_work():
        alive = agents.lock_agents(ids)
        for each in spending.put_controls_of_agents(alive, changes):
            by_agent[each.agent_id].append(each)
        different = [each for each in ids if any(one.is_change for one in by_agent.get(each, ()))]
        trail.record(actor, *(_act(each, by_agent[each], changes) for each in different))
    result.changed += different
    for agent_id in ids:
        if agent_id not in alive:
            result.failed.append(_unknown(agent_id))
        elif agent_id not in by_agent:
            error = "This agent has no wallet whose controls could be set."
            result.failed.append(Failure(agent_id, ErrorCode.NOT_FOUND, error))
        elif agent_id not in different:
            result.unchanged.append(agent_id)


def _act(agent_id: str, done: Sequence[Replaced], changes: Changes) -> Act:
    sent = [name for name, value in asdict(changes).items() if value is not None]
    return Act(
        Action.CONTROLS_SET,
        SubjectKind.AGENT,
        agent_id,
        before={each.wallet_id: _noted(asdict(each.old), sent) if each.old else None for each in done},
        after={each.wallet_id: _noted(asdict(each.new), sent) for each in done},
    )


def _noted(rules: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    noted: dict[str, Any] = {}
    for name in names:
        value = rules[name]
        if name.endswith("_nanos"):
            noted[name.replace("_nanos", "_usd")] = service.usd(value)
        else:
            noted[name] = value if isinstance(value, bool) else trail.listed(value)
    return noted


def _unknown(agent_id: str) -> Failure:
    return Failure(agent_id, ErrorCode.NOT_FOUND, "There is no such agent.")


def _not_now(agent_id: str, error: str) -> Failure:
    return Failure(agent_id, ErrorCode.OVERLOADED, error)
