"""Deposits on EVM chains: each found once, none of our own among them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from eth_abi.abi import encode
from eth_utils.address import to_checksum_address

from app.core.chains import ETH, USDC
from app.core.money import TokenAmount
from app.ports.chain import DepositScan, OwnTransaction, WatchedAddress
from app.ports.errors import Unreachable
from sandbox.evm import EvmNode
from sandbox.evm.abi import call_data
from tests.support.evm import (
    DOLLAR,
    ETHER,
    GWEI,
    Calls,
    Person,
    Watcher,
    await_mined,
    chain_at,
    funded,
    json_reply,
    own_transaction,
    pay_from_a_contract,
    proxy,
    sent,
    signed,
    spoil,
)
from tests.support.foreign_tokens import ForeignErc20
from tests.support.loopback_http import Reply

pytestmark = pytest.mark.chain

DEPTH = 2


@pytest.fixture(scope="module", params=["ethereum", "base"])
def node(request: pytest.FixtureRequest) -> Iterator[EvmNode]:
    with EvmNode(request.param) as running:
        yield running


@pytest.fixture(scope="module")
def ethereum() -> Iterator[EvmNode]:
    with EvmNode("ethereum") as running:
        yield running


def test_direct_payments_carry_hash_and_payer_and_wait_for_their_depth(node: EvmNode) -> None:
    chain = chain_at(node, deposit_confirmations=3)
    payer, watched = funded(node, usdc_units=5 * DOLLAR), Person().address
    watcher = Watcher(chain, watched)
    ether = sent(chain, payer, watched, 7 * GWEI)
    dollars = sent(chain, payer, watched, DOLLAR, token=USDC)
    assert watcher.scan() == []
    node.mine(1)
    assert [each.tx_hash for each in watcher.scan()] == [ether.tx_hash]
    node.mine(1)
    (second,) = watcher.scan()
    assert (second.tx_hash, second.payer) == (dollars.tx_hash, payer.address)
    assert second.amount == TokenAmount(DOLLAR, USDC)
    node.mine(5)
    assert watcher.scan() == []


def test_a_payment_by_a_contract_is_found_by_the_balance_without_a_hash(node: EvmNode) -> None:
    chain = chain_at(node)
    payer, watched, other = funded(node), Person().address, Person().address
    watcher = Watcher(chain, watched, other)
    pay_from_a_contract(node, {watched: 3 * GWEI, other: 5 * GWEI})
    direct = sent(chain, payer, watched, 2 * GWEI)
    node.mine(DEPTH)

    deposits = watcher.scan()

    by_kind = {(each.address, each.tx_hash): each for each in deposits}
    assert by_kind[watched, None].amount.units == 3 * GWEI
    assert by_kind[watched, direct.tx_hash].amount.units == 2 * GWEI
    assert by_kind[other, None].amount.units == 5 * GWEI
    assert len(deposits) == 3
    assert all(each.payer is None for each in deposits if each.tx_hash is None)
    keys = [(each.tx_hash or each.block.hash, each.position) for each in deposits]
    assert len(set(keys)) == 3


def test_outgoing_transfers_neither_hide_nor_create_deposits(node: EvmNode) -> None:
    chain = chain_at(node)
    payer, watched = funded(node), funded(node, usdc_units=5 * DOLLAR)
    node.mine(1)
    watcher = Watcher(chain, watched.address)
    out = sent(chain, watched, Person().address, ETHER // 10)
    tokens = sent(chain, watched, Person().address, DOLLAR, token=USDC)
    incoming = sent(chain, payer, watched.address, 1234)
    node.mine(DEPTH)
    watcher.own[watched.address] = (
        own_transaction(chain, watched, out, value=ETHER // 10),
        own_transaction(chain, watched, tokens, value=0),
    )

    (deposit,) = watcher.scan()

    assert (deposit.tx_hash, deposit.amount) == (incoming.tx_hash, TokenAmount(1234, ETH))
    node.mine(40)
    assert watcher.scan() == []


def test_a_transfer_to_oneself_is_not_a_deposit(node: EvmNode) -> None:
    chain = chain_at(node)
    watched = funded(node, usdc_units=5 * DOLLAR)
    node.mine(1)
    watcher = Watcher(chain, watched.address)
    ether = sent(chain, watched, watched.address, ETHER // 10)
    tokens = sent(chain, watched, watched.address, DOLLAR, token=USDC)
    node.mine(DEPTH)
    watcher.own[watched.address] = (
        own_transaction(chain, watched, ether, value=0),
        own_transaction(chain, watched, tokens, value=0),
    )

    assert watcher.scan() == []


def test_a_pending_own_transaction_delays_ether_deposits_but_not_usdc(ethereum: EvmNode) -> None:
    chain = chain_at(ethereum)
    payer, watched = funded(ethereum, usdc_units=5 * DOLLAR), funded(ethereum)
    ethereum.mine(1)
    watcher = Watcher(chain, watched.address)
    out = sent(chain, watched, Person().address, ETHER // 10)
    sent(chain, payer, watched.address, 1234)
    sent(chain, payer, watched.address, DOLLAR, token=USDC)
    ethereum.mine(DEPTH)

    for unknown in ((), (OwnTransaction(out.tx_hash, out.sequence, None),)):
        watcher.own[watched.address] = unknown
        found = watcher.scan()
        assert [each.amount.token for each in found] in ([USDC], []), "never ether, because its cause is unknown"
    watcher.own[watched.address] = (
        OwnTransaction("0x" + "ee" * 32, out.sequence, None),  # a replaced attempt with the same nonce
        own_transaction(chain, watched, out, value=ETHER // 10),
    )
    (late,) = watcher.scan()

    assert late.amount == TokenAmount(1234, ETH)


def test_tokens_from_own_transactions_are_not_deposits(ethereum: EvmNode) -> None:
    # A swap's output or a bridge's mint arrives from a contract, in a transaction of ours.
    chain = chain_at(ethereum)
    payer, watched = funded(ethereum, usdc_units=5 * DOLLAR), Person().address
    watcher = Watcher(chain, watched)
    ours = sent(chain, payer, watched, DOLLAR, token=USDC)
    theirs = sent(chain, payer, watched, 2 * DOLLAR, token=USDC)
    watcher.own[watched] = (OwnTransaction(ours.tx_hash, None, None),)
    ethereum.mine(DEPTH)

    assert [each.tx_hash for each in watcher.scan()] == [theirs.tx_hash]


def test_zero_value_transfers_are_not_deposits(ethereum: EvmNode) -> None:
    chain = chain_at(ethereum)
    payer, watched = funded(ethereum), Person().address
    watcher = Watcher(chain, watched)
    sent(chain, payer, watched, 0, token=USDC)
    sent(chain, payer, watched, 0)
    ethereum.mine(DEPTH)

    assert watcher.scan() == []


def test_two_payments_in_one_transaction_have_stable_positions(ethereum: EvmNode) -> None:
    chain = chain_at(ethereum)
    payer, watched, other = funded(ethereum, usdc_units=9 * DOLLAR), Person().address, Person().address
    ethereum.rpc("anvil_impersonateAccount", payer.address)
    usdc, multicall = ethereum.deployment.usdc, ethereum.deployment.multicall3
    approval = call_data("approve(address,uint256)", multicall, 9 * DOLLAR)
    approving = {"from": payer.address, "to": usdc, "data": approval}
    await_mined(ethereum, ethereum.rpc("eth_sendTransaction", approving))
    watcher = Watcher(chain, watched, other)
    transfers = [
        call_data("transferFrom(address,address,uint256)", payer.address, recipient, units)
        for recipient, units in ((watched, 1), (other, 2), (watched, 3))
    ]
    calls = [(usdc, False, bytes.fromhex(data[2:])) for data in transfers]
    data = bytes.fromhex("82ad56cb") + encode(["(address,bool,bytes)[]"], [calls])
    ethereum.rpc("eth_sendTransaction", {"from": payer.address, "to": multicall, "data": "0x" + data.hex()})
    ethereum.mine(DEPTH)

    deposits = watcher.scan()

    assert sorted(each.amount.units for each in deposits) == [1, 2, 3]
    assert len({(each.tx_hash, each.position) for each in deposits}) == 3


def test_a_deposit_mined_again_after_a_reorg_keeps_its_identity(ethereum: EvmNode) -> None:
    chain = chain_at(ethereum)
    payer, watched = funded(ethereum, usdc_units=5 * DOLLAR), Person().address
    noise = funded(ethereum, usdc_units=DOLLAR)
    ethereum.mine(4)
    watcher = Watcher(chain, watched)
    transaction = sent(chain, payer, watched, DOLLAR, token=USDC)
    ethereum.mine(DEPTH)
    (first,) = watcher.scan()

    ethereum.reorg(4)
    # In its new block it follows another transfer, so its log has another index there.
    ethereum.set_automine(False)
    draft, _ = signed(chain, noise, Person().address, DOLLAR, token=USDC)
    urgent = {**draft.terms, "max_fee_per_gas": 9 * GWEI, "max_priority_fee_per_gas": 9 * GWEI}
    chain.broadcast(chain.sign(replace(draft, terms=urgent), noise, sequence=0).raw)
    chain.broadcast(transaction.raw)
    ethereum.set_automine(True)
    ethereum.mine(DEPTH + 4)
    assert chain.orphaned_blocks([first.block])[0] == {first.block}
    (again,) = watcher.scan()

    receipt = ethereum.rpc("eth_getTransactionReceipt", transaction.tx_hash)
    assert [int(log["logIndex"], 16) for log in receipt["logs"]] == [1]
    assert again.block != first.block
    assert (again.tx_hash, again.position) == (first.tx_hash, first.position)
    assert watcher.scan() == []


def test_a_deposit_moved_behind_the_cursor_by_a_reorg_is_found(ethereum: EvmNode) -> None:
    chain = chain_at(ethereum)
    payer, watched = funded(ethereum, usdc_units=5 * DOLLAR), Person().address
    watcher = Watcher(chain, watched)
    ethereum.mine(4)
    _, transaction = signed(chain, payer, watched, DOLLAR, token=USDC)
    assert watcher.scan() == []
    assert watcher.cursor is not None

    ethereum.rpc("anvil_reorg", 4, [["0x" + transaction.raw.hex(), 0]])
    ethereum.mine(1)
    (found,) = watcher.scan()

    assert found.tx_hash == transaction.tx_hash
    assert found.block.number < watcher.cursor.number - 1
    assert watcher.scan() == []


def test_ether_removed_by_a_reorg_can_be_counted_again_from_its_scan_state(ethereum: EvmNode) -> None:
    chain = chain_at(ethereum)
    watched = Person().address
    ethereum.mine(4)
    watcher = Watcher(chain, watched)
    pay_from_a_contract(ethereum, {watched: GWEI})
    ethereum.mine(DEPTH)
    (first,) = watcher.scan()
    assert first.scan_state_before is not None

    ethereum.reorg(4)
    pay_from_a_contract(ethereum, {watched: GWEI})
    ethereum.mine(DEPTH + 4)
    watcher.marks[watched] = first.scan_state_before
    (again,) = watcher.scan()

    assert again.amount == first.amount
    assert again.block != first.block


def test_a_scan_state_taken_before_the_cursor_advanced_misses_no_deposit(ethereum: EvmNode) -> None:
    # Between reading the scan state and storing it, scans for other addresses continue.
    chain = chain_at(ethereum)
    payer, early, late = funded(ethereum, usdc_units=5 * DOLLAR), Person().address, Person().address
    watcher = Watcher(chain, early)
    mark = chain.scan_state(late)
    transaction = sent(chain, payer, late, DOLLAR, token=USDC)
    ethereum.mine(DEPTH + 3)
    assert watcher.scan() == []
    watcher.marks[late] = mark

    assert [each.tx_hash for each in watcher.scan()] == [transaction.tx_hash]
    assert watcher.scan() == []


def test_short_log_ranges_are_used_for_nodes_that_require_them(ethereum: EvmNode) -> None:
    payer, watched = funded(ethereum, usdc_units=5 * DOLLAR), Person().address
    with proxy(ethereum.url) as front:

        def at_most_five(calls: Calls, replies: Calls) -> Calls:
            query = calls[0]["params"][0] if calls[0]["method"] == "eth_getLogs" else None
            if query is None or int(query["toBlock"], 16) - int(query["fromBlock"], 16) < 5:
                return replies
            error = {"code": -32614, "message": "eth_getLogs is limited to a 5 range"}
            return [{"jsonrpc": "2.0", "id": calls[0]["id"], "error": error}]

        front.after = at_most_five
        chain = chain_at(ethereum, front.url)
        watcher = Watcher(chain, watched)
        transactions = [sent(chain, payer, watched, units, token=USDC) for units in (1, 2, 3)]
        ethereum.mine(20)

        def asked() -> int:
            every = [call for calls in front.requests for call in calls if call["method"] == "eth_getLogs"]
            return sum("address" in call["params"][0] for call in every)

        found = watcher.scan()
        before = asked()
        ethereum.mine(3)
        assert watcher.scan() == []

        assert [each.tx_hash for each in found] == [each.tx_hash for each in transactions]
        assert asked() == before + 1, "the endpoint's limit is remembered"


def test_a_scan_is_discarded_when_a_reorg_removes_its_block(ethereum: EvmNode) -> None:
    payer, watched = funded(ethereum, usdc_units=5 * DOLLAR), Person().address
    with proxy(ethereum.url) as front:
        chain = chain_at(ethereum, front.url)
        watcher = Watcher(chain, watched)
        sent(chain, payer, watched, DOLLAR, token=USDC)
        ethereum.mine(DEPTH)

        def replace_the_block(calls: Calls, replies: Calls) -> Reply | Calls:
            if calls[0]["method"] == "eth_getLogs":
                ethereum.reorg(3)
            return replies

        front.after = replace_the_block
        with pytest.raises(Unreachable):
            watcher.scan()


@pytest.mark.parametrize(
    "lie",
    [
        {"address": "0x" + "11" * 20},
        {"topics": ["0x" + "00" * 32]},
        {"data": "0x"},
        {"removed": True},
        {"blockNumber": "0x1"},
        {"transactionHash": "0x12"},
    ],
    ids=str,
)
def test_forged_logs_are_not_deposits(ethereum: EvmNode, lie: dict[str, object]) -> None:
    payer, watched = funded(ethereum, usdc_units=5 * DOLLAR), Person().address
    with proxy(ethereum.url) as front:
        chain = chain_at(ethereum, front.url)
        watcher = Watcher(chain, watched)
        sent(chain, payer, watched, DOLLAR, token=USDC)
        ethereum.mine(DEPTH)
        query = {"address": ethereum.deployment.usdc, "fromBlock": hex(int(str(watcher.marks[watched]["since"])) + 1)}
        (true,) = ethereum.rpc("eth_getLogs", query)
        front.after = spoil("eth_getLogs", [{**true, **lie}])
        with pytest.raises(Unreachable):
            watcher.scan()


def test_an_unknown_outflow_does_not_hide_later_deposits(ethereum: EvmNode) -> None:
    chain = chain_at(ethereum)
    payer, watched = funded(ethereum), Person().address
    ethereum.fund_eth(watched, ETHER)
    ethereum.mine(1)
    watcher = Watcher(chain, watched)
    ethereum.rpc("anvil_setBalance", watched, hex(ETHER // 2))
    ethereum.mine(DEPTH)
    assert watcher.scan() == []

    transaction = sent(chain, payer, watched, 777)
    ethereum.mine(DEPTH)

    assert [(each.tx_hash, each.amount.units) for each in watcher.scan()] == [(transaction.tx_hash, 777)]


def test_a_long_pause_loses_the_hash_but_not_the_deposit(ethereum: EvmNode) -> None:
    chain = chain_at(ethereum)
    payer, watched = funded(ethereum), Person().address
    watcher = Watcher(chain, watched)
    sent(chain, payer, watched, 777)
    ethereum.mine(300)

    (deposit,) = watcher.scan()

    assert (deposit.tx_hash, deposit.amount.units) == (None, 777)


def test_three_hundred_addresses_are_scanned_in_a_handful_of_requests(ethereum: EvmNode) -> None:
    chain = chain_at(ethereum)
    payer, lucky = funded(ethereum, usdc_units=5 * DOLLAR), Person().address
    mark = chain.scan_state(lucky)
    watched = [WatchedAddress(Person().address, mark) for _ in range(299)]
    sent(chain, payer, lucky, DOLLAR, token=USDC)
    sent(chain, payer, lucky, 777)
    ethereum.mine(DEPTH)
    with proxy(ethereum.url) as front:
        scan = chain_at(ethereum, front.url).deposits([*watched, WatchedAddress(lucky, mark)], cursor=None)

        assert sorted(each.amount.units for each in scan.deposits) == [777, DOLLAR]
        assert len(front.requests) <= 10


def test_a_scan_without_addresses_moves_only_the_cursor(ethereum: EvmNode) -> None:
    chain = chain_at(ethereum, deposit_confirmations=1)

    scan = chain.deposits([], cursor=None)

    assert scan == DepositScan(chain.head(), {}, {}, ())


@pytest.mark.parametrize(
    "answer",
    [
        json_reply({"jsonrpc": "2.0", "id": 0, "error": {"code": -32005, "message": "query returned more than 10000"}}),
        json_reply({"jsonrpc": "2.0", "id": 0, "result": [{"topics": [1, 2, {}], "address": "0x"}, None, 7]}),
        json_reply({"jsonrpc": "2.0", "id": 0, "result": "0x"}),
        Reply(b"[" * 100_000, status=200),
        Reply(b"", status=503),
        Reply(b"too many requests", status=429),
    ],
    ids=["too many", "of another form", "no list", "malformed", "unavailable", "limited"],
)
def test_a_flood_of_foreign_tokens_hides_no_deposit(ethereum: EvmNode, answer: Reply) -> None:
    payer, watched = funded(ethereum, usdc_units=5 * DOLLAR), Person().address
    token = ForeignErc20.deploy(ethereum)
    with proxy(ethereum.url) as front:

        def flooded(calls: Calls) -> Reply | None:
            asks_for_any = calls[0]["method"] == "eth_getLogs" and "address" not in calls[0]["params"][0]
            return answer if asks_for_any else None

        chain = chain_at(ethereum, front.url)
        watcher = Watcher(chain, watched)
        front.before = flooded
        sent(chain, payer, watched, DOLLAR, token=USDC)
        token.send(watched, 5)
        ethereum.mine(DEPTH)
        assert [each.amount.units for each in watcher.scan()] == [DOLLAR]
        assert chain.foreign_tokens(watched, watcher.marks[watched]) == []


def test_many_foreign_tokens_leave_the_newest_hundred_and_are_read_in_few_requests(ethereum: EvmNode) -> None:
    watched, others = Person().address, [Person().address for _ in range(600)]
    made = [ForeignErc20.deploy(ethereum) for _ in range(3)]
    with proxy(ethereum.url) as front:
        chain = chain_at(ethereum, front.url)
        watcher = Watcher(chain, watched, *others[:1])
        known = " ".join(to_checksum_address(each) for each in others[:99])
        watcher.marks[watched] = {**watcher.marks[watched], "contracts": known}
        watcher.marks |= dict.fromkeys(others, watcher.marks[others[0]])
        for each in made:
            each.send(watched, 5)
        ethereum.mine(DEPTH)
        watcher.scan()
        contracts = str(watcher.marks[watched]["contracts"]).split()
        assert contracts == [*known.split()[2:], *(each.address for each in made)]
        front.requests.clear()
        assert {each.amount.token.contract for each in chain.foreign_tokens(watched, watcher.marks[watched])} == {
            each.address for each in made
        }
        assert len(front.requests) <= 4
