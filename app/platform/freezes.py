"""Freezing an agent, by an operator or by its owner; what an operator froze, an operator alone can undo."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from app.core.pagination import PageRequest
from app.core.unit_of_work import unit_of_work
from app.errors import WalletFrozen
from app.identity import service as identity
from app.platform import trail
from app.platform.actors import Actor, ActorKind
from app.platform.service import known
from app.platform.trail import Act, Action, SubjectKind
from app.wallets import freezing


@dataclass(frozen=True, slots=True)
class Freeze:
    """Whether an agent is frozen, and since when."""

    agent_id: str
    frozen_at: datetime | None

    @property
    def frozen(self) -> bool:
        """Tell whether it is."""
        return self.frozen_at is not None


def freeze(actor: Actor, agent_id: str) -> Freeze:
    """Freeze an agent with all its wallets, also those to come; what is in flight is finished. Raises: NotFound."""
    return _set_frozen(actor, agent_id, frozen=True)


def unfreeze(actor: Actor, agent_id: str) -> Freeze:
    """Let an agent move again. Raises: NotFound; WalletFrozen for its owner where an operator froze it."""
    return _set_frozen(actor, agent_id, frozen=False)


def frozen_by_operator(agent_id: str) -> bool:
    """Tell whether it was not its owner who froze an agent last. Works in a reading unit."""
    last, _ = trail.page_of(PageRequest(1, 0), action=Action.AGENT_FROZEN.value, subject_id=agent_id)
    return not last.items or last.items[0].actor_kind != ActorKind.OWNER.value


def _set_frozen(actor: Actor, agent_id: str, *, frozen: bool) -> Freeze:
    with unit_of_work():
        before = (freezing.freeze if frozen else freezing.unfreeze)(known(agent_id))
        if actor.kind is ActorKind.OWNER and before.is_frozen:
            if frozen:
                # Not noted: what an operator froze would become the owner's to undo.
                return Freeze(before.id, before.frozen_at)
            if frozen_by_operator(before.id):
                raise WalletFrozen("The operator of this service froze this agent, and alone can undo it.")
        after = identity.agent(before.id)
        act = Act(
            Action.AGENT_FROZEN if frozen else Action.AGENT_UNFROZEN,
            SubjectKind.AGENT,
            before.id,
            before={"frozen": before.is_frozen},
            after={"frozen": after.is_frozen},
        )
        trail.record(actor, act)
    return Freeze(after.id, after.frozen_at)
