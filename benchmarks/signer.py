"""What a signer process costs: recording and signing of a transfer, with and without it, in alternating rounds.

The processor time of the web process and of the signer together; what both do before and after is the same.
"""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flask import Flask

from app.adapters.evm.send.transactions import FeeTerms, GasPrice
from app.config import Settings
from app.core.chains import USDC, ChainName
from app.core.identifiers import new_id
from app.core.money import TokenAmount
from app.extensions import db
from app.factory import create_app
from app.idempotency.service import Claim
from app.ports.chain import TransactionDraft, TransferIntent
from app.state import app_state
from app.wallets.core import custody, wallets
from app.wallets.core.lifecycle import TransactionType
from app.wallets.transactions import pipeline
from app.wallets.transactions.pipeline import Movement
from benchmarks import stack, thresholds
from benchmarks.stack import Infrastructure
from benchmarks.thresholds import Threshold

_MOST_MS = 1.0
_PER_ROUND = 25
_START_SECONDS = 60
_RECIPIENT = "0x00000000000000000000000000000000c0ffEE00"
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class _Site:
    app: Flask
    wallet_ids: Iterator[str]
    spent: Callable[[], float]


def measure(infrastructure: Infrastructure, *, quick: bool) -> list[Threshold]:
    """Time transfers with a signer process and without, each on its own database."""
    rounds = 4 if quick else 24
    with _signer(infrastructure) as (environment, pid):
        alone = infrastructure.migrated("without_signer", LOG_LEVEL="WARNING")
        sites = [_site(alone, rounds, None), _site(environment, rounds, pid)]
        thresholds.print_heading(f"A transfer with and without a signer process, {rounds} rounds of {_PER_ROUND}")
        spent: list[list[float]] = [[], []]
        for number in range(rounds):
            for place in (0, 1) if number % 2 else (1, 0):
                each = _timed(sites[place])
                if number:  # the first round warms caches up
                    spent[place].append(each)
        for site in sites:
            with site.app.app_context():
                db.engine.dispose()
    without, with_signer = (sum(each) / len(each) for each in spent)
    thresholds.print_note(f"{without:.2f} ms without, {with_signer:.2f} ms with it: {with_signer - without:+.2f} ms")
    return [thresholds.at_most("a transfer with a signer process, more by", with_signer - without, _MOST_MS, "ms")]


@contextmanager
def _signer(made: Infrastructure) -> Iterator[tuple[dict[str, str], int]]:
    folder = made.folder / "signer"
    folder.mkdir()
    (folder / "wallet.key").write_bytes(secrets.token_bytes(32))
    socket_path = folder / "signer.sock"
    environment = made.migrated("with_signer", LOG_LEVEL="WARNING", SIGNER_SOCKET=str(socket_path))
    own = {
        "WALLET_ENCRYPTION_KEYS": f"w1:file://{folder}/wallet.key",
        "SIGNER_DATABASE_URL": made.database.create_database("signed"),
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "signer"], env={**environment, **own}, cwd=stack.ROOT, stdout=log, stderr=log
        )
    try:
        _wait_for(socket_path, process, folder / "log")
        yield environment, process.pid
    finally:
        process.terminate()
        process.wait(20)


def _wait_for(path: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not path.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the signer did not start:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.1)


def _site(environment: dict[str, str], rounds: int, signer: int | None) -> _Site:
    app = create_app(Settings(**stack.settings_of(environment)))
    made = []
    with app.app_context():
        client = app.test_client()
        for _ in range(rounds):
            wallet = client.post("/v1/agents/register", json={}).get_json()
            free = dict.fromkeys(("daily", "weekly", "monthly", "per_tx"), 10**6)
            limits = {f"{name}_limit_usd": usd for name, usd in free.items()}
            path, key = f"/v1/wallets/{wallet['wallet']['id']}/controls", {"X-API-Key": wallet["apiKey"]}
            client.put(path, json=limits, headers=key)
            made.append(wallet["wallet"]["id"])

    def spent() -> float:
        return time.process_time() + (0.0 if signer is None else _processor_seconds(signer))

    return _Site(app, iter(made), spent)


def _processor_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process, more exactly than in ticks."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 10**9


def _timed(site: _Site) -> float:
    """Return milliseconds of processor time for each of some transfers of a new wallet."""
    with site.app.app_context():
        wallet = wallets.get_with_controls(next(site.wallet_ids))
        chain = app_state().ports.chains[ChainName.BASE]
        sender = wallet.address_on(ChainName.BASE)
        amount = TokenAmount(1000, USDC)
        draft = TransactionDraft(
            TransferIntent(sender, _RECIPIENT, amount), fee_units=1, native_units=10**18, token_units=10**12,
            sequence=0, terms=FeeTerms(80_000, GasPrice(10**9, 1), 0).as_terms(),
        )  # fmt: skip
        movement = Movement(
            wallet=wallet, type=TransactionType.TRANSFER, chain=ChainName.BASE, recipient=_RECIPIENT,
            payee=_RECIPIENT, amount=amount, value_nanos=1_000_000,
        )  # fmt: skip
        before = site.spent()
        for _ in range(_PER_ROUND):
            signer = custody.signer_of(wallet.id, wallet.addresses)
            pipeline._record_signed(  # noqa: SLF001 - the part that differs
                movement, draft, lambda _session, drafted, key, nonce: chain.sign(drafted, key, sequence=nonce),
                signer, movement.intent(new_id()), claim=Claim.none(),
            )  # fmt: skip
        return (site.spent() - before) / _PER_ROUND * 1000
