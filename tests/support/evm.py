"""Helpers for tests of the EVM adapter: accounts with keys, and a proxy that counts, alters and refuses calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import requests
from coincurve import PrivateKey
from eth_abi.abi import encode

from app.adapters.evm.chain import EvmChain
from app.adapters.evm.send import transactions
from app.adapters.vault import evm_address
from app.core.chains import ETH, USDC, ChainName, Token
from app.core.money import TokenAmount
from app.ports.chain import (
    BlockRef,
    Deposit,
    DepositScan,
    OwnTransaction,
    SignedTransaction,
    StoredTransaction,
    Terms,
    TransactionDraft,
    TransactionOutcome,
    TransactionQuery,
    TransactionStatus,
    TransferIntent,
    WatchedAddress,
)
from sandbox.evm import EvmNode
from tests.support.loopback_http import Asked, RecordingServer, Reply, serve
from tests.support.waiting import wait_until

GWEI = 10**9
ETHER = 10**18
DOLLAR = 10**6


class Person:
    """An account with a new key, which signs anything."""

    solana_address = ""

    def __init__(self) -> None:
        self._key = PrivateKey()
        self.evm_address = evm_address(self._key)

    @property
    def address(self) -> str:
        return self.evm_address

    def sign_digest(self, digest: bytes, _of: Any) -> tuple[int, int, int]:
        signature = self._key.sign_recoverable(digest, hasher=None)
        return (signature[64] & 1, int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:64], "big"))

    def sign_transaction(self, fields: Mapping[str, Any]) -> tuple[int, int, int]:
        return self.sign_digest(transactions.digest_of(fields), fields)

    def sign_message(self, message: bytes) -> bytes:
        raise AssertionError(f"no EVM chain signs messages: {message!r}")


def chain_at(node: EvmNode, *urls: str, deposit_confirmations: int = 2, read_seconds: float = 60) -> EvmChain:
    """Return the adapter for a node, behind other addresses than the node's own when some are given."""
    return EvmChain(
        ChainName(node.name),
        node.deployment,
        rpc_urls=urls or (node.url,),
        deposit_confirmations=deposit_confirmations,
        connect_seconds=20,
        read_seconds=read_seconds,
    )


def funded(node: EvmNode, *, wei: int = ETHER, usdc_units: int = 0) -> Person:
    """Return an account that holds coins, on a node that mines immediately."""
    person = Person()
    if wei:
        await_mined(node, node.fund_eth(person.address, wei))
    if usdc_units:
        await_mined(node, node.fund_usdc(person.address, usdc_units))
    return person


def await_mined(node: EvmNode, tx_hash: str) -> None:
    """Wait for a node that mines immediately: it answers before the block is there."""
    wait_until(lambda: node.rpc("eth_getTransactionReceipt", tx_hash), interval=0.001, what="a block")


def intent(sender: Person, recipient: str, units: int, token: Token = ETH) -> TransferIntent:
    """Return a transfer intent."""
    return TransferIntent(sender.address, recipient, TokenAmount(units, token))


def signed(
    chain: EvmChain, sender: Person, recipient: str, units: int, *, token: Token = ETH, sequence: int | None = None
) -> tuple[TransactionDraft, SignedTransaction]:
    """Draft and sign a movement, with the next nonce unless one is given."""
    draft = chain.draft(intent(sender, recipient, units, token))
    return draft, chain.sign(draft, sender, sequence=draft.sequence if sequence is None else sequence)


def sent(
    chain: EvmChain, sender: Person, recipient: str, units: int, *, token: Token = ETH, sequence: int | None = None
) -> SignedTransaction:
    """Draft, sign and send a movement; one with the next nonce is awaited, one with a given nonce is not."""
    _, transaction = signed(chain, sender, recipient, units, token=token, sequence=sequence)
    chain.broadcast(transaction.raw)
    if sequence is None:
        landed(chain, sender, transaction)
    return transaction


def attempt(draft: TransactionDraft, transaction: SignedTransaction) -> StoredTransaction:
    """Return a transaction as it is stored in the database."""
    terms = json.loads(json.dumps(dict(transaction.terms)))
    return StoredTransaction(draft.intent, transaction.tx_hash, transaction.raw, transaction.sequence, terms)


def watch(sender: Person, *transactions: SignedTransaction, key: str = "it") -> TransactionQuery:
    """Return a query for transactions of one nonce."""
    hashes = tuple(transaction.tx_hash for transaction in transactions)
    return TransactionQuery(key, sender.address, transactions[0].sequence, hashes)


def outcome(chain: EvmChain, sender: Person, *transactions: SignedTransaction) -> TransactionOutcome:
    """Return the outcome of transactions of one nonce."""
    return chain.outcomes([watch(sender, *transactions)])["it"]


def holdings(chain: EvmChain, address: str) -> tuple[int, int]:
    """Return (wei, micro-USDC)."""
    balances = chain.balances(address)
    return balances.of(ETH).units, balances.of(USDC).units


