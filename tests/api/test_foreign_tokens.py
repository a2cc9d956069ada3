"""Tokens that the service does not know: listed, and withdrawn once the owner approves, on real nodes."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from flask.testing import FlaskClient

from app.adapters.evm import foreign_tokens
from app.approvals import service
from app.audit_log.actors import shell_actor
from app.core import clock
from app.core.chains import ZERO_EVM_ADDRESS, ChainName, address_for_chain
from app.owner import address_book
from app.platform.agents import service as platform
from app.state import app_state
from app.wallets.deposits import scanner
from app.wallets.deposits.scan_states import Tier
from app.wallets.views import balances
from sandbox.evm import EvmNode
from tests.api.test_approvals import decide, read
from tests.support import foreign_tokens as code
from tests.support.agents import Agent, register
from tests.support.chains import RECIPIENT, fund
from tests.support.drivers import fresh_address
from tests.support.faults import FaultyChain
from tests.support.foreign_tokens import ForeignErc20
from tests.support.owners import person
from workers import approvals, confirmations

pytestmark = pytest.mark.chain
UNIT = 10**18


@pytest.fixture
def agent(funded_agent: Agent) -> Agent:
    return funded_agent


@pytest.fixture
def home(agent: Agent) -> str:
    return named(agent, fresh_address())


def named(agent: Agent, address: str, chain: ChainName = ChainName.BASE) -> str:
    """Name an address as the agent's owner does."""
    canonical = address_for_chain(address, chain)
    with agent.client.application.app_context():
        address_book.set_name(shell_actor(), agent.id, chain.value, canonical, "My own wallet")
    return canonical


def scan(node: EvmNode) -> None:
    """Find what has arrived, once it is deep enough."""
    node.mine(8)
    scanner.scan(ChainName.BASE, Tier.ALL)


def tokens_of(agent: Agent) -> list[dict[str, Any]]:
    found = agent.get(f"{agent.wallet_url}/tokens")
    assert found.status_code == 200, found.text
    listed: list[dict[str, Any]] = found.get_json()["tokens"]
    return listed


def received(agent: Agent, node: EvmNode, units: int = 5 * UNIT, **token: bytes) -> ForeignErc20:
    made = ForeignErc20.deploy(node, **token)
    made.send(agent.address, units)
    return made


def asked(agent: Agent, token: ForeignErc20, to: str, amount: str = "2", decimals: int = 18, **more: Any) -> Any:
    return agent.move(amount, f"{token.address}:{decimals}", how="withdraw", to=to, **more)


def approved(agent: Agent, answer: Any) -> dict[str, Any]:
    body = answer.get_json()
    assert (answer.status_code, body["status"]) == (202, "awaiting_approval"), body
    assert decide(body["approval"])
    approvals.execute()
    return read(agent, body["approval"])


def settle(agent: Agent) -> dict[str, Any]:
    with time_machine.travel(clock.now() + timedelta(minutes=1), tick=True):
        confirmations.confirm("base")
    [row] = agent.history(type="withdrawal")
    return row


def test_a_token_that_arrives_is_listed_and_withdrawn_once_the_owner_approves(
    agent: Agent, base_node: EvmNode, home: str
) -> None:
    token = received(agent, base_node)
    assert tokens_of(agent) == []
    scan(base_node)
    [listed] = tokens_of(agent)
    assert listed == {
        "chain": "base", "currency": f"{token.address}:18", "contract": token.address, "decimals": 18, "balance": "5",
        "claimed_symbol": "GOOD", "claimed_name": "A good token", "withdrawal_refusal": None,
    }  # fmt: skip
    answer = asked(agent, token, home)
    assert answer.get_json()["approval"]["reason"] == "foreign_token"
    assert (token.held_by(home), agent.history(type="withdrawal")) == (0, [])
    done = approved(agent, answer)
    assert done["status"] == "executed", done
    row = settle(agent)
    assert (row["status"], row["amount"], row["currency"]) == ("confirmed", "2", f"{token.address}:18")
    assert (token.held_by(home), token.held_by(agent.address)) == (2 * UNIT, 3 * UNIT)
    assert (agent.spent_this_month(), row["cost_usd"]) == (0, 0)
    assert [each["balance"] for each in tokens_of(agent)] == ["3"]
    approvals.execute()
    assert len(agent.history(type="withdrawal")) == 1


