import base64
import json
from typing import Any

import pytest
from solders.compute_budget import set_compute_unit_price
from solders.keypair import Keypair
from solders.message import to_bytes_versioned
from solders.rpc.requests import GetBalance, GetBlockHeight, GetSlot, batch_to_json
from solders.rpc.responses import GetBalanceResp, GetBlockHeightResp, GetSlotResp, batch_from_json

from solana_node import RpcError, SolanaNode
from solana_node.addresses import WRAPPED_SOL_MINT, associated_token_address
from tests.solana_node.client import SOL, USDC, Client, pay_sol


def error_of(client: Client, body: object) -> tuple[int, str]:
    answer: dict[str, Any] = client.post(json.dumps(body)).json()
    return answer["error"]["code"], answer["error"]["message"]


def request(method: str, *params: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def test_a_batch_is_answered_in_its_order(node: SolanaNode, client: Client, alice: Keypair) -> None:
    response = client.post(batch_to_json([GetSlot(id=1), GetBalance(alice.pubkey(), id=2), GetBlockHeight(id=3)]))

    slot, balance, height = batch_from_json(response.text, [GetSlotResp, GetBalanceResp, GetBlockHeightResp])

    assert isinstance(slot, GetSlotResp)
    assert isinstance(balance, GetBalanceResp)
    assert isinstance(height, GetBlockHeightResp)
    assert slot.value == balance.context.slot == node.call("getSlot")
    assert balance.value == 10 * SOL
    assert height.value < slot.value


def test_an_invalid_request_does_not_fail_its_batch(client: Client) -> None:
    answers = client.post(json.dumps([request("getSlot"), request("noSuchMethod"), 7])).json()

    assert "result" in answers[0]
    assert [answer["error"]["code"] for answer in answers[1:]] == [-32601, -32600]


def test_invalid_requests_get_an_explanation(client: Client) -> None:
    assert client.post(b"{not json").json()["error"]["code"] == -32700
    assert error_of(client, {"id": 1, "method": "getSlot"})[0] == -32600
    assert error_of(client, [])[0] == -32600
    assert error_of(client, request("noSuchMethod"))[0] == -32601
    assert error_of(client, request("getBalance"))[0] == -32602
    assert error_of(client, request("getBalance", "x", {}, "more"))[0] == -32602
    assert error_of(client, request("getBalance", "not an address")) == (-32602, "Invalid param: Invalid")
    assert error_of(client, request("getBalance", str(Keypair().pubkey()), {"commitment": "sure"}))[0] == -32602
    assert error_of(client, request("getSignatureStatuses", ["nonsense"]))[0] == -32602
    assert error_of(client, request("getSignatureStatuses", 5))[0] == -32603


@pytest.mark.parametrize("blob", ["AAAA", "!!!", base64.b64encode(bytes(1300)).decode(), "A" * 2000])
def test_malformed_transactions_are_refused(client: Client, blob: str) -> None:
    code, message = error_of(client, request("sendTransaction", blob, {"encoding": "base64"}))

    assert code == -32602
    assert "transaction" in message or "encoding" in message


def test_health_is_answered_and_other_pages_are_not(node: SolanaNode, client: Client) -> None:
    assert client.session.get(f"{node.url}/health", timeout=5).text == "ok"
    assert client.session.get(f"{node.url}/", timeout=5).status_code == 404


def test_explicit_nulls_mean_unset(node: SolanaNode, alice: Keypair) -> None:
    unset = {"commitment": None, "encoding": None, "dataSlice": None, "minContextSlot": None}

    assert node.call("getAccountInfo", str(alice.pubkey()), unset)["value"]["lamports"] == 10 * SOL
    assert node.call("getMultipleAccounts", [str(alice.pubkey())], unset)["value"][0]["data"] == ["", "base64"]
    assert node.call("getBalance", str(alice.pubkey()), None)["value"] == 10 * SOL


def test_token_holdings_are_listed_with_their_mint(node: SolanaNode, alice: Keypair) -> None:
    mint = str(node.chain.usdc)
    wanted = associated_token_address(alice.pubkey(), node.chain.usdc)

    found = node.call("getTokenAccountsByOwner", str(alice.pubkey()), {"mint": mint}, {"encoding": "jsonParsed"})

    (entry,) = found["value"]
    assert entry["pubkey"] == str(wanted)
    held = entry["account"]["data"]["parsed"]["info"]
    assert (held["mint"], held["owner"]) == (mint, str(alice.pubkey()))
    assert held["tokenAmount"] == {"amount": str(100 * USDC), "decimals": 6, "uiAmount": 100.0, "uiAmountString": "100"}
    assert node.call("getTokenSupply", mint)["value"]["amount"] == str(100 * USDC)
    assert node.call("getTokenAccountBalance", str(wanted))["value"]["uiAmountString"] == "100"
    with pytest.raises(RpcError, match="could not find account"):
        node.call("getTokenAccountBalance", str(Keypair().pubkey()))


def test_usdc_and_wrapped_sol_are_mints_from_the_start(node: SolanaNode) -> None:
    for mint, decimals in ((str(node.chain.usdc), 6), (WRAPPED_SOL_MINT, 9)):
        data = node.call("getAccountInfo", mint, {"encoding": "jsonParsed"})["value"]["data"]
        assert data["parsed"]["type"] == "mint"
        assert data["parsed"]["info"]["decimals"] == decimals


def test_the_quoted_fee_is_charged(node: SolanaNode, client: Client, alice: Keypair) -> None:
    price = set_compute_unit_price(1_000)
    payment = client.sign([price, pay_sol(alice, Keypair().pubkey(), SOL)], alice)
    message = base64.b64encode(to_bytes_versioned(payment.message)).decode()

    foretold = node.call("getFeeForMessage", message, {"commitment": "confirmed"})["value"]
    client.send(payment)
    node.advance(1)

    assert foretold == 5000 + 200
    assert client.lamports(alice.pubkey()) == 9 * SOL - foretold


def test_large_accounts_are_not_encoded_in_base58(node: SolanaNode, alice: Keypair) -> None:
    account = str(associated_token_address(alice.pubkey(), node.chain.usdc))

    with pytest.raises(RpcError, match="use Base64"):
        node.call("getAccountInfo", account)
    sliced = node.call("getAccountInfo", account, {"encoding": "base64", "dataSlice": {"offset": 64, "length": 8}})
    assert base64.b64decode(sliced["value"]["data"][0]) == (100 * USDC).to_bytes(8, "little")
