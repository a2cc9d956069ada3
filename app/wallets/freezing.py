"""Freezing an agent: a fact of the agent, and of every wallet that it has or will have. In the caller's unit.

What is in flight is finished; nothing new is held, and nothing is deleted. The agent is locked first, so a wallet
that is being made waits or is seen.
"""

from __future__ import annotations

from app.identity import agents
from app.identity.service import AgentSnapshot
from app.spending import service as spending


def freeze(agent_id: str) -> AgentSnapshot:
    """Freeze an agent with all its wallets; return it as it was. Raises: NotFound."""
    before = agents.freeze(agent_id)
    spending.freeze(agent_id)
    return before


def unfreeze(agent_id: str) -> AgentSnapshot:
    """Let an agent and all its wallets move again; return it as it was. Raises: NotFound."""
    before = agents.unfreeze(agent_id)
    spending.unfreeze(agent_id)
    return before
