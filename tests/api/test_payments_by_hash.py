"""Payments by transaction hash, on real chains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import time_machine
from flask import Flask

from app.adapters.evm.chain import EvmChain
from app.core import clock
from app.core.chains import ETH, USDC, ChainName
from app.observability import counters
from sandbox.evm import EvmNode
from solana_node import SolanaNode
from tests.support.agents import register
from tests.support.chains import fund
from tests.support.counted import growth_of
from tests.support.evm import sent as pay
from tests.support.gateway import SEARCH
from tests.support.payments import PRICE, Shop, by_hash, person_with, shop, solana_person_with
from tests.support.solana import running_solana, solana_chain
from tests.support.solana_people import signed as solana_signed

pytestmark = pytest.mark.chain
BASE, ETHEREUM, SOLANA = ChainName.BASE, ChainName.ETHEREUM, ChainName.SOLANA


@pytest.fixture(scope="session")
def solana_node() -> Iterator[SolanaNode]:
    with running_solana(slot_ms=0) as node:
        yield node


@pytest.fixture
def open_shop(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain], solana_node: SolanaNode
) -> Iterator[Shop]:
    with shop(build_app, sqlite_url, {**chains, SOLANA: solana_chain(solana_node)}) as made:
        made.upstream.behave = lambda exchange: exchange.json({"results": []})
        yield made


def paid(open_shop: Shop, node: EvmNode, units: int = PRICE, **more: Any) -> str:
    """Pay the shop from a new wallet, with enough confirmations; return the hash."""
    chain = ChainName(node.name)
    real: EvmChain = open_shop.app.state.ports.chains[chain]
    person = more.get("person") or person_with(node)
    done = pay(real, person, more.get("to") or open_shop.recipient(chain), units, token=more.get("token", USDC))
    node.mine(6)
    return done.tx_hash


def refusal(open_shop: Shop, headers: dict[str, str], **more: Any) -> tuple[str, str | None]:
    answer = open_shop.ask(headers, **more)
    assert answer.status_code == 402, answer.get_data(as_text=True)
    body = answer.get_json()
    return body["code"], body.get("details", {}).get("reason")


def test_a_request_without_key_or_payment_gets_the_terms(open_shop: Shop) -> None:
    answer = open_shop.ask()
    body = answer.get_json()
    assert (answer.status_code, body["code"]) == (402, "PAYMENT_REQUIRED")
    payment = body["payment"]
    assert (payment["amount"], payment["currency"], payment["chain"]) == ("0.01", "USDC", "base")
    assert payment["recipient"] == open_shop.recipient(BASE)
    assert payment["network"] == "eip155:908453"
    assert payment["description"]
    assert payment["instructions"]
    headers = {
        name: answer.headers[f"X-Payment-{name}"]
        for name in ("Required", "Amount", "Currency", "Recipient", "Chain", "Description")
    }
    assert headers == {
        "Required": "true", "Amount": "0.01", "Currency": "USDC", "Recipient": payment["recipient"],
        "Chain": "base", "Description": payment["description"],
    }  # fmt: skip
    assert open_shop.ask({"X-Payment-Chain": "solana"}).get_json()["payment"]["chain"] == "solana"
    assert open_shop.served() == 0


@pytest.mark.parametrize("chain", [BASE, ETHEREUM])
def test_a_transfer_pays_for_one_call_and_no_other(
    open_shop: Shop, chain: ChainName, request: pytest.FixtureRequest
) -> None:
    node: EvmNode = request.getfixturevalue(f"{chain.value}_node")
    tx_hash = paid(open_shop, node)
    answer = open_shop.ask(by_hash(tx_hash, chain))
    assert (answer.status_code, answer.get_json()) == (200, {"results": []})
    for again in (tx_hash, tx_hash.upper().replace("0X", "0x")):
        assert refusal(open_shop, by_hash(again, chain)) == ("PAYMENT_ALREADY_USED", None)
        assert refusal(open_shop, by_hash(again, chain), path=SEARCH + "x")[0] == "PAYMENT_ALREADY_USED"
    assert open_shop.served() == 1


def test_a_transfer_on_solana_pays_once_it_is_finalized(open_shop: Shop, solana_node: SolanaNode) -> None:
    chain = open_shop.app.state.ports.chains[SOLANA]
    person = solana_person_with(solana_node)
    _, done = solana_signed(chain, person, open_shop.recipient(SOLANA), PRICE, token=USDC)
    chain.broadcast(done.raw)
    solana_node.advance(2)
    early = open_shop.ask(by_hash(done.tx_hash, SOLANA))
    assert early.get_json()["details"]["reason"] == "not_final_yet"
    assert int(early.headers["Retry-After"]) > 0
    assert open_shop.claims() == set()
    solana_node.advance(40)
    assert open_shop.ask({"X-Payment": done.tx_hash}).status_code == 200
    assert refusal(open_shop, by_hash(done.tx_hash, SOLANA))[0] == "PAYMENT_ALREADY_USED"


def test_insufficient_payments_are_refused_and_not_consumed(open_shop: Shop, base_node: EvmNode) -> None:
    recipient = person_with(base_node)
    found = {
        "one unit short": refusal(open_shop, by_hash(paid(open_shop, base_node, PRICE - 1), BASE)),
        "another recipient": refusal(open_shop, by_hash(paid(open_shop, base_node, to=recipient.address), BASE)),
        "another token": refusal(open_shop, by_hash(paid(open_shop, base_node, 10**15, token=ETH), BASE)),
        "another chain": refusal(open_shop, by_hash(paid(open_shop, base_node), ETHEREUM)),
        "no transaction": refusal(open_shop, by_hash("0x" + "12" * 32, BASE)),
        "not a hash": refusal(open_shop, {"X-Payment": "yes"}),
        "unknown chain": refusal(open_shop, by_hash("0x" + "12" * 32, BASE) | {"X-Payment-Chain": "dogecoin"}),
    }
    assert found == {
        "one unit short": ("PAYMENT_INVALID", "amount_too_low"),
        "another recipient": ("PAYMENT_INVALID", "nothing_received"),
        "another token": ("PAYMENT_INVALID", "nothing_received"),
        "another chain": ("PAYMENT_INVALID", "not_final_yet"),
        "no transaction": ("PAYMENT_INVALID", "not_final_yet"),
        "not a hash": ("PAYMENT_INVALID", "invalid_payload"),
        "unknown chain": ("PAYMENT_INVALID", "invalid_network"),
    }
    assert (open_shop.claims(), open_shop.served()) == (set(), 0)


def test_an_old_payment_pays_for_nothing(open_shop: Shop, base_node: EvmNode) -> None:
    tx_hash = paid(open_shop, base_node)
    with time_machine.travel(clock.now().timestamp() + 3700, tick=True):
        assert refusal(open_shop, by_hash(tx_hash, BASE)) == ("PAYMENT_INVALID", "too_old")


def test_a_payment_is_refused_until_it_has_enough_confirmations(open_shop: Shop, base_node: EvmNode) -> None:
    real = open_shop.app.state.ports.chains[BASE]
    done = pay(real, person_with(base_node), open_shop.recipient(BASE), PRICE, token=USDC)
    answer = open_shop.ask(by_hash(done.tx_hash, BASE))
    assert answer.get_json()["details"]["reason"] == "not_final_yet"
    assert "Retry-After" in answer.headers
    base_node.mine(5)
    assert open_shop.ask(by_hash(done.tx_hash, BASE)).status_code == 200


def test_of_fifty_concurrent_uses_of_a_payment_one_is_served(
    postgres_url: str, build_app: Callable[..., Flask], chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> None:
    with shop(build_app, postgres_url, chains, database_pool_size=20) as made:
        made.upstream.behave = lambda exchange: exchange.json({"results": []})
        headers = by_hash(paid(made, base_node), BASE)

        def one(_number: int) -> int:
            return made.ask(headers).status_code

        with ThreadPoolExecutor(50) as threads:
            assert sorted(threads.map(one, range(50))) == [200] + [402] * 49
        assert made.served() == 1


def test_an_agents_payment_cannot_be_used_without_its_key(open_shop: Shop, base_node: EvmNode) -> None:
    agent = register(open_shop.app.test_client())
    fund(base_node, agent.address, eth=1, dollars=1)
    moved = agent.client.post(
        f"{agent.wallet_url}/transfer",
        json={"chain": "base", "to": open_shop.recipient(BASE), "amount": "0.01", "currency": "USDC"},
        headers=agent.headers(),
    ).get_json()
    base_node.mine(6)
    assert refusal(open_shop, by_hash(moved["tx_hash"], BASE)) == ("PAYMENT_INVALID", "payer_is_a_wallet_of_another")


def test_a_payment_allows_three_retries_of_a_failed_call(open_shop: Shop, base_node: EvmNode) -> None:
    headers = by_hash(paid(open_shop, base_node), BASE)
    revenue = growth_of(counters.REVENUE_USD)
    open_shop.upstream.behave = lambda exchange: exchange.json({"error": "down"}, status=500)
    assert [open_shop.ask(headers).status_code for _ in range(3)] == [500, 500, 500]
    # Another request cannot use it.
    assert refusal(open_shop, headers, path=SEARCH + "x")[0] == "PAYMENT_ALREADY_USED"
    open_shop.upstream.behave = lambda exchange: exchange.json({"results": []})
    assert open_shop.ask(headers).status_code == 200
    assert refusal(open_shop, headers)[0] == "PAYMENT_ALREADY_USED"
    assert revenue() == pytest.approx(PRICE / 1e6)


def test_attempts_with_a_payment_are_limited(open_shop: Shop, base_node: EvmNode) -> None:
    headers = by_hash(paid(open_shop, base_node), BASE)
    open_shop.upstream.behave = lambda exchange: exchange.json({"error": "down"}, status=503)
    assert [open_shop.ask(headers).status_code for _ in range(6)] == [503] * 4 + [402] * 2


def test_a_payment_is_not_consumed_while_credits_suffice(open_shop: Shop, base_node: EvmNode) -> None:
    agent = register(open_shop.app.test_client())
    key = {"X-API-Key": agent.key}
    headers = by_hash(paid(open_shop, base_node), BASE)
    assert open_shop.ask({**key, **headers}).status_code == 200
    assert open_shop.claims() == set()


def test_terms_advise_against_paying_for_a_request_that_would_be_refused(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> None:
    with shop(build_app, sqlite_url, chains, brave_api_key="") as made:
        answer = made.ask()
        assert answer.status_code == 402
        assert "Do not pay" in answer.get_json()["payment"]["instructions"]
        assert made.ask(by_hash(paid(made, base_node), BASE)).status_code == 503
        assert made.claims() == set()
        refused = made.ask(path="/v1/gateway/openai/files")
        assert (refused.status_code, refused.get_json()["code"]) == (403, "ROUTE_NOT_ALLOWED")
