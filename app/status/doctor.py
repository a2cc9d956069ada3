"""`flask doctor`: looks at everything that the service depends on, and says what to mend.

It changes nothing. What it finds is told with the place in the settings, never with a value that may hold a key.
"""

from __future__ import annotations

import functools
import itertools
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

import click
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from flask import current_app
from flask.cli import with_appcontext
from sqlalchemy import func, select, text
from sqlalchemy.exc import SQLAlchemyError

from app.config import GOOD_SECRET, Network, Settings
from app.core import clock, heartbeats, logs
from app.core.chains import TOKENS_BY_SYMBOL
from app.core.heartbeats import Heart
from app.core.unit_of_work import reading
from app.extensions import db
from app.gateway import providers
from app.payments import readiness, treasury
from app.ports import provider
from app.ports.chain import Chain
from app.ports.errors import PortError
from app.wallets import backlog, custody, unrecorded

_SAMPLE = 5
_FEW_SUBMISSIONS = 20
_FAR_BEHIND = 20
_SKEWED_SECONDS = 5
_OLD_SECONDS = 3600
_FRESH_SECONDS = 60
_MANY_OVERTAKEN = 20


class Level(StrEnum):
    """How bad a finding is; only FAIL makes the command fail."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found about a part, and what mends it."""

    level: Level
    part: str
    said: str
    mend: str = ""


@click.command("doctor")
@with_appcontext
def doctor() -> None:
    """Look at settings, database, Redis, workers, chains, contracts, prices and proxies, and say what to mend.

    Ends with 1 if something is broken. Changes nothing.
    """
    logs.aside()
    worst = Level.OK
    for finding in examine():
        click.echo(f"{finding.level.value:4}  {finding.part}: {finding.said}")
        if finding.mend:
            click.echo(f"      -> {finding.mend}")
        if finding.level is Level.FAIL:
            worst = Level.FAIL
    if worst is Level.FAIL:
        raise SystemExit(1)


def examine() -> Iterator[Finding]:
    """Yield what is found, part by part."""
    yield from _guarded("settings", lambda: _settings(provider.settings()))
    yield from _guarded("database", _in_the_database)
    yield from _guarded("redis", _redis)
    for chain in provider.current().chains.values():
        yield from _guarded(chain.name.value, functools.partial(_chain, chain))
        yield from _guarded(chain.name.value, functools.partial(_unrecorded, chain))
    yield from _guarded("prices", _prices)
    yield from _guarded("payments", _settlement)
    yield from _guarded("upstreams", _upstreams)


