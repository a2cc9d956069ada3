"""Payments that their payer signs and we submit: the standard's `exact` scheme, on real chains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import time_machine
from eth_account import Account
from flask import Flask
from solders.keypair import Keypair
from werkzeug.test import TestResponse

from app.adapters.evm.chain import EvmChain
from app.core import clock
from app.core.chains import USDC, ChainName
from app.core.unit_of_work import unit_of_work
from app.payments import readiness, treasury, upkeep
from app.ports.till import Demand
from app.wallets import custody, service
from sandbox.evm import EvmNode
from sandbox.solana import SolanaNode
from tests.support.agents import register
from tests.support.chains import ether
from tests.support.payments import (
    PRICE,
    EvmPayer,
    Shop,
    SolanaPayer,
    by_hash,
    decoded,
    encoded,
    offered,
    shop,
    signed_headers,
)
from tests.support.solana import fund_solana, running_solana, solana_chain
from tests.support.upstreams import Exchange, chat_chunks

pytestmark = pytest.mark.chain
BASE, ETHEREUM, SOLANA = ChainName.BASE, ChainName.ETHEREUM, ChainName.SOLANA


@pytest.fixture(scope="session")
def quick_solana_node() -> Iterator[SolanaNode]:
    with running_solana(slot_ms=20) as node:
        yield node


def supplied(made: Shop, *nodes: EvmNode) -> None:
    """Give the settlement key gas, as an operator does."""
    for node in nodes:
        node.fund_eth(made.settler(ChainName(node.name)), ether(1))
    made.look_again()
    made.upstream.behave = lambda exchange: exchange.json({"results": []})


@pytest.fixture
def open_shop(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> Iterator[Shop]:
    with shop(build_app, sqlite_url, chains) as made:
        supplied(made, base_node)
        yield made


def reason(answer: TestResponse) -> tuple[str, str]:
    assert answer.status_code == 402, answer.get_data(as_text=True)
    body = answer.get_json()
    return body["code"], body.get("details", {}).get("reason", "")


def received(made: Shop, chain: ChainName) -> int:
    adapter = made.app.extensions["ports"].chains[chain]
    return int(adapter.balances(made.recipient(chain)).of(USDC).units)


def test_a_signed_payment_is_settled_and_the_call_served(open_shop: Shop, base_node: EvmNode) -> None:
    payer = EvmPayer(base_node)
    headers = payer.pays(open_shop.ask())
    answer = open_shop.ask(headers)
    assert (answer.status_code, answer.get_json()) == (200, {"results": []})
    settled = decoded(answer.headers["PAYMENT-RESPONSE"])
    assert (settled["success"], settled["payer"], settled["network"]) == (
        True,
        payer.address,
        "eip155:908453",
    )
    assert received(open_shop, BASE) == PRICE
    # The settlement's own hash pays the treasury, too, and pays for nothing.
    base_node.mine(6)
    assert reason(open_shop.ask(by_hash(settled["transaction"], BASE)))[0] == "PAYMENT_ALREADY_USED"
    assert reason(open_shop.ask(headers))[0] == "PAYMENT_ALREADY_USED"
    assert open_shop.served() == 1


def test_a_chain_without_gas_is_not_offered(open_shop: Shop) -> None:
    accepts = decoded(open_shop.ask().headers["PAYMENT-REQUIRED"])["accepts"]
    assert [each["network"] for each in accepts] == ["eip155:908453"]


def test_a_payment_says_exactly_what_is_asked(open_shop: Shop, base_node: EvmNode) -> None:
    payer, poor = EvmPayer(base_node), EvmPayer(base_node, dollars=0)
    told = open_shop.ask()
    terms = offered(told)

    def refused(**changed: Any) -> str:
        return reason(open_shop.ask(payer.pays(told, **changed)))[1]

    forged = payer.authorize(terms)
    forged["authorization"]["from"] = poor.address
    found = {
        "short": refused(value=str(PRICE - 1)),
        "elsewhere": refused(to=poor.address),
        "late": refused(validBefore="1"),
        "early": refused(validAfter="4000000000"),
        "forged": reason(open_shop.ask(signed_headers(terms, forged)))[1],
        "poor": reason(open_shop.ask(poor.pays(told)))[1],
        "network": reason(open_shop.ask(signed_headers({**terms, "network": "eip155:1"}, forged)))[1],
        "scheme": reason(open_shop.ask(signed_headers({**terms, "scheme": "upto"}, forged)))[1],
        "version": reason(open_shop.ask({"PAYMENT-SIGNATURE": encoded({"x402Version": 3})}))[1],
        "nothing": reason(open_shop.ask({"PAYMENT-SIGNATURE": "%%"}))[1],
    }
    assert found == {
        "short": "invalid_exact_evm_payload_authorization_value_mismatch",
        "elsewhere": "invalid_exact_evm_payload_recipient_mismatch",
        "late": "invalid_exact_evm_payload_authorization_valid_before",
        "early": "invalid_exact_evm_payload_authorization_valid_after",
        "forged": "invalid_exact_evm_payload_signature",
        "poor": "insufficient_funds",
        "network": "invalid_network",
        "scheme": "unsupported_scheme",
        "version": "invalid_x402_version",
        "nothing": "invalid_payload",
    }
    assert (open_shop.claims(), received(open_shop, BASE)) == (set(), 0)


def test_a_payer_whose_account_has_code_burns_no_gas_of_ours(open_shop: Shop, base_node: EvmNode) -> None:
    payer = EvmPayer(base_node)
    # Counts to ten thousand, then calls every signature good (EIP-1271): some 260 000 gas.
    code = "0x6127105b6001900380600357631626ba7e60e01b60005260206000f3"
    base_node.rpc("anvil_setCode", payer.address, code)
    assert reason(open_shop.ask(payer.pays(open_shop.ask())))[1] == "submission_too_costly"
    assert (open_shop.claims(), received(open_shop, BASE)) == (set(), 0)


def test_what_somebody_else_submitted_first_is_not_good_by_hash_as_well(
    open_shop: Shop, base_node: EvmNode
) -> None:
    payer = EvmPayer(base_node)
    told = open_shop.ask()
    terms = offered(told)
    payload = payer.authorize(terms)
    till = open_shop.app.extensions["ports"].tills[BASE]
    demand = Demand(PRICE, open_shop.recipient(BASE), open_shop.settler(BASE))
    authorization = till.read(payload, demand, now=1_800_000_000)
    rich = base_node.rpc("eth_accounts")[1]
    sent = base_node.rpc(
        "eth_sendTransaction",
        {"from": rich, "to": base_node.deployment.usdc, "data": "0x" + str(authorization.terms["call"])},
    )
    base_node.mine(6)
    # It was used already: the signed form is refused, and the hash pays, once.
    assert reason(open_shop.ask(signed_headers(terms, payload)))[0] == "PAYMENT_ALREADY_USED"
    assert open_shop.ask(by_hash(sent, BASE)).status_code == 200
    assert reason(open_shop.ask(signed_headers(terms, payload)))[0] == "PAYMENT_ALREADY_USED"
    assert reason(open_shop.ask(by_hash(sent, BASE)))[0] == "PAYMENT_ALREADY_USED"
    assert open_shop.served() == 1


def test_of_many_at_once_one_is_settled_and_served(
    postgres_url: str, build_app: Callable[..., Flask], chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> None:
    with shop(build_app, postgres_url, chains, database_pool_size=20) as made:
        supplied(made, base_node)
        headers = EvmPayer(base_node).pays(made.ask())

        def one(_number: int) -> int:
            return made.ask(headers).status_code

        with ThreadPoolExecutor(50) as crowd:
            assert sorted(crowd.map(one, range(50))) == [200] + [402] * 49
        assert (made.served(), received(made, BASE)) == (1, PRICE)


def test_many_payers_at_once_are_all_served(
    postgres_url: str, build_app: Callable[..., Flask], chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> None:
    with shop(build_app, postgres_url, chains, database_pool_size=20) as made:
        supplied(made, base_node)
        told = made.ask()
        paid = [EvmPayer(base_node).pays(told) for _ in range(8)]
        with ThreadPoolExecutor(8) as crowd:
            assert list(crowd.map(lambda headers: made.ask(headers).status_code, paid)) == [200] * 8
        assert received(made, BASE) == 8 * PRICE


def test_a_failed_call_is_good_for_another_try_with_the_same_signature(
    open_shop: Shop, base_node: EvmNode
) -> None:
    headers = EvmPayer(base_node).pays(open_shop.ask())
    open_shop.upstream.behave = lambda exchange: exchange.json({"error": "down"}, status=500)
    assert open_shop.ask(headers).status_code == 500
    open_shop.upstream.behave = lambda exchange: exchange.json({"results": []})
    assert open_shop.ask(headers).status_code == 200
    assert received(open_shop, BASE) == PRICE


def test_what_was_settled_is_good_for_its_tries_beyond_its_own_time_and_at_another_price(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> None:
    with shop(build_app, sqlite_url, chains) as made:
        supplied(made, base_node)
        soon = str(int(clock.now().timestamp()) + 300)
        headers = EvmPayer(base_node).pays(made.ask(), validBefore=soon)
        made.upstream.behave = lambda exchange: exchange.json({"error": "down"}, status=503)
        assert made.ask(headers).status_code == 503
    with shop(build_app, sqlite_url, chains, x402_price_usd="0.02") as dearer:
        dearer.upstream.behave = lambda exchange: exchange.json({"results": []})
        with time_machine.travel(clock.now().timestamp() + 7200, tick=True):
            assert dearer.ask(headers).status_code == 200
            assert reason(dearer.ask(headers))[0] == "PAYMENT_ALREADY_USED"
        assert received(dearer, BASE) == PRICE


def test_a_payment_for_less_than_the_body_costs_is_refused(open_shop: Shop, base_node: EvmNode) -> None:
    cheap = EvmPayer(base_node).pays(open_shop.ask())
    path = "/v1/gateway/openai/chat/completions"
    body = {"model": "gpt-5", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100_000}
    client = open_shop.app.test_client()
    assert int(offered(client.post(path, json=body))["amount"]) > PRICE
    answer = client.post(path, json=body, headers=cheap)
    assert reason(answer)[1] == "invalid_exact_evm_payload_authorization_value_mismatch"
    assert open_shop.claims() == set()


def test_without_an_account_the_output_is_bounded(open_shop: Shop, base_node: EvmNode) -> None:
    open_shop.upstream.behave = lambda exchange: exchange.json({"choices": []})
    client = open_shop.app.test_client()
    path = "/v1/gateway/openai/chat/completions"
    body = {"model": "gpt-5", "messages": [{"role": "user", "content": "Hi"}]}
    headers = EvmPayer(base_node).pays(client.post(path, json=body))
    assert client.post(path, json=body, headers=headers).status_code == 200
    assert open_shop.upstream.asked[-1].json() == {**body, "max_completion_tokens": 4000}


def test_a_paid_stream_passes_as_it_is_and_is_used_up_by_its_first_piece(
    open_shop: Shop, base_node: EvmNode
) -> None:
    client = open_shop.app.test_client()
    path = "/v1/gateway/openai/chat/completions"
    body = {
        "model": "gpt-5",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 50,
        "stream": True,
    }
    headers = EvmPayer(base_node).pays(client.post(path, json=body))

    def pieces_then(end: str, *frames: bytes) -> TestResponse:
        def behave(exchange: Exchange) -> None:
            exchange.start_stream()
            for frame in frames:
                exchange.chunk(frame)
            getattr(exchange, end)()

        open_shop.upstream.behave = behave
        return client.post(path, json=body, headers=headers)

    # Whoever got nothing of it may come again, though the head of the answer was passed on.
    with pytest.raises(ConnectionResetError):
        pieces_then("hang_up")
    frames = chat_chunks("Hel", "lo")
    answer = pieces_then("end_stream", *frames)
    assert (answer.status_code, answer.data) == (200, b"".join(frames))
    assert decoded(answer.headers["PAYMENT-RESPONSE"])["success"] is True
    assert open_shop.upstream.asked[-1].json() == body
    assert reason(pieces_then("end_stream", *frames))[0] == "PAYMENT_ALREADY_USED"
    cut = EvmPayer(base_node).pays(client.post(path, json=body))
    headers.update(cut)
    with pytest.raises(ConnectionResetError):
        pieces_then("hang_up", frames[0]).get_data()
    assert reason(pieces_then("end_stream", *frames))[0] == "PAYMENT_ALREADY_USED"


def test_on_solana_the_fee_is_ours_and_nothing_else(
    build_app: Callable[..., Flask], sqlite_url: str, quick_solana_node: SolanaNode
) -> None:
    node = quick_solana_node
    with shop(build_app, sqlite_url, {SOLANA: solana_chain(node)}) as made:
        fund_solana(node, made.settler(SOLANA), sol=1)
        fund_solana(node, made.recipient(SOLANA), sol=0, dollars=0.000001)
        supplied(made)
        payer = SolanaPayer(node)
        told = made.ask({"X-Payment-Chain": "solana"})
        terms = offered(told, "solana:")

        def refused(**changed: Any) -> str:
            return reason(made.ask(signed_headers(terms, payer.transfer(terms, **changed))))[1]

        assert refused(units=PRICE - 1) == "invalid_exact_solana_payload_amount_mismatch"
        assert refused(price=5_000_000) == (
            "invalid_exact_solana_payload_transaction_instructions_compute_price_too_high"
        )
        elsewhere = payer.transfer({**terms, "payTo": payer.address})
        assert reason(made.ask(signed_headers(terms, elsewhere)))[0] == "PAYMENT_INVALID"
        assert made.claims() == set()
        headers = signed_headers(terms, payer.transfer(terms))
        answer = made.ask(headers)
        assert answer.status_code == 200, answer.get_data(as_text=True)
        settled = decoded(answer.headers["PAYMENT-RESPONSE"])
        assert (settled["success"], settled["payer"]) == (True, payer.address)
        assert reason(made.ask(headers))[0] == "PAYMENT_ALREADY_USED"
        node.advance(60)
        assert reason(made.ask(by_hash(settled["transaction"], SOLANA)))[0] == "PAYMENT_ALREADY_USED"
        assert received(made, SOLANA) == PRICE + 1


def test_on_solana_the_treasurys_account_is_made_once_there_is_gas_for_it(
    build_app: Callable[..., Flask], sqlite_url: str, quick_solana_node: SolanaNode
) -> None:
    node = quick_solana_node
    with shop(build_app, sqlite_url, {SOLANA: solana_chain(node)}) as made:
        fund_solana(node, made.settler(SOLANA), sol=1)
        before = readiness.read(SOLANA)
        upkeep.look_after()
        node.advance(40)
        after = readiness.read(SOLANA)
        assert before is not None
        assert after is not None
        assert (before.recipient_is_open, after.recipient_is_open) == (False, True)
        made.look_again()
        told = made.ask({"X-Payment-Chain": "solana"})
        assert offered(told, "solana:")["payTo"] == made.recipient(SOLANA)


def test_an_operators_own_keys_submit_payments(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> None:
    own = Account.create()
    with shop(build_app, sqlite_url, chains, x402_settlement_key_evm="0x" + bytes(own.key).hex()) as made:
        assert made.settler(BASE) == own.address
        supplied(made, base_node)
        answer = made.ask(EvmPayer(base_node).pays(made.ask()))
        assert answer.status_code == 200, answer.get_data(as_text=True)


def test_settlement_keys_change_one_by_one_and_back_while_processes_with_the_former_ones_go_on(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain]
) -> None:
    evm = ["0x" + bytes(Account.create().key).hex() for _ in range(2)]
    solana = [str(Keypair()) for _ in range(2)]
    tills = dict(chains)
    told: dict[tuple[int, int], tuple[str, str]] = {}
    # The first pair; the second for one family, for both; the first again; and no key of the operator's.
    for pair in ((0, 0), (1, 0), (1, 1), (0, 1), (0, 0)):
        keys = {"x402_settlement_key_evm": evm[pair[0]], "x402_settlement_key_solana": solana[pair[1]]}
        with shop(build_app, sqlite_url, tills, **keys) as made:
            answer = made.ask()
            assert (answer.status_code, answer.get_json()["code"]) == (402, "PAYMENT_REQUIRED")
            told.setdefault(pair, (made.settler(BASE), made.settler(SOLANA)))
            assert told[pair] == (made.settler(BASE), made.settler(SOLANA))
            assert treasury.is_made()
            assert made.app.test_cli_runner().invoke(args=["treasury", "show"]).exit_code == 0
    assert told[0, 0] == (
        Account.from_key(evm[0]).address,
        str(Keypair.from_base58_string(solana[0]).pubkey()),
    )
    assert told[1, 0] == (Account.from_key(evm[1]).address, told[0, 0][1])
    assert told[0, 1] == (told[0, 0][0], told[1, 1][1])
    with shop(build_app, sqlite_url, tills) as made:
        assert made.settler(BASE) not in {each for each, _ in told.values()}


def test_a_settlement_key_that_is_an_agents_offers_no_signed_payments_and_breaks_nothing(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain]
) -> None:
    own = Account.create()
    with shop(build_app, sqlite_url, chains) as made:
        agent, key = register(made.app.test_client()), custody.adopted_key(evm=bytes(own.key), solana=None)
        with unit_of_work():
            service.create(agent.id, key, name=None)
    with shop(build_app, sqlite_url, chains, x402_settlement_key_evm="0x" + bytes(own.key).hex()) as made:
        answer = made.ask()
        assert (answer.status_code, answer.get_json()["code"]) == (402, "PAYMENT_REQUIRED")
        assert (
            "PAYMENT-REQUIRED" not in answer.headers
            or not decoded(answer.headers["PAYMENT-REQUIRED"])["accepts"]
        )
        assert "settlement_key_in_use" in made.app.test_cli_runner().invoke(args=["treasury", "show"]).output