def test_it_goes_only_to_an_address_that_the_owner_named_and_never_without_the_owner(
    agent: Agent, base_node: EvmNode, home: str
) -> None:
    token = received(agent, base_node)
    refused = asked(agent, token, RECIPIENT)
    assert (refused.status_code, refused.get_json()["details"]["fields"].keys()) == (400, {"to"})
    other = register(agent.client)
    named(other, RECIPIENT)
    assert asked(agent, token, RECIPIENT).status_code == 400
    agent.unlimited()
    agent.controls(allowed_addresses=[home])
    assert asked(agent, token, home).status_code == 202
    agent.controls(allowed_addresses=[RECIPIENT])
    assert asked(agent, token, home).get_json()["code"] == "ADDRESS_NOT_ALLOWED"
    assert agent.move("2", f"{token.address}:18", to=home).status_code == 400
    assert token.held_by(home) == 0


def test_an_approval_is_for_its_own_amount_token_and_recipient(agent: Agent, base_node: EvmNode, home: str) -> None:
    token = received(agent, base_node)
    answer = asked(agent, token, home, "max")
    with agent.client.application.app_context():
        facts = service.get(answer.get_json()["approval"]["id"]).facts
    assert {name: facts[name] for name in ("amount", "currency", "to")} == {
        "amount": "5", "currency": f"{token.address}:18", "to": home
    }  # fmt: skip
    token.send(agent.address, UNIT)
    approved(agent, answer)
    assert (settle(agent)["amount"], token.held_by(home)) == ("5", 5 * UNIT)
    assert asked(agent, token, home, "1").status_code == 202


def test_a_frozen_wallet_moves_no_foreign_token_even_if_it_was_approved(
    agent: Agent, base_node: EvmNode, home: str
) -> None:
    token = received(agent, base_node)
    answer = asked(agent, token, home)
    platform.set_frozen(shell_actor(), agent.id, frozen=True)
    done = approved(agent, answer)
    assert (done["status"], done["error"]["code"], token.held_by(home)) == ("failed", "WALLET_FROZEN", 0)


@pytest.mark.parametrize(
    ("transfer", "arrives"),
    [
        pytest.param(code.HONEST, 200, id="honest"),
        pytest.param(code.moves(returns=code.NOTHING), 200, id="returns nothing, as USDT"),
        pytest.param(code.moves(returns=code.TRUE, percent=90), 180, id="takes a fee"),
        pytest.param(code.TRUE, None, id="returns true and moves nothing"),
        pytest.param(code.FALSE_WHEN_SENT, None, id="returns false when it is not tried"),
    ],
)
def test_a_withdrawal_ends_as_the_token_has_moved(
    agent: Agent, base_node: EvmNode, home: str, transfer: bytes, arrives: int | None
) -> None:
    token = received(agent, base_node, transfer=transfer)
    approved(agent, asked(agent, token, home))
    row = settle(agent)
    ended = ("failed", "reverted") if arrives is None else ("confirmed", None)
    assert (row["status"], row["error"]) == ended
    assert token.held_by(home) * 100 == (arrives or 0) * UNIT


@pytest.mark.parametrize(
    ("body", "amount"),
    [
        ({"transfer": code.FALSE}, "2"),
        ({"transfer": code.BURN_ALL_GAS}, "2"),
        ({"transfer": code.RETURN_A_MEGABYTE}, "2"),
        ({"transfer": code.string("yes")}, "2"),
        ({"decimals": code.number(6)}, "2"),
        ({"decimals": code.number(255)}, "2"),
    ],
    ids=["returns false", "burns all gas", "returns a megabyte", "returns a text", "six decimals", "255 decimals"],
)
def test_the_owner_is_not_asked_for_what_a_token_refuses(
    agent: Agent, base_node: EvmNode, home: str, body: dict[str, bytes], amount: str
) -> None:
    token = received(agent, base_node)
    answer = asked(agent, token, home)
    token.change(**body)
    refused = asked(agent, token, home, amount)
    assert (refused.status_code, refused.get_json()["details"]["fields"].keys()) == (400, {"currency"}), refused.text
    done = approved(agent, answer)
    assert (done["status"], done["error"]["code"], agent.history()) == ("failed", "INVALID_INPUT", [])


