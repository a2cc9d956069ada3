"""The chain's state in one SQLite file, written with every transaction, so that a kill loses none.

One process at a time: the file is locked while a node uses it.
"""

import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from solders.account import Account
from solders.pubkey import Pubkey

from solana_node.history import TransactionRecord

_SCHEMA = """
    create table if not exists meta (name text primary key, value text not null);
    create table if not exists account (
        address text primary key, lamports text not null, owner text not null,
        executable integer not null, data blob not null
    );
    create table if not exists landed (position integer primary key, record text not null);
"""


@dataclass(frozen=True, slots=True)
class SavedChain:
    """The content of a state file."""

    seed: bytes
    slot: int
    unix_seconds: float
    """Time of that slot."""
    accounts: dict[str, Account]
    transactions: list[TransactionRecord]


class ChainStorage:
    """Storage of a chain in a file; nothing is durable before `commit`."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(path, timeout=0, check_same_thread=False)
        try:
            # Two nodes on one file would mix their histories.
            self._database.execute("pragma locking_mode = exclusive")
            # Write-ahead logging without a sync per commit survives a kill of the process.
            self._database.execute("pragma journal_mode = wal")
            self._database.execute("pragma synchronous = normal")
            self._database.executescript(_SCHEMA)
        except sqlite3.OperationalError as error:
            self._database.close()
            raise RuntimeError(f"cannot use the state file {path}: {error}") from error

    def load(self) -> SavedChain | None:
        """Return the saved chain; None for a new file."""
        meta = dict(self._database.execute("select name, value from meta"))
        if not meta:
            return None
        accounts = {
            address: Account(int(lamports), data, Pubkey.from_string(owner), executable=bool(executable))
            for address, lamports, owner, executable, data in self._database.execute(
                "select address, lamports, owner, executable, data from account order by rowid"
            )
        }
        records = self._database.execute("select record from landed order by position")
        return SavedChain(
            seed=bytes.fromhex(meta["seed"]),
            slot=int(meta["slot"]),
            unix_seconds=float(meta["unix_seconds"]),
            accounts=accounts,
            transactions=[TransactionRecord(**json.loads(record)) for (record,) in records],
        )

    def put_account(self, address: str, account: Account | None) -> None:
        """Store an account's newest state; None removes it."""
        if account is None:
            self._database.execute("delete from account where address = ?", (address,))
            return
        self._database.execute(
            "insert or replace into account values (?, ?, ?, ?, ?)",
            (address, str(account.lamports), str(account.owner), account.executable, bytes(account.data)),
        )

    def add_transaction(self, record: TransactionRecord) -> None:
        """Append a landed transaction."""
        self._database.execute("insert into landed (record) values (?)", (json.dumps(record.to_json()),))

    def commit(self, *, seed: bytes, slot: int, unix_seconds: float) -> None:
        """Commit everything written so far, with its slot."""
        rows = {"seed": seed.hex(), "slot": str(slot), "unix_seconds": str(unix_seconds)}
        self._database.executemany("insert or replace into meta values (?, ?)", rows.items())
        self._database.commit()

    def close(self) -> None:
        """Release the file."""
        self._database.close()
