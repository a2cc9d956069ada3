"""The definition of a kind of movement, as far as approvals need it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.core.movement_kinds import MovementKind
from app.idempotency.service import Claim
from app.spending.policy import ApprovedPayment
from app.web.schemas import Schema


@dataclass(frozen=True, slots=True)
class ApprovedRequest:
    agent_id: str
    wallet_id: str
    body: Mapping[str, Any]
    approved: ApprovedPayment


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovableMovement(ABC):
    name: MovementKind
    title: str
    """As the owner reads it."""
    body: Schema
    """Loads a request, and what an approval stores of it."""
    follows_market: bool = False
    """Whether its price is a market's, and moves while the owner decides."""
    takes_hold: bool = False
    """Whether what is executed takes the approval's hold later, instead of having its own."""

    @abstractmethod
    def execute(self, request: ApprovedRequest, claim: Claim) -> None:
        """Execute an approved request as its view would, binding what it records to the claim. Raises: ServiceError."""
