"""Records of movements compared with the chains: transactions that landed, and the balances of all wallets."""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import kwargs_row

from app.core.chains import TOKENS_BY_SYMBOL, ChainName, Family
from app.ports.chain import Chain
from sandbox.evm.rpc import NodeClient

_MOVEMENTS = """
    SELECT t.*, b.stage, b.destination_chain, b.received_units, b.refund_units, w.evm_address, w.solana_address,
        s.status AS source_status
    FROM transactions t JOIN wallets w ON w.id = t.wallet_id LEFT JOIN bridges b ON b.id = t.id
        LEFT JOIN transactions s ON s.bridge_id = b.id AND s.leg = 'source'
    WHERE t.type IN ('transfer', 'withdrawal', 'swap')
"""
_ATTEMPTS = "SELECT chain, tx_hash, transaction_id, purpose FROM signed_attempts"
_ARRIVALS = "SELECT arrival_hash FROM bridges WHERE arrival_hash IS NOT NULL"
_PAYMENTS = """
    SELECT chain, recipient, sum(units) AS units FROM payments
    WHERE signed AND status NOT IN ('void', 'lost', 'settling') GROUP BY chain, recipient
"""
_TOKEN_ACCOUNT_LAMPORTS = 2_039_280
_DELIVERY_LAMPORTS = 953_520
"""What a delivery by CCTP pays for the account of its used nonce."""
_SIGNATURES = 1000


class MissingBlock(Exception):
    """A node does not return a block below its newest one."""


_Flows = Counter[tuple[str, str, str]]
"""Base units by chain, address and token."""


def compare(
    connection: psycopg.Connection[Any], chains: Mapping[ChainName, Chain], urls: Mapping[ChainName, str], faucet: Path
) -> Iterator[str]:
    """Yield a sentence for each disagreement; `faucet` is the faucet's ledger, the source of all deposits."""
    with connection.cursor(row_factory=kwargs_row(SimpleNamespace)) as cursor:
        movements = cursor.execute(_MOVEMENTS).fetchall()
        attempts = {(row.chain, row.tx_hash): row for row in cursor.execute(_ATTEMPTS)}
        arrivals = {row.arrival_hash for row in cursor.execute(_ARRIVALS)}
        payments = cursor.execute(_PAYMENTS).fetchall()
        wallets = cursor.execute("SELECT evm_address, solana_address FROM wallets").fetchall()
    own = {address for wallet in wallets for address in (wallet.evm_address, wallet.solana_address)}
    landed: dict[tuple[str, str], bool] = {}
    for name, url in urls.items():
        found = _landed_evm(url, own) if name.family is Family.EVM else _landed_solana(url, wallets)
        landed |= {(name.value, tx_hash): succeeded for tx_hash, succeeded in found}
    yield from find_unequal_transactions(movements, attempts, arrivals, landed)
    flows = flows_of(movements)
    for payment in payments:
        flows[payment.chain, payment.recipient, "USDC"] += int(payment.units)
    _add_deposits(flows, faucet)
    for row in movements:
        if (row.chain, row.leg, row.status) == ("solana", "destination", "confirmed"):
            flows["solana", row.solana_address, "SOL"] -= _DELIVERY_LAMPORTS
    yield from _unequal_balances(flows, chains, own)


def save(connection: psycopg.Connection[Any], folder: Path) -> None:
    """Write the rows of all movements to a folder, as JSON by line."""
    for table in ("transactions", "signed_attempts", "bridges", "payments"):
        query = sql.SQL("SELECT to_jsonb(t)::text FROM {} t").format(sql.Identifier(table))
        (folder / f"{table}.jsonl").write_text("".join(f"{row[0]}\n" for row in connection.execute(query)))


def _landed_evm(url: str, own: set[str]) -> Iterator[tuple[str, bool]]:
    """Yield the hash of each transaction of an own address, and whether it succeeded."""
    node, senders = NodeClient(url), {address.lower() for address in own}
    for number in range(int(node.call("eth_blockNumber"), 16) + 1):
        block = node.call("eth_getBlockByNumber", hex(number), True)  # noqa: FBT003 - the method's own parameter
        if block is None:
            header = node.call("eth_getBlockByNumber", hex(number), False)  # noqa: FBT003
            raise MissingBlock(f"{url} has no block {number} with its transactions; without them: {header}")
        for transaction in block["transactions"]:
            if transaction["from"].lower() in senders:
                receipt = node.call("eth_getTransactionReceipt", transaction["hash"])
                yield transaction["hash"], receipt["status"] == "0x1"


