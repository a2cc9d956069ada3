"""State machine test of claim codes and ownership."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from flask import current_app
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, invariant, rule

from app.agents import claims
from app.agents import service as agents
from app.audit_log import actors, verification
from app.core import clock
from app.credits import audit as credits_audit
from app.db.unit_of_work import read_only_unit
from app.device import service as device
from app.errors import AlreadyClaimed, EmailMismatch, InvalidInput, NotFound, ServiceError
from app.idempotency.service import Claim
from app.identity import owner_keys
from app.owner.session import sessions
from app.platform import keys, personal_data
from app.platform.agents import service
from tests.support.machines import Ground, Machine, Walk

ANN, BOB = "ann@example.org", "bob@example.org"
ACTOR = actors.system_actor("a test")
_TEN_YEARS = 315_360_000
_DAY = 24 * 3600
_EMAILS = (None, ANN, BOB)


@dataclass
class Code:
    """A code in the model; `replay` is the owner key that a repeated claim still returns."""

    text: str
    issued: float
    revoked: bool = False
    claimed: float | None = None
    email: str | None = None
    replay: str | None = None
    repeats: int = 0


@dataclass
class Registered:
    """An agent in the model; `owner_key` is its valid key."""

    id: str
    email: str | None
    codes: list[Code]
    owner_key: str | None = None
    old_keys: list[str] = field(default_factory=list)
    deleted: bool = False

    @property
    def is_claimed(self) -> bool:
        return any(code.claimed is not None for code in self.codes)


class Claims(Machine):
    """Agents, their claim codes, and attempts to claim them."""

    audits = (verification.find_problems, credits_audit.check)
    reaches = frozenset(
        {
            "claimed",
            "replayed",
            "replayed without the key",
            "AlreadyClaimed",
            "EmailMismatch",
            "InvalidInput",
            "NotFound",
        }
    )  # fmt: skip

    registered = Bundle("registered")

    def begin(self) -> None:
        self.agents: list[Registered] = []

    @rule(target=registered, email=st.sampled_from(_EMAILS))
    def register(self, email: str | None) -> Registered:
        made = agents.register(name=None, email=email)
        agent = Registered(made.agent_id, email, [Code(made.claim_code, clock.now().timestamp())])
        self.agents.append(agent)
        return agent

    @rule(agent=registered, which=st.integers(0, 3), email=st.sampled_from(_EMAILS), with_receipt=st.booleans())
    def claim(self, agent: Registered, which: int, email: str | None, *, with_receipt: bool = True) -> None:
        code, now = agent.codes[which % len(agent.codes)], clock.now().timestamp()
        expected = self.refusal(agent, code, email, with_receipt=with_receipt)
        if expected is not None:
            with pytest.raises(expected):
                device.claim_agent(code.text, email=email, network="192.0.2.1")
            self.note(expected.__name__)
            return
        kept = with_receipt and code.claimed is not None
        receipt = f"receipt {code.text}" if kept or code.claimed is None else None
        claimed = device.claim_agent(code.text.lower(), email=email, network="192.0.2.1", receipt=receipt)
        assert claimed.agent.id == agent.id
        if code.claimed is not None:
            assert claimed.owner_key == (code.replay if kept else None)
            code.repeats += 1
            self.note("replayed" if kept else "replayed without the key")
            return
        code.claimed, code.email, code.replay = now, email, claimed.owner_key
        agent.owner_key = claimed.owner_key
        self.note("claimed")

    def refusal(
        self, agent: Registered, code: Code, email: str | None, *, with_receipt: bool
    ) -> type[ServiceError] | None:
        now = clock.now().timestamp()
        if code.revoked or agent.deleted or now >= code.issued + _TEN_YEARS:
            return NotFound
        if code.claimed is not None:
            is_replayed = now < code.claimed + _DAY and code.replay is not None and email == code.email
            most = claims.MAX_REPLAYS * (2 if with_receipt else 1)
            return None if is_replayed and code.repeats < most else AlreadyClaimed
        if agent.email is None:
            return None
        if email is None:
            return InvalidInput
        return None if email == agent.email else EmailMismatch

    @rule(email=st.sampled_from(_EMAILS), hours=st.sampled_from((0, 23, 25)), replaced=st.booleans())
    def claim_twice(self, email: str | None, hours: int, replaced: bool) -> None:
        """Claim an agent and repeat it: most other steps of a random walk have no effect."""
        agent = self.register(email)
        self.claim(agent, 0, email)
        if replaced:
            self.replace_owner_key(agent)
        self.advance_hours(hours)
        self.claim(agent, 0, email)

    @rule(agent=registered)
    def replace_code(self, agent: Registered) -> None:
        if agent.deleted or agent.is_claimed:
            with pytest.raises(NotFound if agent.deleted else AlreadyClaimed):
                agents.replace_claim_code(agent.id, claim=Claim.none())
            return
        for code in agent.codes:
            code.revoked = True
        agent.codes.append(Code(agents.replace_claim_code(agent.id, claim=Claim.none()), clock.now().timestamp()))

    @rule(agent=registered)
    def revoke_code(self, agent: Registered) -> None:
        if agent.deleted:
            with pytest.raises(NotFound):
                service.revoke_claim_code(ACTOR, agent.id)
            return
        revocable = [code for code in agent.codes if code.claimed is None and not code.revoked]
        assert service.revoke_claim_code(ACTOR, agent.id) == bool(revocable)
        for code in revocable:
            code.revoked = True

    @rule(agent=registered)
    def replace_owner_key(self, agent: Registered) -> None:
        if agent.deleted or not agent.is_claimed:
            with pytest.raises(NotFound):
                keys.replace_owner_key(ACTOR, agent.id)
            return
        assert agent.owner_key is not None
        agent.old_keys.append(agent.owner_key)
        agent.owner_key = keys.replace_owner_key(ACTOR, agent.id)
        for code in agent.codes:
            code.replay = None

    @rule(agent=registered)
    def sign_in(self, agent: Registered) -> None:
        if agent.deleted or agent.owner_key is None:
            return
        with current_app.test_request_context():
            sessions.enter_key(agent.owner_key, network="192.0.2.1", previous_token=None)
        for code in agent.codes:
            code.replay = None

    @rule(agent=registered)
    def delete(self, agent: Registered) -> None:
        if agent.deleted:
            with pytest.raises(NotFound):
                service.delete(ACTOR, agent.id)
            return
        assert service.delete(ACTOR, agent.id) == agent.id
        agent.deleted = True

    @rule(hours=st.sampled_from((1, 12, 23, 24, 25)))
    def advance_hours(self, hours: int) -> None:
        self.let_pass(hours=hours)

    @rule(is_chosen=st.sampled_from((False, False, False, True)))
    def advance_ten_years(self, is_chosen: bool) -> None:
        if is_chosen:
            self.let_pass(seconds=_TEN_YEARS)

    @rule()
    def erase_expired_responses(self) -> None:
        now = clock.now()
        personal_data.prune("claim_codes", now)
        for agent in self.agents:
            for code in agent.codes:
                if code.claimed is not None and code.claimed + _DAY < now.timestamp():
                    code.replay = None

    @invariant()
    def only_the_newest_owner_key_is_valid(self) -> None:
        with read_only_unit() as session:
            for agent in self.agents:
                if agent.owner_key is not None:
                    found = owner_keys.find(session, agent.owner_key)
                    assert (found is not None and found.agent_id == agent.id) != agent.deleted
                assert not any(owner_keys.find(session, key) for key in agent.old_keys)

    @invariant()
    def a_code_names_its_agent_until_it_is_revoked_or_expires(self) -> None:
        for agent in self.agents:
            for code in agent.codes:
                is_invalid = code.revoked or agent.deleted or clock.now().timestamp() >= code.issued + _TEN_YEARS
                if is_invalid:
                    with pytest.raises(NotFound):
                        device.describe(code.text, network="192.0.2.1")
                else:
                    described = device.describe(code.text, network="192.0.2.1")
                    assert (described.agent_id, described.claimed_at is not None) == (
                        agent.id,
                        code.claimed is not None,
                    )

    def script(self) -> Iterator[None]:
        for hours, replaced in ((0, False), (25, False), (0, True)):
            self.claim_twice(ANN, hours, replaced)
            yield
        agent = self.register(ANN)
        for email in (BOB, None):
            self.claim(agent, 0, email)
            yield
        self.replace_code(agent)
        self.claim(agent, 0, ANN)
        yield
        self.claim(agent, 1, ANN)
        self.claim(agent, 1, ANN, with_receipt=False)
        self.sign_in(agent)
        self.claim(agent, 1, ANN)
        self.erase_expired_responses()
        yield
        other = self.register(None)
        self.revoke_code(other)
        self.delete(agent)
        yield


def test_an_agent_has_at_most_one_owner(ground: Ground, walk: Walk) -> None:
    walk(Claims, ground, walks=8, steps=25)
