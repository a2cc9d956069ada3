"""Third-party clients against the node."""

import json

import pytest
from solana.rpc.async_api import AsyncClient
from solana.rpc.commitment import Confirmed
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.signature import Signature
from solders.transaction import VersionedTransaction
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from solana_node import SolanaNode
from tests.solana_node.client import SOL, USDC, Client, pay_sol, pay_token
from tests.support.coroutines import run_apart


def test_solana_py_sends_confirms_and_reads_back() -> None:
    bob = Keypair().pubkey()

    async def session(node: SolanaNode, alice: Keypair) -> None:
        async with AsyncClient(node.url, Confirmed) as solana:
            latest = (await solana.get_latest_blockhash()).value
            payment = pay_token(alice, bob, node.chain.usdc, USDC)
            message = MessageV0.try_compile(alice.pubkey(), payment, [], latest.blockhash)
            signature = (await solana.send_transaction(VersionedTransaction(message, [alice]))).value
            await solana.confirm_transaction(
                signature, Confirmed, sleep_seconds=0.01, last_valid_block_height=latest.last_valid_block_height
            )
            landed = (await solana.get_transaction(signature, "jsonParsed", max_supported_transaction_version=0)).value
            assert landed is not None
            assert (await solana.get_balance(alice.pubkey())).value < 10 * SOL
            assert (await solana.get_epoch_info()).value.block_height
            assert (await solana.get_signatures_for_address(bob)).value

    with SolanaNode(slot_ms=10) as node:
        alice = Keypair()
        node.airdrop(alice.pubkey(), 10 * SOL)
        node.mint_usdc(alice.pubkey(), USDC)
        node.advance(1)
        run_apart(session(node, alice))


def test_a_subscriber_is_notified_of_a_confirmation_once(node: SolanaNode, client: Client, alice: Keypair) -> None:
    payment = client.sign([pay_sol(alice, Keypair().pubkey(), SOL)], alice)
    signature = str(payment.signatures[0])
    with connect(node.ws_url, proxy=None) as socket:
        number = _ask(socket, "signatureSubscribe", signature, {"commitment": "confirmed"})
        client.send(payment)
        node.advance(1)

        received = json.loads(socket.recv(timeout=5))
        assert received["method"] == "signatureNotification"
        assert received["params"]["subscription"] == number
        assert received["params"]["result"]["value"] == {"err": None}
        assert _ask(socket, "signatureUnsubscribe", number) is False


def test_a_subscriber_is_notified_of_each_change_of_an_account(node: SolanaNode) -> None:
    bob = Keypair().pubkey()
    with connect(node.ws_url, proxy=None) as socket:
        number = _ask(socket, "accountSubscribe", str(bob), {"commitment": "confirmed", "encoding": "base64"})
        received = []
        for _ in range(2):
            node.airdrop(bob, SOL)
            node.advance(1)
            received.append(json.loads(socket.recv(timeout=5))["params"]["result"]["value"]["lamports"])

        assert received == [SOL, 2 * SOL]
        assert _ask(socket, "accountUnsubscribe", number) is True


def test_a_stopped_node_disconnects_its_subscribers() -> None:
    node = SolanaNode(slot_ms=10)
    node.start()
    with connect(node.ws_url, proxy=None) as socket:
        _ask(socket, "signatureSubscribe", str(Signature.default()))

        node.stop()

        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=5)


def test_unknown_subscriptions_are_refused(node: SolanaNode) -> None:
    with connect(node.ws_url, proxy=None) as socket:
        socket.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "logsSubscribe", "params": ["all"]}))

        assert json.loads(socket.recv(timeout=5))["error"]["code"] == -32601


def _ask(socket: ClientConnection, method: str, *params: object) -> object:
    socket.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}))
    answer: dict[str, object] = json.loads(socket.recv(timeout=5))
    return answer["result"]