def _landed_solana(url: str, wallets: list[Any]) -> Iterator[tuple[str, bool]]:
    node, seen = NodeClient(url), set()
    own = {wallet.solana_address for wallet in wallets}
    for address in own:
        before: str | None = None
        while page := node.call("getSignaturesForAddress", address, {"before": before, "commitment": "confirmed"}):
            for entry in page:
                if entry["signature"] not in seen:
                    seen.add(entry["signature"])
                    options = {"maxSupportedTransactionVersion": 0, "commitment": "confirmed"}
                    shown = node.call("getTransaction", entry["signature"], options)
                    if shown["transaction"]["message"]["accountKeys"][0] in own:
                        yield entry["signature"], entry["err"] is None
            if len(page) < _SIGNATURES:
                break
            before = page[-1]["signature"]


def find_unequal_transactions(
    movements: list[Any],
    attempts: Mapping[tuple[str, str], Any],
    arrivals: set[str],
    landed: Mapping[tuple[str, str], bool],
) -> Iterator[str]:
    """Yield a sentence for each transaction that landed without a record, twice, or against its record."""
    by_movement: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for key in landed:
        if key in attempts:
            by_movement[attempts[key].transaction_id].append(key)
        elif key[1] not in arrivals:
            yield f"{key[1]} landed on {key[0]} and has no record"
    for row in movements:
        if row.kind == "bridge":
            continue
        keys = by_movement.pop(row.id, [])
        paid = [key for key in keys if landed[key] and attempts[key].purpose == "payment"]
        if len(keys) > 1:
            yield f"{row.type} {row.id} landed {len(keys)} times"
        if (row.status == "confirmed") != bool(paid) or (paid and paid[0][1] != row.tx_hash):
            yield f"{row.type} {row.id} is {row.status} with {row.tx_hash}, and what landed is {keys}"
    for identifier in by_movement:
        yield f"{identifier} landed and is no movement"


def flows_of(movements: list[Any]) -> _Flows:
    """Return what the records add to and take from each address."""
    flows: _Flows = Counter()
    for row in movements:
        changes = _bridge_changes(row) if row.kind == "bridge" else _changes(row)
        for chain, address, symbol, units in changes:
            # On chains with nonces, `native_out_units` covers fees and what the sender's native balance changed by.
            if symbol is not None:
                flows[chain, address, symbol] += int(units or 0)
    return flows


def _changes(row: Any) -> Iterator[tuple[str, str, str | None, Any]]:
    sender, native = _address(row, row.chain), _native(row.chain)
    yield row.chain, sender, native, -int(row.native_out_units or row.fee_units or 0)
    if row.status != "confirmed" or row.kind == "bridge_leg":
        return
    yield row.chain, sender, _uncovered(row, row.currency), -row.amount_units
    if row.output_currency is None:
        yield row.chain, row.to_address, row.currency, row.amount_units
    else:
        yield row.chain, sender, _uncovered(row, row.output_currency), row.output_units


def _bridge_changes(row: Any) -> Iterator[tuple[str, str, str | None, Any]]:
    if row.source_status == "confirmed":
        yield row.chain, _address(row, row.chain), _uncovered(row, row.currency), -row.amount_units
    yield row.chain, _address(row, row.chain), row.currency, row.refund_units
    if row.stage == "arrived":
        yield row.destination_chain, _address(row, row.destination_chain), row.currency, row.received_units


def _address(row: Any, chain: str) -> str:
    address: str = row.solana_address if chain == ChainName.SOLANA else row.evm_address
    return address


def _native(chain: str) -> str:
    return "SOL" if chain == ChainName.SOLANA else "ETH"


def _uncovered(row: Any, symbol: str) -> str | None:
    """Return the symbol unless the row's `native_out_units` contain the change."""
    return None if row.chain != ChainName.SOLANA and symbol == "ETH" else symbol


def _add_deposits(flows: _Flows, faucet: Path) -> None:
    ledger = sqlite3.connect(f"{faucet.as_uri()}?mode=ro", uri=True)
    for chain, address, currency, units in ledger.execute(
        "SELECT chain, address, currency, units FROM payments WHERE tx_hash IS NOT NULL"
    ):
        flows[chain, address, currency] += int(units)
    ledger.close()


def _unequal_balances(flows: _Flows, chains: Mapping[ChainName, Chain], own: set[str]) -> Iterator[str]:
    for chain, address in sorted({(chain, address) for chain, address, _ in flows if address in own}):
        balances = chains[ChainName(chain)].balances(address)
        for symbol in ("USDC", _native(chain)):
            expected = flows[chain, address, symbol]
            missing = expected - balances.of(TOKENS_BY_SYMBOL[symbol]).units
            # Senders pay the rent of token accounts that they create, which is no part of a record.
            if missing and not (symbol == "SOL" and missing > 0 and missing % _TOKEN_ACCOUNT_LAMPORTS == 0):
                yield f"{address} on {chain}: {missing} units of {symbol} less than the records imply ({expected})"
