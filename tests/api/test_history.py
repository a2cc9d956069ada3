"""The history of a wallet: order, filters, pages, single transactions, and isolation from other wallets."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from flask.testing import FlaskClient

from app.core import clock, identifiers
from app.db.unit_of_work import unit_of_work
from app.factory import create_app
from app.observability import telemetry
from app.wallets.core import lifecycle
from app.wallets.core.lifecycle import MovementStatus, TransactionType
from app.wallets.core.models import SignedAttempt, Transaction
from tests.support.agents import Agent, register
from tests.support.applications import settings_for
from tests.support.chains import RECIPIENT
from tests.support.ledger import statements
from tests.support.movements import count_as

_HASH = "0x" + "ab" * 32


def record(
    wallet_id: str,
    *,
    at: datetime | None = None,
    type_: TransactionType = TransactionType.TRANSFER,
    chain: str = "base",
    status: MovementStatus = MovementStatus.PENDING,
    tx_hash: str | None = None,
    hashes: tuple[str, ...] = (),
    **values: Any,
) -> str:
    """Record a transaction with a status."""
    transaction_id, now = identifiers.new_id(), at or clock.now()
    row = {"amount_units": 1_500_000, "currency": "USDC", "cost_nanos": 1_500_000_000, **values}
    with unit_of_work() as session:
        lifecycle.record(
            session, Transaction(
                id=transaction_id, wallet_id=wallet_id, type=type_.value, chain=chain, to_address=RECIPIENT,
                created_at=now, checks=0, tx_hash=tx_hash, nonce=7 if hashes else None, **row,
            ),
            status=MovementStatus.PENDING,
        )  # fmt: skip
        for each in hashes:
            session.add(
                SignedAttempt(
                    transaction_id=transaction_id, chain=chain, tx_hash=each, purpose="payment", raw=b"", terms={},
                    sent_at=now, created_at=now,
                )
            )  # fmt: skip
            session.flush()
    if status is not MovementStatus.PENDING:
        reason = "reverted" if status is MovementStatus.FAILED else None
        with unit_of_work() as session:
            lifecycle.TRANSACTIONS.move(session, transaction_id, MovementStatus.PENDING, status, reason=reason)
    with unit_of_work() as session:
        count_as(session, transaction_id, status)
    return transaction_id


def page(agent: Agent, **query: object) -> dict[str, Any]:
    answer = agent.get(f"{agent.wallet_url}/transactions", **query)
    assert answer.status_code == 200, answer.get_data(as_text=True)
    body: dict[str, Any] = answer.get_json()
    return body


def ids(body: dict[str, Any]) -> list[str]:
    return [row["id"] for row in body["transactions"]]


def test_a_new_wallet_has_an_empty_history(agent: Agent) -> None:
    assert page(agent) == {"transactions": [], "pagination": {"total": 0, "limit": 50, "offset": 0, "has_more": False}}


def test_a_transaction_has_the_documented_fields_alone_and_in_the_list(agent: Agent) -> None:
    transaction_id = record(agent.wallet_id, from_address=agent.address, status=MovementStatus.CONFIRMED, tx_hash=_HASH)
    (listed,) = page(agent)["transactions"]
    single = agent.transaction(transaction_id)
    events = single.pop("events")
    assert single == listed
    created_at = listed.pop("created_at")
    assert created_at.endswith("Z")
    assert listed == {
        "id": transaction_id, "wallet_id": agent.wallet_id, "type": "transfer", "kind": None, "chain": "base",
        "from_address": agent.address, "to_address": RECIPIENT, "amount": "1.5", "currency": "USDC",
        "tx_hash": _HASH, "previous_hashes": [], "status": "confirmed", "error": None, "cost_usd": 1.5,
        "gas_fee": None, "explorer_url": None, "confirmed_at": None,
    }  # fmt: skip
    assert [(event["status"], event["reason"]) for event in events] == [("pending", None), ("confirmed", None)]
    assert all(set(event) == {"status", "reason", "at"} for event in events)
    assert events[0]["at"] == created_at <= events[1]["at"]


def test_pages_are_newest_first_and_neither_repeat_nor_skip(agent: Agent) -> None:
    start = clock.now()
    # Several at the same instant: their order must be the same on every page.
    made = [record(agent.wallet_id, at=start + timedelta(seconds=number // 3)) for number in range(11)]
    whole = ids(page(agent))
    assert sorted(whole) == sorted(made)
    assert [made.index(each) // 3 for each in whole] == [3, 3, 2, 2, 2, 1, 1, 1, 0, 0, 0]
    paged: list[str] = []
    for offset in range(0, 12, 4):
        body = page(agent, limit=4, offset=offset)
        assert body["pagination"] == {"total": 11, "limit": 4, "offset": offset, "has_more": offset < 7}
        paged += ids(body)
    assert paged == whole
    assert page(agent, limit=201)["pagination"]["limit"] == 200
    assert ids(page(agent, offset=11)) == []


def test_a_page_after_an_entry_repeats_and_skips_nothing_that_was_added_meanwhile(
    agent: Agent, client: FlaskClient
) -> None:
    start = clock.now()
    made = [record(agent.wallet_id, at=start + timedelta(seconds=number // 3)) for number in range(11)]
    whole = ids(page(agent))
    first = ids(page(agent, limit=4))
    record(agent.wallet_id, at=start + timedelta(seconds=60))
    body = page(agent, limit=4, after=first[-1])
    assert ids(body) == whole[4:8]
    assert body["pagination"] == {"total": 12, "limit": 4, "offset": 5, "has_more": True}
    last = page(agent, limit=4, after=whole[7], status="pending")
    assert (ids(last), last["pagination"]["has_more"]) == (whole[8:], False)
    assert len(made) == len(whole)
    other = record(register(client).wallet_id)
    wrong: dict[str, Any]
    for wrong in ({"after": other}, {"after": "1"}, {"after": first[0], "offset": 1}):
        answer = agent.get(f"{agent.wallet_url}/transactions", **wrong)
        body = answer.get_json()
        assert (answer.status_code, body["code"], [*body["details"]["fields"]]) == (400, "INVALID_INPUT", ["after"])


def test_filters_narrow_the_list_and_its_total(agent: Agent) -> None:
    made = {
        (type_, chain, status): record(agent.wallet_id, type_=type_, chain=chain, status=status)
        for type_ in (TransactionType.TRANSFER, TransactionType.WITHDRAWAL, TransactionType.FUNDING)
        for chain in ("base", "ethereum")
        for status in MovementStatus
    }
    for query in (
        {"status": "pending"}, {"chain": "ethereum"}, {"type": "withdrawal"}, {"status": "failed", "chain": "base"},
        {"type": "funding", "status": "confirmed", "chain": "base"},
    ):  # fmt: skip
        wanted = {made[each] for each in made if set(query.values()) <= {str(part) for part in each}}
        body = page(agent, **query)
        assert set(ids(body)) == wanted
        assert body["pagination"]["total"] == len(wanted)
        first = page(agent, limit=1, **query)
        assert (len(first["transactions"]), first["pagination"]["total"]) == (1, len(wanted))
        assert first["pagination"]["has_more"] is (len(wanted) > 1)
    for nothing in ({"chain": "solana"}, {"type": "swap"}, {"type": "trading_query"}, {"type": "trading_order"}):
        assert page(agent, **nothing)["pagination"]["total"] == 0
    assert page(agent)["pagination"]["total"] == len(made) == 18


def test_what_a_request_caused_is_found_by_its_id(agent: Agent) -> None:
    caused = identifiers.new_id()
    with telemetry.caused_by(caused):
        wanted = record(agent.wallet_id)
    record(agent.wallet_id)
    assert ids(page(agent, request_id=caused)) == [wanted]
    assert ids(page(agent, request_id=caused.upper())) == [wanted]
    assert ids(page(agent, request_id=identifiers.new_id())) == []


def test_a_period_includes_its_first_instant_and_excludes_its_last(agent: Agent) -> None:
    start = datetime(2026, 11, 1, 12, tzinfo=UTC)
    made = [record(agent.wallet_id, at=start + timedelta(days=day)) for day in range(4)]
    instants = [(start + timedelta(days=day)).isoformat() for day in range(4)]
    body = page(agent, created_after=instants[1], created_before=instants[3])
    assert (ids(body), body["pagination"]["total"]) == ([made[2], made[1]], 2)
    assert ids(page(agent, created_after=instants[3])) == [made[3]]
    assert ids(page(agent, created_before=instants[0])) == []
    after = page(agent, created_before=instants[3], after=made[2], status="pending")
    assert (ids(after), after["pagination"]) == (
        [made[1], made[0]], {"total": 3, "limit": 50, "offset": 1, "has_more": False}
    )  # fmt: skip


def test_a_page_as_csv_has_the_same_values_as_in_json(agent: Agent) -> None:
    record(agent.wallet_id, hashes=(_HASH,), tx_hash=_HASH)
    record(agent.wallet_id, type_=TransactionType.SWAP, output_currency="ETH", output_quoted_units=10**16)
    listed = page(agent)["transactions"]
    url = f"{agent.wallet_url}/transactions"
    answer = agent.client.get(url, headers=agent.headers(Accept="text/csv"))
    assert answer.content_type == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(answer.text, newline="")))
    assert [(row["id"], row["amount"], row["output_amount"]) for row in rows] == [
        (each["id"], each["amount"], each.get("output_amount", "")) for each in listed
    ]
    assert rows[0]["previous_hashes"] == "[]"
    assert rows[0]["legs"] == ""


def test_the_total_without_filters_counts_all_transactions(agent: Agent) -> None:
    for status in MovementStatus:
        record(agent.wallet_id, status=status)
    unfiltered = page(agent)["pagination"]["total"]
    counted = sum(page(agent, status=status.value)["pagination"]["total"] for status in MovementStatus)
    assert unfiltered == counted == agent.get(agent.wallet_url).get_json()["transaction_count"] == 3


def test_an_unknown_filter_value_is_refused(agent: Agent) -> None:
    for field, values in {
        "status": ("", "PENDING", "done", "pending,failed", "null"),
        "chain": ("", "Base", "polygon", "0"),
        "type": ("", "Transfer", "bridge", "topup"),
        "request_id": ("", "1", "x" * 36),
    }.items():
        for value in values:
            answer = agent.get(f"{agent.wallet_url}/transactions", **{field: value})
            body = answer.get_json()
            assert (answer.status_code, body["code"]) == (400, "INVALID_INPUT"), (field, value)
            assert list(body["details"]["fields"]) == [field]


def test_transactions_of_other_wallets_are_not_found(agent: Agent) -> None:
    other_agent = register(agent.client)
    second = agent.post("/v1/wallets", {}).get_json()["id"]
    mine, other, theirs = record(agent.wallet_id), record(second), record(other_agent.wallet_id)
    assert ids(page(agent)) == [mine]
    for wanted in (other, theirs, identifiers.new_id(), "x", "%00", mine + "0", mine[:-1], "{" + mine + "}"):
        answer = agent.get(f"{agent.wallet_url}/transactions/{wanted}")
        assert (answer.status_code, answer.get_json()["code"]) == (404, "NOT_FOUND"), wanted
    assert other_agent.get(f"{agent.wallet_url}/transactions/{mine}").status_code == 404
    assert agent.transaction(mine)["id"] == mine


def test_replaced_hashes_are_listed_along_with_the_current_one(agent: Agent) -> None:
    hashes = tuple("0x" + digit * 64 for digit in "123")
    transaction_id = record(agent.wallet_id, hashes=hashes, tx_hash=hashes[1])
    plain = record(agent.wallet_id, tx_hash=_HASH, hashes=(_HASH,))
    rows = {row["id"]: row for row in page(agent)["transactions"]}
    for row in (rows[transaction_id], agent.transaction(transaction_id)):
        assert (row["tx_hash"], row["previous_hashes"]) == (hashes[1], [hashes[0], hashes[2]])
    assert rows[plain]["previous_hashes"] == agent.transaction(plain)["previous_hashes"] == []


def test_amounts_and_values_keep_full_precision(agent: Agent) -> None:
    record(agent.wallet_id, currency="ETH", amount_units=10**18 * 123_456_789 + 1, cost_nanos=0)
    record(agent.wallet_id, currency="ETH", amount_units=2**255 - 1, cost_nanos=9 * 10**18)
    large, exact = page(agent)["transactions"]
    assert exact["amount"] == "123456789.000000000000000001"
    assert large["amount"].replace(".", "") == str(2**255 - 1)
    assert large["cost_usd"] == 9_000_000_000


@pytest.mark.parametrize(
    ("network", "pages"),
    [
        ("mainnet", {"base": "https://basescan.org/tx/", "ethereum": "https://etherscan.io/tx/"}),
        ("testnet", {"base": "https://sepolia.basescan.org/tx/", "ethereum": "https://sepolia.etherscan.io/tx/"}),
    ],
)
def test_on_public_networks_a_transaction_links_to_a_block_explorer(
    network: str, pages: dict[str, str], sqlite_url: str
) -> None:
    # The real wiring: it opens no connection before a chain is read.
    app = create_app(settings_for(sqlite_url, network=network, registration_rate_limit=None))
    with app.app_context():
        agent = register(app.test_client())
        for chain, prefix in pages.items():
            landed = record(agent.wallet_id, chain=chain, tx_hash=_HASH)
            asked = record(agent.wallet_id, chain=chain, type_=TransactionType.FUNDING)
            assert agent.transaction(landed)["explorer_url"] == prefix + _HASH
            assert agent.transaction(asked)["explorer_url"] is None


def test_a_long_history_is_read_in_a_fixed_number_of_queries(agent: Agent) -> None:
    counts = []
    for _ in range(2):
        for _ in range(6):
            record(agent.wallet_id, hashes=(identifiers.new_id(),))
        with statements() as seen:
            page(agent)
        counts.append(len(seen))
    assert counts[0] == counts[1]
