"""A thousand open movements share their requests to the node: the cost of a poll does not grow with their number."""

from __future__ import annotations

import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

import pytest
import time_machine
from eth_utils.address import to_checksum_address
from flask import Flask
from sqlalchemy import select

from app.adapters.evm.chain import EvmChain
from app.core import clock
from app.core.chains import USDC, ChainName
from app.core.identifiers import new_id
from app.core.money import TokenAmount
from app.db.unit_of_work import read_only_unit
from app.idempotency.service import Claim
from app.wallets import transfers
from app.wallets.core import custody, wallets
from app.wallets.core.lifecycle import TransactionType
from app.wallets.core.models import Transaction
from app.wallets.transactions import confirmation, pipeline
from app.wallets.transfers import TransferOrder
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.chains import CONFIRMATIONS, RECIPIENT, fund
from tests.support.loopback_http import Asked, RecordingServer, Reply, serve

pytestmark = pytest.mark.chain

PENDING = 1000
REQUESTS_PER_POLL = 20
UNITS = 10_000
VALUE_NANOS = 10**7


@dataclass(slots=True)
class Poll:
    """What one pass of the worker did, and how many HTTP requests it took."""

    done: confirmation.ConfirmationPass
    requests: int


@dataclass(slots=True)
class Stage:
    node: EvmNode
    proxy: RecordingServer
    chain: EvmChain
    app: Flask
    agent: Agent
    minutes: int = 0

    def look(self) -> Poll:
        """Let the worker look a minute later than before."""
        self.minutes += 1
        self.proxy.asked.clear()
        with time_machine.travel(clock.now() + timedelta(minutes=self.minutes), tick=True):
            done = confirmation.confirm(ChainName.BASE)
        return Poll(done, len(self.proxy.asked))

    def statuses(self) -> Counter[str]:
        with read_only_unit() as session:
            return Counter(session.scalars(select(Transaction.status)))


@pytest.fixture
def stage(build_app: Callable[..., Flask], sqlite_url: str, own_base_node: EvmNode) -> Iterator[Stage]:
    """A node behind a proxy that counts, and an agent with enough for all of it."""

    def forward(asked: Asked) -> Reply:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(own_base_node.url, data=asked.body, headers=headers)  # noqa: S310
        with urllib.request.urlopen(request) as answer:  # noqa: S310 - the node, on loopback
            return Reply(answer.read(), headers=headers)

    with serve(forward) as proxy:
        chain = EvmChain(
            ChainName.BASE,
            own_base_node.deployment,
            rpc_urls=[proxy.url],
            deposit_confirmations=CONFIRMATIONS[ChainName.BASE],
        )
        app = build_app(sqlite_url, chains={ChainName.BASE: chain}, settings={"log_level": "WARNING"})
        with app.app_context():
            agent = register(app.test_client())
            agent.unlimited()
            fund(own_base_node, agent.address, eth=10, dollars=100)
            own_base_node.set_automine(on=False)
            yield Stage(own_base_node, proxy, chain, app, agent)


def _sign_without_sending(stage: Stage, how_many: int) -> None:
    """Prepare and record many transfers, as processes that all died before the broadcast."""
    wallet = wallets.get_owned(stage.agent.wallet_id, agent_id=stage.agent.id)
    amount = TokenAmount(UNITS, USDC)
    order = TransferOrder(TransactionType.TRANSFER, ChainName.BASE, to_checksum_address(RECIPIENT), amount)
    movement = transfers._movement(wallet, order)
    draft = transfers._draft(movement)
    signer = custody.signer_of(wallet.id)
    sign = lambda _session, draft, signer, nonce: stage.chain.sign(draft, signer, sequence=nonce)  # noqa: E731
    for _ in range(how_many):
        pipeline._record_signed(movement, draft, sign, signer, movement.intent(new_id()), claim=Claim.none())


def test_a_thousand_open_movements_are_confirmed_in_few_requests_per_poll(stage: Stage) -> None:
    before = stage.chain.balances(to_checksum_address(RECIPIENT)).of(USDC).units
    _sign_without_sending(stage, PENDING)

    sending = [stage.look(), stage.look()]
    assert [poll.done.checked for poll in sending] == [PENDING, PENDING]
    assert sum(poll.done.rebroadcast for poll in sending) == PENDING
    stage.node.mine(5)
    settling = stage.look()
    assert settling.done.settled == PENDING
    rechecking = stage.look()
    assert rechecking.done.checked == PENDING

    assert stage.statuses() == {"confirmed": PENDING}
    assert stage.chain.balances(to_checksum_address(RECIPIENT)).of(USDC).units - before == PENDING * UNITS
    assert Decimal(str(stage.agent.spent_this_month())) == PENDING * UNITS / Decimal(10**6)
    polls = [poll.requests for poll in (*sending, settling, rechecking)]
    assert max(polls) <= REQUESTS_PER_POLL, polls
