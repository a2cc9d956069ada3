"""Signed payments, submitted by the service: the `exact` scheme of x402, on real chains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import time_machine
from eth_account import Account
from flask import Flask
from solders.keypair import Keypair
from werkzeug.test import TestResponse

from app.adapters.evm.chain import EvmChain
from app.core import clock
from app.core.chains import USDC, ChainName, Family
from app.db.unit_of_work import unit_of_work
from app.payments import jobs as payment_jobs
from app.payments import settlement_capacity, treasury
from app.ports.facilitator import ExpectedPayment
from app.wallets.core import custody, wallets
from sandbox.evm import EvmNode
from solana_node import SolanaNode
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
from tests.support.solana import fund_solana, solana_chain
from tests.support.upstreams import Exchange, chat_chunks

pytestmark = pytest.mark.chain
BASE, ETHEREUM, SOLANA = ChainName.BASE, ChainName.ETHEREUM, ChainName.SOLANA


def fund_settlement(made: Shop, *nodes: EvmNode) -> None:
    """Fund the settlement key with gas, as an operator does."""
    for node in nodes:
        node.fund_eth(made.settler(ChainName(node.name)), ether(1))
    made.expire_capacity()
    made.upstream.behave = lambda exchange: exchange.json({"results": []})


@pytest.fixture
def open_shop(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> Iterator[Shop]:
    with shop(build_app, sqlite_url, chains) as made:
        fund_settlement(made, base_node)
        yield made


def reason(answer: TestResponse) -> tuple[str, str]:
    assert answer.status_code == 402, answer.get_data(as_text=True)
    body = answer.get_json()
    return body["code"], body.get("details", {}).get("reason", "")


def received(made: Shop, chain: ChainName) -> int:
    adapter = made.app.state.ports.chains[chain]
    return int(adapter.balances(made.recipient(chain)).of(USDC).units)


def test_a_signed_payment_is_settled_and_the_call_served(open_shop: Shop, base_node: EvmNode) -> None:
    payer = EvmPayer(base_node)
    headers = payer.pays(open_shop.ask())
    answer = open_shop.ask(headers)
    assert (answer.status_code, answer.get_json()) == (200, {"results": []})
    assert answer.headers["Cache-Control"] == "no-store"
    settled = decoded(answer.headers["PAYMENT-RESPONSE"])
    assert (settled["success"], settled["payer"], settled["network"]) == (True, payer.address, "eip155:908453")
    assert received(open_shop, BASE) == PRICE
    # The settlement's own hash is a payment to the treasury, too, and pays for nothing.
    base_node.mine(6)
    assert reason(open_shop.ask(by_hash(settled["transaction"], BASE)))[0] == "PAYMENT_ALREADY_USED"
    assert reason(open_shop.ask(headers))[0] == "PAYMENT_ALREADY_USED"
    assert open_shop.served() == 1


def test_a_chain_without_gas_is_not_offered(open_shop: Shop) -> None:
    accepts = decoded(open_shop.ask().headers["PAYMENT-REQUIRED"])["accepts"]
    assert [each["network"] for each in accepts] == ["eip155:908453"]


def test_a_payment_that_differs_from_the_terms_is_refused(open_shop: Shop, base_node: EvmNode) -> None:
    payer, poor = EvmPayer(base_node), EvmPayer(base_node, dollars=0)
    unpaid = open_shop.ask()
    terms = offered(unpaid)

    def refused(**changed: Any) -> str:
        return reason(open_shop.ask(payer.pays(unpaid, **changed)))[1]

    forged = payer.authorize(terms)
    forged["authorization"]["from"] = EvmPayer(base_node).address
    found = {
        "too_low": refused(value=str(PRICE - 1)),
        "wrong_recipient": refused(to=poor.address),
        "expired": refused(validBefore="1"),
        "not_yet_valid": refused(validAfter="4000000000"),
        "forged": reason(open_shop.ask(signed_headers(terms, forged)))[1],
        "no_funds": reason(open_shop.ask(poor.pays(unpaid)))[1],
        "network": reason(open_shop.ask(signed_headers({**terms, "network": "eip155:1"}, forged)))[1],
        "scheme": reason(open_shop.ask(signed_headers({**terms, "scheme": "upto"}, forged)))[1],
        "version": reason(open_shop.ask({"PAYMENT-SIGNATURE": encoded({"x402Version": 3})}))[1],
        "nothing": reason(open_shop.ask({"PAYMENT-SIGNATURE": "%%"}))[1],
    }
    assert found == {
        "too_low": "invalid_exact_evm_payload_authorization_value_mismatch",
        "wrong_recipient": "invalid_exact_evm_payload_recipient_mismatch",
        "expired": "invalid_exact_evm_payload_authorization_valid_before",
        "not_yet_valid": "invalid_exact_evm_payload_authorization_valid_after",
        "forged": "invalid_exact_evm_payload_signature",
        "no_funds": "insufficient_funds",
        "network": "invalid_network",
        "scheme": "unsupported_scheme",
        "version": "invalid_x402_version",
        "nothing": "invalid_payload",
    }
    assert (open_shop.claims(), received(open_shop, BASE)) == (set(), 0)


def test_a_payer_contract_cannot_consume_the_settlement_keys_gas(open_shop: Shop, base_node: EvmNode) -> None:
    payer = EvmPayer(base_node)
    # Counts to ten thousand, then accepts every signature (EIP-1271): some 260 000 gas.
    code = "0x6127105b6001900380600357631626ba7e60e01b60005260206000f3"
    base_node.rpc("anvil_setCode", payer.address, code)
    assert reason(open_shop.ask(payer.pays(open_shop.ask())))[1] == "submission_too_costly"
    assert (open_shop.claims(), received(open_shop, BASE)) == (set(), 0)


def test_an_authorization_submitted_by_a_third_party_pays_for_one_call_only(
    open_shop: Shop, base_node: EvmNode
) -> None:
    payer = EvmPayer(base_node)
    unpaid = open_shop.ask()
    terms = offered(unpaid)
    payload = payer.authorize(terms)
    facilitator = open_shop.app.state.ports.facilitators[BASE]
    expected = ExpectedPayment(PRICE, open_shop.recipient(BASE), open_shop.settler(BASE))
    authorization = facilitator.verify(payload, expected, now=1_800_000_000)
    rich = base_node.rpc("eth_accounts")[1]
    sent = base_node.rpc(
        "eth_sendTransaction",
        {"from": rich, "to": base_node.deployment.usdc, "data": "0x" + str(authorization.terms["call"])},
    )
    base_node.mine(6)
    # The authorization is used: the signed form is refused, and the hash pays once.
    assert reason(open_shop.ask(signed_headers(terms, payload)))[0] == "PAYMENT_ALREADY_USED"
    assert open_shop.ask(by_hash(sent, BASE)).status_code == 200
    assert reason(open_shop.ask(signed_headers(terms, payload)))[0] == "PAYMENT_ALREADY_USED"
    assert reason(open_shop.ask(by_hash(sent, BASE)))[0] == "PAYMENT_ALREADY_USED"
    assert open_shop.served() == 1


def test_of_many_concurrent_uses_one_is_settled_and_served(
    postgres_url: str, build_app: Callable[..., Flask], chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> None:
    with shop(build_app, postgres_url, chains, database_pool_size=20) as made:
        fund_settlement(made, base_node)
        headers = EvmPayer(base_node).pays(made.ask())

        def one(_number: int) -> int:
            return made.ask(headers).status_code

        with ThreadPoolExecutor(50) as threads:
            answers = sorted(threads.map(one, range(50)))
        # Used already, or not settled yet: the order of the threads decides.
        assert answers.count(200) == 1
        assert set(answers) <= {200, 402, 503}
        assert (made.served(), received(made, BASE)) == (1, PRICE)


@pytest.mark.parametrize("database", ["postgres", "sqlite"])
def test_equal_requests_of_one_payer_at_the_same_time_pay_for_what_is_served(
    request: pytest.FixtureRequest,
    build_app: Callable[..., Flask],
    chains: dict[ChainName, EvmChain],
    base_node: EvmNode,
    database: str,
) -> None:
    url = request.getfixturevalue(f"{database}_url")
    with shop(build_app, url, chains, database_pool_size=20) as made:
        fund_settlement(made, base_node)
        payer, unpaid = EvmPayer(base_node), made.ask()
        paying = [payer.pays(unpaid) for _ in range(6)]
        with ThreadPoolExecutor(6) as threads:
            answers = list(threads.map(made.ask, paying))
        statuses = [answer.status_code for answer in answers]
        assert statuses.count(200) >= 1
        # Not its turn yet, or overtaken by another request for the payment that both waited for.
        assert set(statuses) <= {200, 402, 503}, [answer.get_data(as_text=True) for answer in answers]
        assert received(made, BASE) == PRICE * made.served() == PRICE * statuses.count(200)


def test_concurrent_payers_are_all_served(
    postgres_url: str, build_app: Callable[..., Flask], chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> None:
    with shop(build_app, postgres_url, chains, database_pool_size=20) as made:
        fund_settlement(made, base_node)
        unpaid = made.ask()
        paid = [EvmPayer(base_node).pays(unpaid) for _ in range(8)]
        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(lambda headers: made.ask(headers).status_code, paid)) == [200] * 8
        assert received(made, BASE) == 8 * PRICE


def test_a_failed_call_can_be_retried_with_the_same_signature(open_shop: Shop, base_node: EvmNode) -> None:
    headers = EvmPayer(base_node).pays(open_shop.ask())
    open_shop.upstream.behave = lambda exchange: exchange.json({"error": "down"}, status=500)
    assert open_shop.ask(headers).status_code == 500
    open_shop.upstream.behave = lambda exchange: exchange.json({"results": []})
    assert open_shop.ask(headers).status_code == 200
    assert received(open_shop, BASE) == PRICE


def test_a_settled_payment_can_be_retried_after_it_expired_and_at_another_price(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> None:
    with shop(build_app, sqlite_url, chains) as made:
        fund_settlement(made, base_node)
        soon = str(int(clock.now().timestamp()) + 300)
        headers = EvmPayer(base_node).pays(made.ask(), validBefore=soon)
        made.upstream.behave = lambda exchange: exchange.json({"error": "down"}, status=503)
        assert made.ask(headers).status_code == 503
    with shop(build_app, sqlite_url, chains, x402_price_usd="0.02") as raised:
        raised.upstream.behave = lambda exchange: exchange.json({"results": []})
        with time_machine.travel(clock.now().timestamp() + 7200, tick=True):
            assert raised.ask(headers).status_code == 200
            assert reason(raised.ask(headers))[0] == "PAYMENT_ALREADY_USED"
        assert received(raised, BASE) == PRICE


def test_a_payment_for_less_than_the_body_costs_is_refused(open_shop: Shop, base_node: EvmNode) -> None:
    cheap = EvmPayer(base_node).pays(open_shop.ask())
    path = "/v1/gateway/openai/chat/completions"
    body = {"model": "gpt-5", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100_000}
    client = open_shop.app.test_client()
    assert int(offered(client.post(path, json=body))["amount"]) > PRICE
    answer = client.post(path, json=body, headers=cheap)
    assert reason(answer)[1] == "invalid_exact_evm_payload_authorization_value_mismatch"
    assert open_shop.claims() == set()


def test_the_output_of_a_prepaid_call_is_bounded(open_shop: Shop, base_node: EvmNode) -> None:
    open_shop.upstream.behave = lambda exchange: exchange.json({"choices": []})
    client = open_shop.app.test_client()
    path = "/v1/gateway/openai/chat/completions"
    body = {"model": "gpt-5", "messages": [{"role": "user", "content": "Hi"}]}
    headers = EvmPayer(base_node).pays(client.post(path, json=body))
    assert client.post(path, json=body, headers=headers).status_code == 200
    assert open_shop.upstream.asked[-1].json() == {**body, "max_completion_tokens": 4000}
    # At 150 and 600 USD a million, 4 000 tokens fit into the limit of one call, those of four candidates do not.
    dear = {**body, "model": "openrouter/auto"}
    path = "/v1/gateway/openrouter/chat/completions"
    assert 2_400_000 < int(offered(client.post(path, json=dear))["amount"]) < 2_450_000
    assert 4_990_000 < int(offered(client.post(path, json={**dear, "n": 4}))["amount"]) <= 5_000_000
    assert client.post(path, json={**dear, "max_tokens": 10_000}).status_code == 400


def test_a_paid_stream_is_relayed_unchanged_and_consumed_by_its_first_chunk(
    open_shop: Shop, base_node: EvmNode
) -> None:
    client = open_shop.app.test_client()
    path = "/v1/gateway/openai/chat/completions"
    body = {"model": "gpt-5", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50, "stream": True}
    headers = EvmPayer(base_node).pays(client.post(path, json=body))

    def pieces_then(end: str, *frames: bytes) -> TestResponse:
        def behave(exchange: Exchange) -> None:
            exchange.start_stream()
            for frame in frames:
                exchange.chunk(frame)
            getattr(exchange, end)()

        open_shop.upstream.behave = behave
        return client.post(path, json=body, headers=headers)

    # A client that got nothing of the body may retry, though the head of the response may have been relayed.
    with suppress(ConnectionResetError):
        assert pieces_then("hang_up").status_code == 502
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


def test_on_solana_the_settlement_key_pays_the_fee_and_nothing_else(
    build_app: Callable[..., Flask], sqlite_url: str, solana_node: SolanaNode
) -> None:
    node = solana_node
    with shop(build_app, sqlite_url, {SOLANA: solana_chain(node)}) as made:
        fund_solana(node, made.settler(SOLANA), sol=1)
        fund_solana(node, made.recipient(SOLANA), sol=0, dollars=0.000001)
        fund_settlement(made)
        payer = SolanaPayer(node)
        unpaid = made.ask({"X-Payment-Chain": "solana"})
        terms = offered(unpaid, "solana:")

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


def test_on_solana_the_treasurys_account_is_opened_once_there_is_gas(
    build_app: Callable[..., Flask], sqlite_url: str, solana_node: SolanaNode
) -> None:
    node = solana_node
    with shop(build_app, sqlite_url, {SOLANA: solana_chain(node)}) as made:
        fund_solana(node, made.settler(SOLANA), sol=1)
        before = settlement_capacity.read_capacity(SOLANA)
        payment_jobs.check_gas_reserves()
        node.advance(40)
        after = settlement_capacity.read_capacity(SOLANA)
        assert before is not None
        assert after is not None
        assert (before.recipient_can_receive, after.recipient_can_receive) == (False, True)
        made.expire_capacity()
        unpaid = made.ask({"X-Payment-Chain": "solana"})
        assert offered(unpaid, "solana:")["payTo"] == made.recipient(SOLANA)


def test_an_operators_own_keys_submit_payments(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> None:
    own = Account.create()
    with shop(build_app, sqlite_url, chains, x402_settlement_key_evm="0x" + bytes(own.key).hex()) as made:
        assert made.settler(BASE) == own.address
        fund_settlement(made, base_node)
        answer = made.ask(EvmPayer(base_node).pays(made.ask()))
        assert answer.status_code == 200, answer.get_data(as_text=True)


def test_settlement_keys_can_be_changed_and_changed_back_while_old_processes_run(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain]
) -> None:
    evm = ["0x" + bytes(Account.create().key).hex() for _ in range(2)]
    solana = [str(Keypair()) for _ in range(2)]
    settlers: dict[tuple[int, int], tuple[str, str]] = {}
    # The first pair; the second for one family, for both; the first again. Then no key of the operator's.
    for pair in ((0, 0), (1, 0), (1, 1), (0, 1), (0, 0)):
        keys = {"x402_settlement_key_evm": evm[pair[0]], "x402_settlement_key_solana": solana[pair[1]]}
        with shop(build_app, sqlite_url, chains, **keys) as made:
            answer = made.ask()
            assert (answer.status_code, answer.get_json()["code"]) == (402, "PAYMENT_REQUIRED")
            settlers.setdefault(pair, (made.settler(BASE), made.settler(SOLANA)))
            assert settlers[pair] == (made.settler(BASE), made.settler(SOLANA))
            assert treasury.has_wallets()
            assert made.app.test_cli_runner().invoke(args=["treasury", "show"]).exit_code == 0
    assert settlers[0, 0] == (Account.from_key(evm[0]).address, str(Keypair.from_base58_string(solana[0]).pubkey()))
    assert settlers[1, 0] == (Account.from_key(evm[1]).address, settlers[0, 0][1])
    assert settlers[0, 1] == (settlers[0, 0][0], settlers[1, 1][1])
    with shop(build_app, sqlite_url, chains) as made:
        assert made.settler(BASE) not in {each for each, _ in settlers.values()}


def test_a_settlement_key_of_an_agents_wallet_disables_signed_payments_only(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain]
) -> None:
    own = Account.create()
    with shop(build_app, sqlite_url, chains) as made:
        agent, key = register(made.app.test_client()), custody.import_key(Family.EVM, bytes(own.key))
        with unit_of_work() as session:
            wallets.create(session, agent.id, key, name=None)
    with shop(build_app, sqlite_url, chains, x402_settlement_key_evm="0x" + bytes(own.key).hex()) as made:
        answer = made.ask()
        assert (answer.status_code, answer.get_json()["code"]) == (402, "PAYMENT_REQUIRED")
        assert "PAYMENT-REQUIRED" not in answer.headers or not decoded(answer.headers["PAYMENT-REQUIRED"])["accepts"]
        assert "settlement_key_in_use" in made.app.test_cli_runner().invoke(args=["treasury", "show"]).output