def landed(chain: EvmChain, sender: Person, *transactions: SignedTransaction) -> TransactionOutcome:
    """Wait until one of these transactions is in a block, and return its outcome."""

    def found() -> TransactionOutcome | None:
        now = outcome(chain, sender, *transactions)
        return None if now.status is TransactionStatus.WAITING else now

    settled = wait_until(found, interval=0.001, what="a block")
    assert settled is not None
    return settled


class Watcher:
    """Keeps cursor and scan states between scans, as the database does."""

    def __init__(self, chain: EvmChain, *addresses: str) -> None:
        self.chain = chain
        self.cursor: BlockRef | None = None
        self.marks: dict[str, Terms] = {address: chain.scan_state(address) for address in addresses}
        self.own: dict[str, tuple[OwnTransaction, ...]] = {}
        self.last: DepositScan | None = None

    def scan(self) -> list[Deposit]:
        watched = [WatchedAddress(address, mark, self.own.get(address, ())) for address, mark in self.marks.items()]
        self.last = self.chain.deposits(watched, cursor=self.cursor)
        self.cursor = self.last.cursor
        self.marks |= self.last.scan_states
        return list(self.last.deposits)


def pay_from_a_contract(node: EvmNode, payments: Mapping[str, int]) -> str:
    """Pay ether through Multicall3: internal transfers only."""
    calls = [(address, False, units, b"") for address, units in payments.items()]
    data = bytes.fromhex("174dea71") + encode(["(address,bool,uint256,bytes)[]"], [calls])
    rich = node.rpc("eth_accounts")[1]
    return str(
        node.rpc(
            "eth_sendTransaction",
            {
                "from": rich,
                "to": node.deployment.multicall3,
                "value": hex(sum(payments.values())),
                "data": "0x" + data.hex(),
            },
        )
    )


def own_transaction(chain: EvmChain, person: Person, transaction: SignedTransaction, *, value: int) -> OwnTransaction:
    found = landed(chain, person, transaction)
    assert found.fee_units is not None
    return OwnTransaction(transaction.tx_hash, transaction.sequence, value + found.fee_units)


Calls = list[dict[str, Any]]
Before = Callable[[Calls], Reply | None]
After = Callable[[Calls, Calls], Reply | Calls]


@dataclass(slots=True)
class Proxy:
    """A node behind a proxy: `before` may answer in its place, `after` may alter its response.

    `requests` has the calls of each HTTP request that came in.
    """

    url: str
    server: RecordingServer
    requests: list[Calls] = field(default_factory=list)
    before: Before = lambda _calls: None
    after: After = lambda _calls, replies: replies

    def methods(self) -> list[str]:
        """Return the names of all calls, in order."""
        return [call["method"] for calls in self.requests for call in calls]


@contextmanager
def proxy(node_url: str) -> Iterator[Proxy]:
    """Run a proxy before a node."""
    session = requests.Session()
    session.trust_env = False

    def answer(asked: Asked) -> Reply:
        body = json.loads(asked.body)
        calls = body if isinstance(body, list) else [body]
        state.requests.append(calls)
        early = state.before(calls)
        if early is not None:
            return early
        received = json.loads(session.post(node_url, data=asked.body, timeout=90, headers=_JSON).content)
        replies = state.after(calls, received if isinstance(received, list) else [received])
        if isinstance(replies, Reply):
            return replies
        return json_reply(replies if isinstance(body, list) else replies[0])

    with serve(answer) as server:
        state = Proxy(server.url, server)
        yield state


_JSON = {"Content-Type": "application/json"}


def json_reply(value: object, status: int = 200) -> Reply:
    """Return a JSON answer."""
    return Reply(json.dumps(value).encode(), status=status, headers=_JSON)


def asks(calls: Calls, method: str) -> bool:
    """Return whether a request contains a call of this method."""
    return any(call["method"] == method for call in calls)


def spoil(method: str, result: object) -> After:
    """Return an alteration: every call of this method is answered with `result`."""

    def after(calls: Calls, replies: Calls) -> Calls:
        lied = {call["id"] for call in calls if call["method"] == method}
        return [
            {"jsonrpc": "2.0", "id": reply["id"], "result": result} if reply["id"] in lied else reply
            for reply in replies
        ]

    return after


def refuse(method: str, message: str, *, code: int = -32000, only: Sequence[int] | None = None) -> After:
    """Return a refusal of every call of this method, or of those at some positions of the batch."""

    def after(calls: Calls, replies: Calls) -> Calls:
        refused = {
            call["id"]
            for place, call in enumerate(call for call in calls if call["method"] == method)
            if only is None or place in only
        }
        return [
            {"jsonrpc": "2.0", "id": reply["id"], "error": {"code": code, "message": message}}
            if reply["id"] in refused
            else reply
            for reply in replies
        ]

    return after
