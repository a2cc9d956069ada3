"""The faucet's client: complete requests, and only a refusal counts as one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from solders.keypair import Keypair

from app.adapters.faucet_http import HttpFaucet
from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.deployments import DEPLOYMENTS
from app.core.chains import ETH, USDC, ChainName
from app.core.money import TokenAmount
from app.ports.errors import Rejected, Unreachable
from app.ports.services import Faucet
from sandbox.faucet import Faucet as PayingFaucet
from sandbox.faucet import FaucetServer, PaymentLedger
from sandbox.payers import SolanaPayer
from solana_node import SolanaNode
from tests.support.loopback_http import Asked, RecordingServer, Reply, serve, unused_url

_ADDRESS = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
_PAID = Reply(b'{"tx_hash": "0xabc"}')


def _pay(server_url: str, *, reference: str = "fund-1") -> None:
    faucet: Faucet = HttpFaucet(server_url)
    faucet.pay(reference, chain=ChainName.BASE, address=_ADDRESS, amount=TokenAmount(12_500_000, USDC))


def _pay_against(reply: Reply) -> RecordingServer:
    with serve(lambda _asked: reply) as server:
        _pay(server.url)
    return server


def test_a_request_contains_reference_chain_address_and_exact_amount() -> None:
    (asked,) = _pay_against(_PAID).asked
    assert (asked.method, asked.target) == ("POST", "/pay")
    assert asked.headers["Content-Type"] == "application/json"
    assert json.loads(asked.body) == {
        "reference": "fund-1",
        "chain": "base",
        "address": _ADDRESS,
        "currency": "USDC",
        "amount": "12.5",
    }


def test_one_wei_is_requested_exactly() -> None:
    with serve(lambda _asked: _PAID) as server:
        HttpFaucet(server.url + "/").pay(
            "fund-2", chain=ChainName.ETHEREUM, address=_ADDRESS, amount=TokenAmount(10**18 + 1, ETH)
        )
    (asked,) = server.asked
    assert asked.target == "/pay"
    assert json.loads(asked.body)["amount"] == "1.000000000000000001"


def test_a_refusal_is_certain() -> None:
    with pytest.raises(Rejected, match="faucet_refused"):
        _pay_against(Reply(b'{"error": "unknown chain"}', status=400))


@pytest.mark.parametrize(
    "reply",
    [
        Reply(None),
        Reply(b'{"tx_hash": "0xabc"}', status=500),
        Reply(b'{"tx_hash": "0xabc"}', status=404),
        Reply(b"", status=302, headers={"Location": "/pay"}),
        Reply(b"<html>"),
        Reply(b"[" * 100_000),
        Reply(b"{}"),
        Reply(b"[]"),
        Reply(b'{"tx_hash": null}'),
        Reply(b'{"tx_hash": "0xabc", "padding": "' + b"x" * 5_000_000 + b'"}'),
    ],
)
def test_any_other_response_may_be_retried(reply: Reply) -> None:
    with pytest.raises(Unreachable, match="faucet_unreachable"):
        _pay_against(reply)


def test_an_absent_faucet_is_unreachable() -> None:
    with pytest.raises(Unreachable, match="faucet_unreachable"):
        _pay(unused_url())


def test_a_lost_response_is_retried_with_the_same_reference() -> None:
    replies = [Reply(None), _PAID]
    with serve(lambda _asked: replies.pop(0)) as server:
        _pay(server.url)
    assert [json.loads(asked.body)["reference"] for asked in server.asked] == ["fund-1", "fund-1"]


def test_one_connection_serves_many_requests_without_cookies() -> None:
    def answer(_asked: Asked) -> Reply:
        return Reply(b'{"tx_hash": "0xabc"}', headers={"Set-Cookie": "tracker=1"})

    with serve(answer) as server:
        faucet = HttpFaucet(server.url)
        for number in range(5):
            faucet.pay(str(number), chain=ChainName.BASE, address=_ADDRESS, amount=TokenAmount(1, USDC))
    assert server.connections == 1
    assert not [asked for asked in server.asked if "Cookie" in asked.headers]


def test_proxy_settings_of_the_machine_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", unused_url())
    monkeypatch.setenv("http_proxy", unused_url())
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert len(_pay_against(_PAID).asked) == 1


@pytest.mark.chain
def test_the_sandboxs_faucet_pays_a_reference_once(tmp_path: Path) -> None:
    wallet = str(Keypair().pubkey())
    book = PaymentLedger(tmp_path / "payments.sqlite")
    with SolanaNode(slot_ms=0) as node:
        server = FaucetServer(PayingFaucet(book, {"solana": SolanaPayer(node.url)}))
        server.start()
        faucet: Faucet = HttpFaucet(server.url)
        for _ in range(3):
            faucet.pay("fund-1", chain=ChainName.SOLANA, address=wallet, amount=TokenAmount(2_500_000, USDC))
        with pytest.raises(Rejected, match="faucet_refused"):
            faucet.pay("fund-1", chain=ChainName.SOLANA, address=wallet, amount=TokenAmount(1, USDC))
        with pytest.raises(Rejected, match="faucet_refused"):
            faucet.pay("fund-2", chain=ChainName.BASE, address=_ADDRESS, amount=TokenAmount(1, USDC))
        node.advance(2)
        held = SolanaChain(DEPLOYMENTS["sandbox"], rpc_urls=[node.url]).balances(wallet)
        server.stop()
    book.close()
    assert held.of(USDC).units == 2_500_000
