"""Reading Solana from a real local node: exact balances, the right cluster only, failover."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from solders.account import Account
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.token import ID as TOKEN_PROGRAM
from solders.token.associated import get_associated_token_address
from solders.token.state import TokenAccount, TokenAccountState
from structlog.testing import capture_logs

from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.deployments import DEPLOYMENTS, PUBLIC_GENESIS_HASHES
from app.core.chains import ETH, SOL, USDC, ChainName
from app.core.money import TokenAmount
from app.ports.chain import Chain
from app.ports.errors import Unreachable
from solana_node import SolanaNode
from tests.support.evm import proxy, spoil
from tests.support.loopback_http import Asked, Reply, serve, unused_url

pytestmark = pytest.mark.chain

_SANDBOX = DEPLOYMENTS["sandbox"]
_MINT = Pubkey.from_string(_SANDBOX.usdc_mint)
_SYSTEM_PROGRAM = Pubkey.default()


@pytest.fixture(scope="module")
def node() -> Iterator[SolanaNode]:
    with SolanaNode(slot_ms=0) as started:
        yield started


@pytest.fixture
def wallet() -> str:
    return str(Keypair().pubkey())


def _chain(*urls: str) -> Chain:
    return SolanaChain(_SANDBOX, rpc_urls=urls)


def _held(chain: Chain, address: str) -> tuple[int, int]:
    balances = chain.balances(address)
    assert [amount.token for amount in balances.amounts] == [SOL, USDC]
    return balances.of(SOL).units, balances.of(USDC).units


def _usdc_account(wallet: str) -> Pubkey:
    return get_associated_token_address(Pubkey.from_string(wallet), _MINT)


def test_an_unused_address_has_two_zero_balances(node: SolanaNode, wallet: str) -> None:
    assert _chain(node.url).balances(wallet).amounts == (TokenAmount(0, SOL), TokenAmount(0, USDC))


def test_balances_are_exact_to_the_base_unit(node: SolanaNode, wallet: str) -> None:
    node.airdrop(wallet, 1_234_567_891)
    node.mint_usdc(wallet, 7_000_001)
    node.advance(2)
    assert _held(_chain(node.url), wallet) == (1_234_567_891, 7_000_001)


def test_amounts_beyond_float_precision_are_exact(node: SolanaNode, wallet: str) -> None:
    node.set_account(wallet, Account(2**63 + 1, b"", _SYSTEM_PROGRAM))
    _set_usdc(node, wallet, amount=2**64 - 1)
    node.advance(2)
    assert _held(_chain(node.url), wallet) == (2**63 + 1, 2**64 - 1)


def test_balances_include_confirmed_transactions_only(node: SolanaNode, wallet: str) -> None:
    chain = _chain(node.url)
    node.airdrop(wallet, 1_000_000_000)
    assert _held(chain, wallet) == (0, 0)
    node.advance(2)
    assert _held(chain, wallet) == (1_000_000_000, 0)


@pytest.mark.parametrize("what", ["plain SOL", "another mint", "another owner", "another program"])
def test_a_foreign_account_at_the_token_address_counts_as_zero(node: SolanaNode, wallet: str, what: str) -> None:
    _set_usdc(
        node,
        wallet,
        amount=5_000_000,
        mint=Pubkey.new_unique() if what == "another mint" else _MINT,
        owner=Pubkey.new_unique() if what == "another owner" else Pubkey.from_string(wallet),
        program=Pubkey.new_unique() if what == "another program" else TOKEN_PROGRAM,
    )
    if what == "plain SOL":
        node.set_account(_usdc_account(wallet), Account(10**9, b"", _SYSTEM_PROGRAM))
    node.advance(2)
    assert _held(_chain(node.url), wallet) == (0, 0)


def test_head_is_the_newest_confirmed_slot(node: SolanaNode) -> None:
    chain = SolanaChain(_SANDBOX, rpc_urls=[node.url])
    before = chain.head()
    node.advance(3)
    after = chain.head()
    assert after.number == before.number + 3
    assert after.hash != before.hash


def _problems(chain: SolanaChain) -> list[str | None]:
    return [endpoint.problem for endpoint in chain.diagnose().endpoints]


@pytest.mark.parametrize("network", ["mainnet", "testnet"])
def test_a_node_of_another_cluster_is_never_used(node: SolanaNode, wallet: str, network: str) -> None:
    chain = SolanaChain(DEPLOYMENTS[network], rpc_urls=[node.url])
    assert _problems(chain) == ["wrong_chain"]
    with capture_logs(), pytest.raises(Unreachable, match="chain_unreachable"):
        chain.balances(wallet)


@pytest.mark.parametrize("genesis_hash", sorted(PUBLIC_GENESIS_HASHES))
def test_the_sandbox_refuses_every_public_cluster(genesis_hash: str) -> None:
    with serve(lambda asked: _genesis(genesis_hash, asked)) as public:
        assert _problems(_chain(public.url)) == ["wrong_chain"]


@pytest.mark.parametrize("network", ["mainnet", "testnet"])
def test_each_public_network_accepts_its_own_cluster(network: str) -> None:
    deployment = DEPLOYMENTS[network]
    assert deployment.genesis_hash is not None
    with serve(lambda asked: _genesis(str(deployment.genesis_hash), asked)) as public:
        SolanaChain(deployment, rpc_urls=[public.url]).rpc.endpoints[0].identify()


def test_one_endpoint_of_another_cluster_is_detected(node: SolanaNode, wallet: str) -> None:
    with serve(lambda asked: _genesis(min(PUBLIC_GENESIS_HASHES), asked)) as public:
        chain = _chain(public.url, node.url)
        assert _problems(chain) == ["wrong_chain", None]
        with capture_logs() as logs:
            assert _held(chain, wallet) == (0, 0)
        assert all(b"getGenesisHash" in asked.body for asked in public.asked)
    assert [entry["reason"] for entry in logs] == ["wrong_chain"]


def test_a_missing_genesis_hash_is_not_accepted(node: SolanaNode) -> None:
    with capture_logs():
        with pytest.raises(Unreachable, match="chain_unreachable"):
            _chain(unused_url()).head()
        _chain(unused_url(), node.url).head()


def test_a_chain_without_endpoints_uses_the_networks_own() -> None:
    assert all(deployment.default_rpc_urls for deployment in DEPLOYMENTS.values())
    with pytest.raises(ValueError, match="at least one RPC endpoint"):
        SolanaChain(replace(_SANDBOX, default_rpc_urls=()))


_ERROR = b'{"jsonrpc":"2.0","id":0,"error":{"code":-32005,"message":"Node is behind","data":{"numSlotsBehind":9}}}'


@pytest.mark.parametrize(
    "reply",
    [
        Reply(None),
        Reply(b"", status=429, headers={"Retry-After": "1"}),
        Reply(b"busy", status=503),
        Reply(b"", status=301, headers={"Location": "http://127.0.0.1:1/"}),
        Reply(b"<html>welcome</html>"),
        Reply(b"\xff\xfe"),
        Reply(b"{}"),
        Reply(b'{"jsonrpc":"2.0","id":0,"result":null}'),
        Reply(b'{"jsonrpc":"2.0","id":0,"result":{"context":{"slot":1},"value":[]}}'),
        Reply(b'{"jsonrpc":"2.0","id":0,"result":{"context":{"slot":1},"value":[null]}}'),
        Reply(_ERROR),
    ],
)
def test_a_failing_endpoint_is_replaced_and_used_last_for_a_while(node: SolanaNode, wallet: str, reply: Reply) -> None:
    node.airdrop(wallet, 1_000_000)
    node.advance(2)
    with serve(lambda asked: _genesis("1" * 32, asked) if b"getGenesisHash" in asked.body else reply) as bad:
        with capture_logs() as logs:
            chain = _chain(bad.url, node.url)
            for endpoint in chain.rpc.endpoints:
                endpoint.identify()
            assert [_held(chain, wallet) for _ in range(3)] == [(1_000_000, 0)] * 3
        questions = [asked for asked in bad.asked if b"getMultipleAccounts" in asked.body]
        with capture_logs(), pytest.raises(Unreachable, match="chain_unreachable"):
            _chain(bad.url).balances(wallet)
    assert 1 <= len(questions) <= 2
    assert [(entry["event"], entry["name"]) for entry in logs] == [("rpc_endpoint_failed", "solana 1")]


def test_a_recovered_node_is_used_again(node: SolanaNode, wallet: str) -> None:
    chain = _chain(node.url)
    node.faults(http={"getMultipleAccounts": [503]})
    with capture_logs() as logs:
        with pytest.raises(Unreachable):
            chain.balances(wallet)
        assert _held(chain, wallet) == (0, 0)
    assert [entry["event"] for entry in logs] == ["rpc_endpoint_failed", "rpc_endpoint_recovered"]


def test_a_recovered_endpoint_is_verified_again(node: SolanaNode, wallet: str) -> None:
    with proxy(node.url) as between:
        chain = _chain(between.url)
        assert _held(chain, wallet) == (0, 0)
        between.before = lambda _calls: Reply(b"", status=503)
        with capture_logs(), pytest.raises(Unreachable):
            chain.balances(wallet)
        between.before = lambda _calls: None
        between.after = spoil("getGenesisHash", min(PUBLIC_GENESIS_HASHES))
        between.requests.clear()
        with capture_logs(), pytest.raises(Unreachable):
            chain.balances(wallet)
        assert between.methods()[0] == "getGenesisHash"


def test_refused_batch_sizes_are_retried_later(node: SolanaNode, wallet: str) -> None:
    with proxy(node.url) as between:
        chain = _chain(between.url)
        between.before = lambda calls: Reply(b"", status=413) if len(calls) > 1 else None
        chain.scan_state(wallet)
        assert [len(calls) for calls in between.requests[-3:]] == [1, 1, 1]
        between.before = lambda _calls: None
        for _ in range(60):
            chain.scan_state(wallet)
        assert len(between.requests[-1]) == 3


def test_no_failure_shows_an_endpoints_address(wallet: str) -> None:
    chain = _chain(f"{unused_url()}/v2/canary-key")
    with capture_logs() as logs, pytest.raises(Unreachable) as caught:
        chain.balances(wallet)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert "canary-key" not in repr([logs, caught.value, caught.value.details, chain])


def test_recipients_that_can_never_use_the_money_are_refused() -> None:
    chain = SolanaChain(_SANDBOX)
    assert chain.recipient_rejection("1" * 32, SOL)
    assert chain.recipient_rejection("1" * 32, USDC)
    assert chain.recipient_rejection(_SANDBOX.usdc_mint, USDC)
    assert chain.recipient_rejection("oeYf6KAJkLYhBuR8CiGc6L4D4Xtfepr85fuDgA9kq96", USDC) is None


def test_explorer_pages_are_those_of_the_network() -> None:
    assert SolanaChain(DEPLOYMENTS["mainnet"]).explorer_url("5h") == "https://solscan.io/tx/5h"
    assert SolanaChain(DEPLOYMENTS["testnet"]).explorer_url("5h") == "https://solscan.io/tx/5h?cluster=devnet"
    assert SolanaChain(_SANDBOX).explorer_url("5h") is None
    assert SolanaChain(_SANDBOX).name is ChainName.SOLANA


def test_tokens_of_other_chains_are_not_among_the_balances(node: SolanaNode, wallet: str) -> None:
    with pytest.raises(StopIteration):
        _chain(node.url).balances(wallet).of(ETH)


def _set_usdc(
    node: SolanaNode,
    wallet: str,
    *,
    amount: int,
    mint: Pubkey = _MINT,
    owner: Pubkey | None = None,
    program: Pubkey = TOKEN_PROGRAM,
) -> None:
    state = TokenAccount(
        mint=mint,
        owner=owner or Pubkey.from_string(wallet),
        amount=amount,
        delegate=None,
        state=TokenAccountState.Initialized,
        is_native=None,
        delegated_amount=0,
        close_authority=None,
    )
    node.set_account(_usdc_account(wallet), Account(2_039_280, bytes(state), program))


def _genesis(genesis_hash: str, asked: Asked) -> Reply:
    """Answer every call with a genesis hash."""
    calls = json.loads(asked.body)
    replies = [
        {"jsonrpc": "2.0", "id": call["id"], "result": genesis_hash}
        for call in (calls if isinstance(calls, list) else [calls])
    ]
    return Reply(json.dumps(replies if isinstance(calls, list) else replies[0]).encode())
