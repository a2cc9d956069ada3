"""Claim codes and ownership: claimed, repeated, replaced, revoked, expired; owner keys replaced; agents deleted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, invariant, rule

from app.agents import claims
from app.agents import service as agents
from app.core import clock
from app.core.unit_of_work import reading, unit_of_work
from app.credits import audit as credits_audit
from app.device import service as device
from app.errors import AlreadyClaimed, EmailMismatch, InvalidInput, NotFound, ServiceError
from app.identity import owner_keys
from app.platform import actors, keys, service, verification
from tests.support.machines import Ground, Machine, walk

ANN, BOB = "ann@example.org", "bob@example.org"
ACTOR = actors.the_service("a test")
_TEN_YEARS = 315_360_000
_DAY = 24 * 3600
_EMAILS = (None, ANN, BOB)


@dataclass
class Code:
    """A code as the model knows it; `answer` is the owner key that its claim may still be answered with."""

    text: str
    issued: float
    revoked: bool = False
    claimed: float | None = None
    email: str | None = None
    answer: str | None = None


@dataclass
class Registered:
    """An agent as the model knows it; `owner_key` is the one that opens it now."""

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
    """Agents, their codes and whoever types them."""

    audits = (verification.check, credits_audit.check)
    reaches = frozenset(
        {"claimed", "answered again", "AlreadyClaimed", "EmailMismatch", "InvalidInput", "NotFound"}
    )

    registered = Bundle("registered")

    def begin(self) -> None:
        self.agents: list[Registered] = []

    @rule(target=registered, email=st.sampled_from(_EMAILS))
    def register(self, email: str | None) -> Registered:
        made = agents.register(name=None, email=email)
        agent = Registered(made.agent_id, email, [Code(made.claim_code, clock.now().timestamp())])
        self.agents.append(agent)
        return agent

    @rule(agent=registered, which=st.integers(0, 3), email=st.sampled_from(_EMAILS))
    def somebody_claims(self, agent: Registered, which: int, email: str | None) -> None:
        code, now = agent.codes[which % len(agent.codes)], clock.now().timestamp()
        expected = self.refusal(agent, code, email)
        if expected is not None:
            with pytest.raises(expected):
                device.claim(code.text, email=email, network="192.0.2.1")
            self.note(expected.__name__)
            return
        claimed = device.claim(code.text.lower(), email=email, network="192.0.2.1")
        assert claimed.agent_id == agent.id
        if code.claimed is not None:
            assert claimed.owner_key == code.answer
            self.note("answered again")
            return
        code.claimed, code.email, code.answer = now, email, claimed.owner_key
        agent.owner_key = claimed.owner_key
        self.note("claimed")

    def refusal(self, agent: Registered, code: Code, email: str | None) -> type[ServiceError] | None:
        now = clock.now().timestamp()
        if code.revoked or agent.deleted or now >= code.issued + _TEN_YEARS:
            return NotFound
        if code.claimed is not None:
            again = now < code.claimed + _DAY and code.answer is not None and email == code.email
            return None if again else AlreadyClaimed
        if agent.email is None:
            return None
        if email is None:
            return InvalidInput
        return None if email == agent.email else EmailMismatch

    @rule(email=st.sampled_from(_EMAILS), hours=st.sampled_from((0, 23, 25)), replaced=st.booleans())
    def one_goes_its_usual_way(self, email: str | None, hours: int, replaced: bool) -> None:
        """Most steps of a random walk come to nothing; this one is what most people do, once more or late."""
        agent = self.register(email)
        self.somebody_claims(agent, 0, email)
        if replaced:
            self.an_operator_replaces_the_owner_s_key(agent)
        self.time_passes(hours)
        self.somebody_claims(agent, 0, email)

    @rule(agent=registered)
    def the_agent_replaces_its_code(self, agent: Registered) -> None:
        if agent.deleted or agent.is_claimed:
            with pytest.raises(NotFound if agent.deleted else AlreadyClaimed):
                agents.replace_claim_code(agent.id)
            return
        for code in agent.codes:
            code.revoked = True
        agent.codes.append(Code(agents.replace_claim_code(agent.id), clock.now().timestamp()))

    @rule(agent=registered)
    def an_operator_revokes_it(self, agent: Registered) -> None:
        if agent.deleted:
            with pytest.raises(NotFound):
                service.revoke_claim_code(ACTOR, agent.id)
            return
        revocable = [code for code in agent.codes if code.claimed is None and not code.revoked]
        assert service.revoke_claim_code(ACTOR, agent.id) == bool(revocable)
        for code in revocable:
            code.revoked = True

    @rule(agent=registered)
    def an_operator_replaces_the_owner_s_key(self, agent: Registered) -> None:
        if agent.deleted or not agent.is_claimed:
            with pytest.raises(NotFound):
                keys.replace_owner_key(ACTOR, agent.id)
            return
        assert agent.owner_key is not None
        agent.old_keys.append(agent.owner_key)
        agent.owner_key = keys.replace_owner_key(ACTOR, agent.id)
        for code in agent.codes:
            code.answer = None

    @rule(agent=registered)
    def an_operator_deletes_it(self, agent: Registered) -> None:
        if agent.deleted:
            with pytest.raises(NotFound):
                service.delete(ACTOR, agent.id)
            return
        assert service.delete(ACTOR, agent.id) == agent.id
        agent.deleted = True

    @rule(hours=st.sampled_from((1, 12, 23, 24, 25)))
    def time_passes(self, hours: int) -> None:
        self.let_pass(hours=hours)

    @rule(much=st.sampled_from((False, False, False, True)))
    def ten_years_pass(self, much: bool) -> None:
        if much:
            self.let_pass(seconds=_TEN_YEARS)

    @rule()
    def the_sweep_forgets_answers(self) -> None:
        now = clock.now()
        with unit_of_work():
            claims.forget_answers(now)
        for agent in self.agents:
            for code in agent.codes:
                if code.claimed is not None and code.claimed + _DAY < now.timestamp():
                    code.answer = None

    @invariant()
    def one_key_opens_an_agent_and_it_is_the_newest(self) -> None:
        with reading():
            for agent in self.agents:
                if agent.owner_key is not None:
                    found = owner_keys.find(agent.owner_key)
                    assert (found is not None and found.agent_id == agent.id) != agent.deleted
                assert not any(owner_keys.find(key) for key in agent.old_keys)

    @invariant()
    def a_code_says_whose_it_is_while_it_is_good_and_nothing_afterwards(self) -> None:
        for agent in self.agents:
            for code in agent.codes:
                gone = code.revoked or agent.deleted or clock.now().timestamp() >= code.issued + _TEN_YEARS
                if gone:
                    with pytest.raises(NotFound):
                        device.describe(code.text, network="192.0.2.1")
                else:
                    said = device.describe(code.text, network="192.0.2.1")
                    assert (said.agent_id, said.claimed) == (agent.id, code.claimed is not None)

    def script(self) -> Iterator[None]:
        for hours, replaced in ((0, False), (25, False), (0, True)):
            self.one_goes_its_usual_way(ANN, hours, replaced)
            yield
        agent = self.register(ANN)
        for email in (BOB, None):
            self.somebody_claims(agent, 0, email)
            yield
        self.the_agent_replaces_its_code(agent)
        self.somebody_claims(agent, 0, ANN)
        yield
        self.somebody_claims(agent, 1, ANN)
        self.the_sweep_forgets_answers()
        yield
        other = self.register(None)
        self.an_operator_revokes_it(other)
        self.an_operator_deletes_it(agent)
        yield


def test_whoever_types_which_code_an_agent_has_one_owner_at_most(ground: Ground) -> None:
    walk(Claims, ground, walks=8, steps=25)
