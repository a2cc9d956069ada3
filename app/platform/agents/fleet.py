"""Controls of one agent or a fleet: all wallets of an agent change in one unit, or none of them does.

A fleet is changed in batches, so that no lock is held for long. What was done when a process dies stays done;
repeating the call changes the rest.
"""

import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as SqlTimeoutError

from app.audit_log import trail
from app.audit_log.actors import Actor
from app.audit_log.trail import AuditAction, AuditEvent
from app.core import identifiers
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import NotFound, Overloaded, ServiceError
from app.identity import service as identity
from app.platform.agents import service
from app.spending import accounts as spending_accounts
from app.spending import controls as spending_controls
from app.spending.controls import ControlsChange, ControlsReplacement
from app.wallets.core import wallets
from app.wallets.core.wallets import WalletView

MAX_AGENTS = 10_000
_AGENTS_PER_UNIT = 50
_log = structlog.get_logger(__name__)


class LooseningNotAllowed(Exception):
    """The change would loosen controls that may only be tightened."""


@dataclass(slots=True)
class FleetControlsResult:
    """The result for a fleet; `next_after` is where the next call continues when all agents were requested."""

    changed: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    failed: list[dict[str, str]] = field(default_factory=list)
    next_after: str | None = None

    @property
    def updated(self) -> bool:
        return not self.failed

    def fail(self, agent_id: str, error: ServiceError) -> None:
        self.failed.append({"agent_id": agent_id, "code": error.code, "error": error.message})


def set_agent_controls(actor: Actor, agent_id: str, changes: ControlsChange) -> list[WalletView]:
    """Change the controls of all wallets of one agent; return the wallets.

    Raises: NotFound for an unknown agent, and for one without a wallet.
    """
    with unit_of_work() as session:
        agent = identity.lock_agent(session, service.parse_agent_id(agent_id))
        wallet_ids = spending_accounts.lock_accounts_of(session, [agent.id])
        done = spending_controls.replace_controls(session, wallet_ids, changes)
        if not done:
            raise NotFound("This agent has no wallet to set controls for.")
        trail.record(session, actor, _audit_event(agent.id, done, changes))
    with read_only_unit() as session:
        return wallets.all_of(session, agent.id)


def set_wallet_controls(actor: Actor, wallet: WalletView, changes: ControlsChange, *, allow_loosening: bool) -> bool:
    """Change the controls of one wallet; return whether anything differs.

    Raises: NotFound; LooseningNotAllowed when it may only tighten and would loosen: then nothing is changed.
    """
    with unit_of_work() as session:
        spending_accounts.lock_account(session, wallet.id)
        [done] = spending_controls.replace_controls(session, [wallet.id], changes)
        if done.loosens and not allow_loosening:
            raise LooseningNotAllowed
        trail.record(session, actor, *([_audit_event(wallet.agent_id, [done], changes)] if done.has_changed else []))
    return done.has_changed


def set_agents_controls(
    actor: Actor, agent_ids: Sequence[str] | None, changes: ControlsChange, *, after: str | None
) -> FleetControlsResult:
    """Change the controls of many agents, each entirely or not at all; return the result of each.

    Without ids, those of all agents `after` one, in the order of their ids, at most `MAX_AGENTS` in a call.

    Raises: Unauthorized when the acting master key is revoked in between; earlier agents stay changed.
    """
    result, deadline_ns = FleetControlsResult(), time.monotonic_ns() + 60 * 10**9
    if agent_ids is None:
        with read_only_unit() as session:
            agent_ids = identity.list_ids_after(session, after, limit=MAX_AGENTS)
        result.next_after = agent_ids[-1] if len(agent_ids) == MAX_AGENTS else None
    ids = list(dict.fromkeys(agent_ids))
    for each in ids:
        if identifiers.parse_id(each) is None:
            result.fail(each, NotFound("There is no such agent."))
    # In the order in which all callers lock several agents.
    usable = sorted(each for each in ids if identifiers.parse_id(each) is not None)
    batches = deque(usable[start : start + _AGENTS_PER_UNIT] for start in range(0, len(usable), _AGENTS_PER_UNIT))
    while batches:
        batch = batches.popleft()
        if time.monotonic_ns() > deadline_ns:
            for each in batch:
                result.fail(each, Overloaded("There was no time left; repeat the call."))
            continue
        try:
            _change_together(actor, batch, changes, result)
        except (OperationalError, SqlTimeoutError):
            if len(batch) > 1:
                # One by one, to find the one that is busy.
                _log.warning("fleet_controls_retried_individually", agents=len(batch))
                batches.extendleft([each] for each in reversed(batch))
                continue
            _log.warning("fleet_agent_busy", agent_id=batch[0])
            result.fail(batch[0], Overloaded("Its wallets were busy for too long; repeat the call."))
    return result


def _change_together(actor: Actor, ids: Sequence[str], changes: ControlsChange, result: FleetControlsResult) -> None:
    by_agent: dict[str, list[ControlsReplacement]] = defaultdict(list)
    with unit_of_work() as session:
        existing_agents = identity.lock_agents(session, ids)
        # The agents are locked, so that no wallet is created concurrently.
        wallet_ids = spending_accounts.lock_accounts_of(session, existing_agents)
        for each in spending_controls.replace_controls(session, wallet_ids, changes):
            by_agent[each.agent_id].append(each)
        different = [each for each in ids if any(one.has_changed for one in by_agent.get(each, ()))]
        trail.record(session, actor, *(_audit_event(each, by_agent[each], changes) for each in different))
    result.changed += different
    for agent_id in ids:
        if agent_id not in existing_agents:
            result.fail(agent_id, NotFound("There is no such agent."))
        elif agent_id not in by_agent:
            result.fail(agent_id, NotFound("This agent has no wallet to set controls for."))
        elif agent_id not in different:
            result.unchanged.append(agent_id)


def _audit_event(agent_id: str, done: Sequence[ControlsReplacement], changes: ControlsChange) -> AuditEvent:
    shown = {each.wallet_id: each.as_json(changes) for each in done}
    before, after = ({wallet_id: each[name] for wallet_id, each in shown.items()} for name in ("before", "after"))
    return AuditEvent(AuditAction.CONTROLS_SET, agent_id, before=before, after=after)