def test_a_known_token_or_contract_is_no_foreign_token(agent: Agent, base_node: EvmNode, home: str) -> None:
    deployment = base_node.deployment
    for contract in (deployment.usdc, deployment.uniswap_router, deployment.multicall3, RECIPIENT):
        refused = agent.move("1", f"{contract}:6", how="withdraw", to=home)
        assert (refused.status_code, refused.get_json()["details"]["fields"].keys()) == (400, {"currency"}), contract
    token = received(agent, base_node)
    for currency in (token.address, f"{token.address}:", f"{token.address}:018", f"{token.address}:37", "x:6", ":6"):
        assert agent.move("1", currency, how="withdraw", to=home).status_code == 400, currency
    short = asked(agent, token, home, "6")
    assert short.get_json()["details"] | {"transaction_id": "", "tx_hash": ""} == {
        "reason": "insufficient_funds", "currency": f"{token.address}:18", "available": "5", "required": "6",
        "missing": "1", "transaction_id": "", "tx_hash": "",
    }  # fmt: skip


def test_hostile_tokens_hide_no_other_one(agent: Agent, base_node: EvmNode) -> None:
    good = received(agent, base_node)
    link = code.string("\u202e<b>http://evil.example/" + "x" * 500)
    long = received(agent, base_node, symbol=link, name=code.string("a\0b\n c"))
    received(agent, base_node, balance=code.BURN_ALL_GAS)
    received(agent, base_node, balance=code.RETURN_A_MEGABYTE)
    received(agent, base_node, balance=code.NOTHING)
    mute = received(agent, base_node, symbol=code.BURN_ALL_GAS, name=code.RETURN_A_MEGABYTE, decimals=code.NOTHING)
    old = received(agent, base_node, symbol=code.words(b"MKR\xff".ljust(32, b"\0")), name=code.words(bytes(32)))
    huge = received(agent, base_node, decimals=code.number(255), symbol=code.words(b"\xff" * 64))
    rich = received(agent, base_node, balance=code.number(2**256 - 1))
    scan(base_node)
    found = {each["contract"]: each for each in tokens_of(agent)}
    assert found.keys() == {each.address for each in (good, long, mute, old, huge, rich)}
    claims = {each: (found[each]["claimed_symbol"], found[each]["claimed_name"]) for each in found}
    assert claims[long.address] == ("<b>http://evil.example/" + "x" * 41, "ab c")
    assert claims[mute.address] == (None, None)
    assert claims[old.address] == ("MKR", None)
    assert claims[huge.address][0] is None
    assert (found[mute.address]["currency"], found[mute.address]["balance"]) == (f"{mute.address}:0", str(5 * UNIT))
    assert (found[huge.address]["decimals"], found[good.address]["balance"]) == (0, "5")
    assert found[rich.address]["balance"].startswith("115792089237316195423570985008687907853269984665640564039457")


def test_of_what_a_token_returns_only_a_beginning_is_kept() -> None:
    call = foreign_tokens._read(ZERO_EVM_ADDRESS, b"")
    call.set_reply({"result": "0x" + "00" * 200_000})
    assert len(call.result) == 2_048
    call.set_reply({"error": {"code": 3, "message": "x" * 400_000, "data": "0x" + "00" * 200_000}})
    assert call.error is not None
    assert (len(call.error.message), len(call.error.data or "")) == (8_192, 8_192)


