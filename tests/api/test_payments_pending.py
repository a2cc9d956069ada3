"""Signed payments that are submitted and not settled yet: each is made once, and the first one serves the request."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from app.core import clock
from app.core.chains import USDC, ChainName
from app.ports.errors import Unreachable
from sandbox.evm import EvmNode
from solana_node import SolanaNode
from tests.support.chains import evm_chain, usdc
from tests.support.faults import FaultyChain
from tests.support.payment_scenes import Scene, held_shop
from tests.support.payments import PRICE, EvmPayer, Shop, SolanaPayer, decoded, encoded, offered, shop, signed_headers
from tests.support.smart_wallets import SafePayer
from tests.support.solana import fund_solana, running_solana, solana_chain
from tests.support.waiting import wait_until

pytestmark = pytest.mark.chain
BASE, SOLANA = ChainName.BASE, ChainName.SOLANA
OTHER = "/v1/gateway/brave/web/search?q=another"


@pytest.fixture(params=["sqlite", "postgres"])
def scene(request: pytest.FixtureRequest, build_app: Callable[..., Flask], own_base_node: EvmNode) -> Iterator[Scene]:
    url = request.getfixturevalue(f"{request.param}_url")
    with held_shop(build_app, url, own_base_node, evm_chain(own_base_node)) as made:
        yield made


def assert_pending(answer: TestResponse, *, tx_hash: str | None = None) -> str:
    """Check that an answer asks to wait, and not to pay; return the transaction that it names."""
    body = answer.get_json()
    assert (answer.status_code, body["code"]) == (503, "PAYMENT_PENDING"), body
    assert "PAYMENT-REQUIRED" not in answer.headers
    assert "accepts" not in body
    assert "payment" not in body
    assert int(answer.headers["Retry-After"]) >= 1
    named: str = body["details"]["tx_hash"]
    assert named == (tx_hash or named) != ""
    return named


def test_who_signs_anew_while_the_first_payment_is_open_pays_once_and_is_served(
    scene: Scene, own_base_node: EvmNode
) -> None:
    payer = EvmPayer(own_base_node)
    unpaid = scene.shop.ask()
    scene.hold()
    tx_hash = assert_pending(scene.shop.ask(payer.pays(unpaid)))
    second = payer.pays(unpaid)
    assert_pending(scene.shop.ask(second), tx_hash=tx_hash)
    assert scene.submissions() == 1
    scene.land()
    answer = scene.shop.ask(second)
    assert answer.status_code == 200, answer.get_data(as_text=True)
    settled = decoded(answer.headers["PAYMENT-RESPONSE"])
    assert (settled["success"], settled["transaction"], settled["payer"]) == (True, tx_hash, payer.address)
    assert "will not be submitted" in settled["extensions"]["unused-authorization"]["info"]["message"]
    # The second authorization pays for nothing, here and elsewhere.
    for path in (None, OTHER):
        again = scene.shop.ask(second, path=path) if path else scene.shop.ask(second)
        assert (again.status_code, again.get_json()["code"]) == (402, "PAYMENT_ALREADY_USED")
    assert (scene.submissions(), scene.shop.served(), scene.received()) == (1, 1, PRICE)
    assert scene.chain.real.balances(payer.address).of(USDC).units == usdc(1) - PRICE


def test_a_payment_that_is_not_settled_yet_is_not_asked_for_again_in_version_1(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    with (
        # The sandbox's chains have no name in version 1.
        EvmNode("base", network_ids="mainnet") as node,
        held_shop(build_app, sqlite_url, node, evm_chain(node)) as scene,
    ):
        [terms] = scene.shop.ask().get_json()["accepts"]
        payload = EvmPayer(node).authorize({**terms, "amount": terms["maxAmountRequired"]})
        document = {"x402Version": 1, "scheme": "exact", "network": terms["network"], "payload": payload}
        headers = {"X-Payment": encoded(document)}
        scene.hold()
        tx_hash = assert_pending(scene.shop.ask(headers))
        failed = decoded(scene.shop.ask(headers).headers["X-PAYMENT-RESPONSE"])
        assert (failed["success"], failed["errorReason"]) == (False, "settlement_pending")
        assert (failed["transaction"], failed["network"]) == (tx_hash, "base")
        scene.land()
        assert scene.shop.ask(headers).status_code == 200
        assert (scene.submissions(), scene.received()) == (1, PRICE)


def test_an_open_payment_serves_no_other_payer_and_no_other_request(scene: Scene, own_base_node: EvmNode) -> None:
    payer, other = EvmPayer(own_base_node), EvmPayer(own_base_node)
    unpaid = scene.shop.ask()
    scene.hold()
    first = assert_pending(scene.shop.ask(payer.pays(unpaid)))
    scene.hold()
    assert assert_pending(scene.shop.ask(other.pays(unpaid))) != first
    scene.hold()
    assert assert_pending(scene.shop.ask(payer.pays(unpaid), path=OTHER)) != first
    assert scene.submissions() == 3
    # Without the payer's signature, its open payment serves no request.
    forged = payer.authorize(offered(unpaid))
    forged["signature"] = other.sign(forged["authorization"])
    scene.land()
    answer = scene.shop.ask(signed_headers(offered(unpaid), forged))
    assert answer.status_code == 402
    assert scene.shop.served() == 0


def test_after_the_first_payment_failed_for_certain_the_second_is_submitted(
    scene: Scene, own_base_node: EvmNode
) -> None:
    payer = EvmPayer(own_base_node)
    unpaid = scene.shop.ask()
    soon = str(int(clock.now().timestamp()) + 300)
    own_base_node.set_automine(on=False)
    scene.chain.raising("broadcast", "before", Unreachable("refused"))
    scene.chain.raising("rebroadcast", "before", Unreachable("refused"), times=3)
    first = payer.pays(unpaid, validBefore=soon)
    assert_pending(scene.shop.ask(first))
    second = payer.pays(unpaid)
    scene.land()
    own_base_node.rpc("evm_increaseTime", 7_000)
    own_base_node.mine(4)
    scene.land()
    own_base_node.set_automine(on=True)
    own_base_node.mine(80)
    scene.land()
    assert [payment.status for payment in scene.shop.payments()] == ["void"]
    scene.hold()
    assert_pending(scene.shop.ask(second))
    scene.land()
    assert scene.shop.ask(second).status_code == 200
    assert (scene.shop.served(), scene.received()) == (1, PRICE)


def test_a_call_that_was_certainly_not_served_is_repeated_with_a_new_authorization_for_free(
    scene: Scene, own_base_node: EvmNode
) -> None:
    payer, unpaid = EvmPayer(own_base_node), scene.shop.ask()
    scene.hold()
    first = payer.pays(unpaid)
    assert_pending(scene.shop.ask(first))
    scene.land()
    scene.shop.upstream.behave = lambda exchange: exchange.json({"error": "down"}, status=503)
    assert scene.shop.ask(first).status_code == 503
    scene.shop.upstream.behave = lambda exchange: exchange.json({"results": []})
    assert scene.shop.ask(payer.pays(unpaid)).status_code == 200
    assert (scene.submissions(), scene.received()) == (1, PRICE)
    # Served: the next one pays again.
    scene.hold()
    assert_pending(scene.shop.ask(payer.pays(unpaid)))
    assert scene.submissions() == 2


def test_a_contract_that_signs_anew_pays_once_and_its_signature_is_verified(
    scene: Scene, own_base_node: EvmNode
) -> None:
    payer = SafePayer(own_base_node, is_deployed=True, dollars=0.01)
    unpaid = scene.shop.ask()
    scene.hold()
    assert_pending(scene.shop.ask(payer.pays(unpaid)))
    forged = payer.authorize(offered(unpaid))
    forged["signature"] = EvmPayer(own_base_node).sign(forged["authorization"])
    refused = scene.shop.ask(signed_headers(offered(unpaid), forged))
    assert refused.get_json()["details"]["reason"] == "invalid_exact_evm_payload_signature"
    second = payer.pays(unpaid)
    assert_pending(scene.shop.ask(second))
    scene.land()
    # Nothing is left of its funds, and nothing more is needed.
    assert scene.shop.ask(second).status_code == 200
    assert (scene.submissions(), scene.received()) == (1, PRICE)


def test_on_solana_who_signs_anew_pays_once(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    with running_solana(slot_ms=20) as node:
        chain = FaultyChain(solana_chain(node))
        with shop(build_app, sqlite_url, {SOLANA: chain}, confirmation_wait_seconds="0") as made:
            _supply(made, node)
            scene = Scene(made, chain, SOLANA)
            unpaid = made.ask({"X-Payment-Chain": "solana"})
            payer, terms = SolanaPayer(node), offered(unpaid, "solana:")
            before = scene.received()
            scene.hold()
            tx_hash = assert_pending(made.ask(signed_headers(terms, payer.transfer(terms))))
            second = signed_headers(terms, payer.transfer(terms))
            assert_pending(made.ask(second), tx_hash=tx_hash)

            def is_served() -> bool:
                # Its finality takes slots of the chain, which pass in real time.
                scene.land()
                answer = made.ask(second)
                return answer.status_code == 200 or not assert_pending(answer)

            wait_until(is_served, what="a final payment")
            assert (scene.submissions(), scene.received() - before) == (1, PRICE)


def _supply(made: Shop, node: SolanaNode) -> None:
    fund_solana(node, made.settler(SOLANA), sol=1)
    fund_solana(node, made.recipient(SOLANA), sol=0, dollars=0.000001)
    made.expire_capacity()
    made.upstream.behave = lambda exchange: exchange.json({"results": []})