def _guarded(part: str, look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield what a look finds; a look that fails is a finding like others, and the rest is looked at all the same."""
    found: list[Finding] = []
    try:
        for finding in look():
            found.append(finding)  # noqa: PERF402 - what was found before a failure counts
    except SQLAlchemyError as error:
        found.append(
            Finding(Level.FAIL, part, f"it does not answer ({type(error).__name__})", "see DATABASE_URL")
        )
    except Exception as error:
        # Its text may quote an address with a key; its class and place say enough.
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{type(error).__name__}, {Path(place.filename).name}:{place.lineno}"
        found.append(
            Finding(Level.FAIL, part, f"looking at it failed ({where})", "this is a defect: report it")
        )
    yield from found


def _in_the_database() -> Iterator[Finding]:
    with reading():
        yield from _database()


def _settings(settings: Settings) -> Iterator[Finding]:
    yield Finding(Level.OK, "settings", f"network {settings.network.value}, {settings.public_url}")
    if settings.is_sandbox:
        if urlsplit(settings.public_url).hostname not in ("127.0.0.1", "localhost", "::1"):
            yield Finding(
                Level.WARN, "settings", "the sandbox is served under a public address",
                "set NETWORK to testnet or mainnet: its money is not real, and its guards are down",
            )  # fmt: skip
        return
    for wrong, level, said, mend in (
        (not settings.base_url.startswith("https://"), Level.FAIL,
         "BASE_URL is no https:// address", "callers send keys and codes to it"),
        (settings.allow_private_upstreams, Level.FAIL,
         "ALLOW_PRIVATE_UPSTREAMS lets services of strangers lead inside", "take it away"),
        (len(settings.secret_key.get_secret_value()) < GOOD_SECRET, Level.FAIL,
         f"SECRET_KEY is shorter than {GOOD_SECRET} characters", "docs/configuration.md says how to make one"),
        ("," in settings.secret_key.get_secret_value(), Level.WARN,
         "SECRET_KEY holds a comma", "it could not stand among SECRET_KEY_FALLBACKS, so replace it early"),
        (bool(settings.price_overrides), Level.WARN,
         "PRICE_OVERRIDES fixes prices", "limits count in dollars: take it away"),
        (not settings.registration_rate_limit, Level.WARN,
         "REGISTRATION_RATE_LIMIT is off", "anybody can register without end"),
        (settings.grant_budget_usd_per_day is None, Level.WARN,
         "GRANT_BUDGET_USD_PER_DAY is off", "anybody can have credits given without end"),
        (settings.database_url.get_secret_value().startswith("sqlite"), Level.WARN,
         "the database is SQLite", "on a host use PostgreSQL: a file is lost with its machine"),
        (not settings.metrics_token.get_secret_value(), Level.WARN,
         "METRICS_TOKEN is not set", "set it to let Prometheus in from another machine"),
    ):  # fmt: skip
        if wrong:
            yield Finding(level, "settings", said, mend)


def _database() -> Iterator[Finding]:
    bind = db.session.connection()
    yield Finding(Level.OK, "database", f"{bind.dialect.name} answers")
    directory = ScriptDirectory(str(current_app.extensions["migrate"].directory))
    heads, stamped = set(directory.get_heads()), set(MigrationContext.configure(bind).get_current_heads())
    if heads != stamped:
        has = ", ".join(sorted(stamped)) or "nothing"
        yield Finding(
            Level.FAIL, "database", f"it is at {has}, the code at {', '.join(sorted(heads))}",
            "flask --app wsgi db upgrade",
        )  # fmt: skip
        return
    if bind.dialect.name == "postgresql":
        theirs = db.session.execute(select(func.clock_timestamp())).scalar_one()
        skew = abs(int((theirs - clock.now()).total_seconds()))
        if skew > _SKEWED_SECONDS:
            yield Finding(
                Level.FAIL,
                "database",
                f"its clock and this machine's are {skew} seconds apart",
                "leases rest on both",
            )
        isolation = db.session.scalar(text("SHOW default_transaction_isolation"))
        yield Finding(Level.OK, "database", f"default isolation {isolation}")
    yield from _custody()
    yield from _processes()


def _custody() -> Iterator[Finding]:
    if other := custody.keys_of_another_network():
        yield Finding(
            Level.FAIL,
            "keys",
            f"this database holds keys of {other}",
            "NETWORK or DATABASE_URL is wrong: nothing is signed",
        )
    elif unopened := custody.unopened(_SAMPLE):
        yield Finding(
            Level.FAIL, "keys", f"{unopened} of the oldest and newest wallets' keys do not open",
            "ENCRYPTION_KEYS lacks the key that sealed them; without it their money is out of reach",
        )  # fmt: skip
    else:
        yield Finding(Level.OK, "keys", "the oldest and the newest wallets' keys open")


def _processes() -> Iterator[Finding]:
    age = heartbeats.ages().get(Heart.WORKER)
    if age is None or age > _FRESH_SECONDS:
        said = "no worker was ever alive" if age is None else f"no worker was alive for {age} seconds"
        yield Finding(
            Level.FAIL,
            "workers",
            said,
            "start `worker` and `scheduler` of the Procfile: what is pending waits",
        )
    else:
        yield Finding(Level.OK, "workers", f"alive {age} seconds ago")
    for waiting in backlog.pending():
        if waiting.type != "funding" and waiting.oldest_seconds > _OLD_SECONDS:
            yield Finding(
                Level.WARN, "movements",
                f"a {waiting.type} on {waiting.chain} is pending for {waiting.oldest_seconds // 60} minutes",
                "docs/operations.md, Stuck transactions",
            )  # fmt: skip


def _redis() -> Iterator[Finding]:
    totals = provider.current().tallies.totals()
    if totals is None or not provider.current().queue.ping():
        yield Finding(
            Level.FAIL, "redis", "it does not answer",
            "see REDIS_URL; until then rate limits count in each process alone, and the scheduler does all work itself",
        )  # fmt: skip
        return
    yield Finding(Level.OK, "redis", "it answers")
    if totals.get("forwarded_unbelieved") and provider.settings().trusted_proxy_hops == 0:
        yield Finding(
            Level.WARN, "proxies", "requests name a proxy before us, and TRUSTED_PROXY_HOPS is 0",
            "behind a host's router set it to 1: until then all callers share one address, and its limits",
        )  # fmt: skip


def _chain(chain: Chain) -> Iterator[Finding]:
    part, setting = chain.name.value, f"{chain.name.value.upper()}_RPC_URL"
    diagnosis = chain.diagnose()
    heights = [state.height for state in diagnosis.endpoints if state.height is not None]
    for state in diagnosis.endpoints:
        which = f"endpoint {state.number}"
        if state.problem == "wrong_chain":
            yield Finding(
                Level.FAIL, part, f"{which} serves another chain than {provider.settings().network.value} means",
                f"mend entry {state.number} of {setting}; it is not used until then",
            )  # fmt: skip
        elif state.problem is not None:
            # One of several may be away without harm.
            level = Level.WARN if heights else Level.FAIL
            yield Finding(
                level,
                part,
                f"{which} gives no usable answer ({state.problem})",
                f"see entry {state.number} of {setting}",
            )
        elif (behind := max(heights) - (state.height or 0)) > _FAR_BEHIND:
            yield Finding(
                Level.WARN,
                part,
                f"{which} is {behind} blocks behind",
                f"see entry {state.number} of {setting}",
            )
        else:
            yield Finding(Level.OK, part, f"{which} serves, at {state.height}")
    for name in diagnosis.missing:
        yield Finding(
            Level.FAIL,
            part,
            f"there is no contract at the address of {name}",
            "this is not the network that NETWORK says",
        )
    if provider.settings().network is Network.MAINNET and len(diagnosis.endpoints) == 1:
        yield Finding(Level.WARN, part, "it hangs on one endpoint", f"name a second provider in {setting}")


def _unrecorded(chain: Chain) -> Iterator[Finding]:
    """Say where the chain has seen transactions of ours that the database does not know: it was set back."""
    gaps, lost = [], []
    try:
        gaps = unrecorded.recent_gaps(chain.name)
        lost = list(itertools.islice(unrecorded.overtaken(chain.name), _MANY_OVERTAKEN))
    except SQLAlchemyError:
        return  # said already
    except PortError as error:
        yield Finding(
            Level.WARN, chain.name.value,
            f"it cannot tell whether this database knows all that was sent ({error.reason})", "run this again",
        )  # fmt: skip
    if gaps:
        number = sum(len(gap.slots) for gap in gaps)
        yield Finding(
            Level.FAIL, chain.name.value,
            f"it knows {number} transactions of {len(gaps)} of our addresses that this database does not",
            "was a backup restored? Stop all processes and run `flask --app wsgi restored`;"
            " if not, somebody else has these keys",
        )  # fmt: skip
    if number := sum(found.is_mended_by_adoption for found in lost):
        yield Finding(
            Level.FAIL, chain.name.value,
            f"{number} movements were carried out or cancelled by bytes that this database does not know",
            "`flask --app wsgi restored --mend`, at once: they pass for failed, and would be paid again",
        )  # fmt: skip
    if number := sum(found.is_untold for found in lost):
        yield Finding(
            Level.WARN, chain.name.value,
            f"the slots of {number} movements were used, and it cannot be told whether for them",
            "`flask --app wsgi restored --look` names them;"
            f" add a node that keeps old states to {chain.name.value.upper()}_RPC_URL",
        )  # fmt: skip


def _prices() -> Iterator[Finding]:
    for symbol, token in sorted(TOKENS_BY_SYMBOL.items()):
        nanos = provider.current().prices.nanos_per_token(token)
        if nanos is None:
            yield Finding(
                Level.FAIL,
                "prices",
                f"none for {symbol}",
                "limits cannot be checked, so nothing of it moves: are feeds and CoinGecko reachable?",
            )
        else:
            yield Finding(Level.OK, "prices", f"{symbol} {nanos / 10**9:,.2f} USD")


def _settlement() -> Iterator[Finding]:
    """Say where the key that submits payments lacks gas; of what was never made nothing is said."""
    try:
        left_on = readiness.submissions_left()
    except SQLAlchemyError:
        return  # said already
    for chain, left in left_on.items():
        if left < _FEW_SUBMISSIONS:
            yield Finding(
                Level.WARN, "payments", f"the settlement key on {chain.value} has gas for {left} payments",
                f"send native coins to {treasury.settler(chain)}: until then signed payments are not offered there",
            )  # fmt: skip
        else:
            yield Finding(
                Level.OK, "payments", f"{chain.value}: the settlement key has gas for {left} payments"
            )


def _upstreams() -> Iterator[Finding]:
    ready = [row.slug for row in providers.table().rows if row.is_configured]
    rest = [row.slug for row in providers.table().rows if not row.is_configured]
    yield Finding(
        Level.OK,
        "gateway",
        f"configured: {', '.join(ready) or 'none'}; answering 503: {', '.join(rest) or 'none'}",
    )
    shops = "a browser is here" if provider.current().shopper else "no browser on this machine"
    yield Finding(Level.OK, "shopping", shops)