def test_tokens_that_are_slow_to_read_delay_no_balances(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    chains, answered, readers = app_state().ports.chains, threading.Event(), balances._READERS_PER_CHAIN
    slow = FaultyChain(chains[ChainName.BASE])
    slow.fail("foreign_tokens", "before", answered.wait, times=readers)
    monkeypatch.setitem(chains, ChainName.BASE, slow)
    try:
        with monkeypatch.context() as during:
            during.setattr(balances, "_TIMEOUT_SECONDS", 0.1)
            for _ in range(readers):
                assert "base" in agent.get(f"{agent.wallet_url}/tokens").get_json()["unreadable_chains"]
        assert agent.get(f"{agent.wallet_url}/balances").status_code == 200
    finally:
        answered.set()


def test_a_wallet_that_holds_a_foreign_token_is_deleted_only_by_force(agent: Agent, base_node: EvmNode) -> None:
    token = received(agent, base_node)
    scan(base_node)
    refused = agent.client.delete(agent.wallet_url, headers=agent.headers())
    assert (refused.status_code, refused.get_json()["code"]) == (409, "WALLET_NOT_EMPTY")
    held = {"chain": "base", "token": f"{token.address}:18", "balance": "5"}
    assert held in refused.get_json()["details"]["balances"]


def test_repeated_and_concurrent_requests_ask_and_pay_once(agent: Agent, base_node: EvmNode, home: str) -> None:
    token = received(agent, base_node)
    first = asked(agent, token, home, "5", Idempotency_Key="once")
    assert asked(agent, token, home, "5", Idempotency_Key="once").get_json() == first.get_json()
    second = asked(agent, token, home, "5")
    for each in (first, second):
        assert decide(each.get_json()["approval"])
    app = agent.client.application

    def work() -> None:
        with app.app_context():
            approvals.execute()

    workers = [threading.Thread(target=work) for _ in range(3)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    assert sorted(read(agent, each.get_json()["approval"])["status"] for each in (first, second)) == ["executed"] * 2
    with time_machine.travel(clock.now() + timedelta(minutes=1), tick=True):
        confirmations.confirm("base")
    assert sorted(row["status"] for row in agent.history()) == ["confirmed", "failed"]
    assert token.held_by(home) == 5 * UNIT


def test_a_wallet_without_the_native_token_is_told_so(chain_client: Any, base_node: EvmNode) -> None:
    poor = register(chain_client)
    own = named(poor, fresh_address())
    token = received(poor, base_node)
    answer = asked(poor, token, own)
    assert (answer.status_code, answer.get_json()["details"].get("reason")) == (500, "insufficient_gas"), answer.text


def test_the_owner_s_pages_name_a_token_by_its_address_and_escape_what_it_calls_itself(
    chain_client: FlaskClient, base_node: EvmNode
) -> None:
    made = chain_client.post("/v1/agents/register", json={}).get_json()
    address = made["wallet"]["addresses"]["base"]
    agent = Agent(chain_client, made["agentId"], made["apiKey"], made["wallet"]["id"], address, "")
    fund(base_node, address)
    owner = person(chain_client.application)
    owner.claim(made)
    token = received(agent, base_node, symbol=code.string("<script>USDC"), name=code.string('"><a href=//evil>'))
    scan(base_node)
    page = owner.get(f"/owner/agents/{agent.id}").text
    assert token.address in page
    assert "&lt;script&gt;USDC" in page
    assert "<script>USDC" not in page
    assert "<a href=//evil>" not in page
    answer = asked(agent, token, named(agent, fresh_address()))
    approval = answer.get_json()["approval"]
    asking = owner.get(f"/owner/agents/{agent.id}/approvals/{approval['id']}").text
    assert f"2 {token.address}:18" in asking
    assert "compare its address" in asking
    assert "per week" not in asking
    assert "USDC" not in asking
    assert approved(agent, answer)["status"] == "executed"
    for place in ("", "/activity"):
        shown = owner.get(f"/owner/agents/{agent.id}{place}").text
        assert "2 of the token <abbr" in shown, place
        assert f"{token.address}:18" not in shown, place
