"""The checks of `flask doctor`: read-only, of everything the service depends on, with a fix for each problem.

Findings name settings, positions in them and hosts, never whole values, which may contain keys.
"""

import functools
import itertools
import os
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from sqlalchemy import func, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app import authenticated
from app.audit_log import verification, witness
from app.catalog.payouts import earnings
from app.config import MIN_SECRET_LENGTH, Network, Settings
from app.core import clock
from app.core.chains import TOKENS_BY_SYMBOL
from app.core.ip_ranges import is_loopback
from app.core.money import usd_string
from app.db import leases, libpq, replica
from app.db.leases import ProcessKind
from app.db.unit_of_work import read_only_unit
from app.errors import KeyServiceUnavailable
from app.gateway.pricing import price_updates
from app.gateway.providers.table import ProviderTable
from app.observability import counters
from app.payments import settlement_capacity, treasury
from app.ports.chain import Chain
from app.ports.errors import PortError
from app.ports.services import PriceFeed
from app.ports.shopper import Shopper
from app.ports.vault import SignerProcess, Vault
from app.state import Ports, app_state
from app.status import migrations
from app.wallets.core import custody
from app.wallets.maintenance import restore_reconciliation
from app.wallets.views import balances

_KEY_SAMPLE_SIZE = 5
# In time: with fewer than 20 it pays no network fees for others any more.
_LOW_SUBMISSIONS = 100
_MAX_BLOCKS_BEHIND = 20
_MAX_CLOCK_SKEW_SECONDS = 5
_STUCK_AFTER_SECONDS = 3600
_ALIVE_WITHIN_SECONDS = 60
_OF_THE_SIGNER = "wallet_encryption_keys", "vault_token", "pkcs11_pin", "signer_database_url"


class Severity(StrEnum):
    """The severity of a finding; only FAIL makes the command fail."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    message: str
    fix: str = ""
    component: str = ""


_ok, _warn, _fail = (functools.partial(Finding, severity) for severity in Severity)


def run_checks() -> Iterator[Finding]:
    state = app_state()
    settings, ports = state.settings, state.ports
    yield from _run_check("settings", lambda: _check_settings(settings))
    yield from _run_check("database", lambda: _check_database(settings.network, ports.vault))
    if ports.signer and settings.signer_socket:
        yield from _run_check("signer", functools.partial(_check_signer, settings, ports.signer))
    if problem := replica.problem():
        fix = "check DATABASE_REPLICA_URL and the replica, and that a worker runs: reports are read from the database"
        yield _warn(problem, fix, "replica")
    yield from _run_check("redis", lambda: _check_redis(settings, ports))
    for chain in ports.chains.values():
        yield from _run_check(chain.name.value, functools.partial(_check_chain, chain, settings.network))
        yield from _run_check(chain.name.value, functools.partial(_check_unrecorded_transactions, chain))
    yield from _run_check("prices", lambda: _check_prices(ports.prices))
    yield from _run_check("payments", _check_settlement_key)
    yield from _run_check("upstreams", lambda: _about("gateway", _check_upstreams(state.part(ProviderTable))))
    yield from _run_check("shopping", lambda: _check_shopping(settings, ports.shopper))


def _run_check(component: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield the findings of a check; an exception is a finding and does not stop the other checks."""
    try:
        yield from _about(component, check())
    except SQLAlchemyError as error:
        # The first line of the driver's message has the host and the cause, and no password.
        cause = str(getattr(error, "orig", None) or type(error).__name__).partition("\n")[0]
        yield _fail(f"does not respond ({cause})", "check DATABASE_URL", component)
    except KeyServiceUnavailable:
        fix = "see the log line wallet_key_used; check the key's address, and the permission and credentials for it"
        yield _fail("a key in a KMS or HSM cannot be used, so its wallets cannot pay", fix, component)
    except Exception as error:
        # Its message may quote a URL with a key; its class and location are enough.
        frame = traceback.extract_tb(error.__traceback__)[-1]
        location = f"{type(error).__name__}, {Path(frame.filename).name}:{frame.lineno}"
        yield _fail(f"the check failed ({location})", "this is a bug: report it", component)


def _about(component: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """Name the component of findings that name none."""
    return (replace(each, component=each.component or component) for each in findings)


def _check_settings(settings: Settings) -> Iterator[Finding]:
    yield _ok(f"network {settings.network.value}, {settings.public_url}")
    if settings.is_sandbox:
        if not is_loopback(urlsplit(settings.public_url).hostname):
            fix = "set NETWORK to testnet or mainnet: a sandbox has no real money and no limits"
            yield _warn("the sandbox is served under a public address", fix)
        return
    for is_wrong, severity, message, fix in (
        (not settings.base_url.startswith("https://"), Severity.FAIL,
         "BASE_URL is not an https:// URL", "use https: clients send keys and codes to it"),
        (settings.allow_private_upstreams, Severity.FAIL,
         "ALLOW_PRIVATE_UPSTREAMS lets services of agents reach private addresses", "unset it"),
        (len(settings.secret_key.get_secret_value()) < MIN_SECRET_LENGTH, Severity.FAIL,
         f"SECRET_KEY is shorter than {MIN_SECRET_LENGTH} characters", "generate one, see docs/configuration.md"),
        ("," in settings.secret_key.get_secret_value(), Severity.WARN,
         "SECRET_KEY contains a comma", "replace it soon: it cannot be listed in SECRET_KEY_FALLBACKS"),
        (bool(settings.price_overrides), Severity.WARN,
         "PRICE_OVERRIDES fixes prices", "unset it: limits are in dollars"),
        (not settings.registration_rate_limit, Severity.WARN,
         "REGISTRATION_RATE_LIMIT is off", "set it: registrations are unlimited"),
        (settings.grant_budget_usd_per_day is None, Severity.WARN,
         "GRANT_BUDGET_USD_PER_DAY is off", "set it: granted credits are unlimited"),
        (settings.payouts_enabled and bool(settings.initial_credits_usd), Severity.WARN,
         "initial credits can be paid out as dollars", "set INITIAL_CREDITS_USD to 0, see docs/operations/payouts.md"),
        (settings.maintenance, Severity.WARN, "MAINTENANCE is on", "unset it when the work is done"),
        (settings.database_url.get_secret_value().startswith("sqlite"), Severity.WARN,
         "the database is SQLite", "use PostgreSQL on a host: a file is lost with its machine"),
        (not settings.smtp_url.get_secret_value() and not settings.web_push_key.get_secret_value(), Severity.WARN,
         "owners cannot be notified", "set SMTP_URL or WEB_PUSH_KEY: approvals wait until an owner looks"),
        (not settings.metrics_token.get_secret_value(), Severity.WARN,
         "METRICS_TOKEN is not set", "set it to permit Prometheus on another machine"),
    ):  # fmt: skip
        if is_wrong:
            yield Finding(severity, message, fix)


def _check_database(network: Network, vault: Vault) -> Iterator[Finding]:
    from alembic.migration import MigrationContext  # noqa: PLC0415 - servers do not need its 9 MB
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    with read_only_unit() as session:
        bind = session.connection()
        yield _ok(f"{bind.dialect.name} responds")
        directory = ScriptDirectory(str(migrations.FOLDER))
        heads, stamped = set(directory.get_heads()), set(MigrationContext.configure(bind).get_current_heads())
        if heads != stamped:
            schema, code = ", ".join(sorted(stamped)) or "nothing", ", ".join(sorted(heads))
            yield _fail(f"its schema is at {schema}, the code at {code}", "flask --app wsgi db upgrade")
            return
        if bind.dialect.name == "postgresql":
            database_now = session.execute(select(func.clock_timestamp())).scalar_one()
            skew = abs(int((database_now - clock.now()).total_seconds()))
            if skew > _MAX_CLOCK_SKEW_SECONDS:
                fix = "synchronize them: leases depend on both"
                yield _fail(f"its clock and this machine's differ by {skew} seconds", fix)
            yield _ok(f"default isolation {session.scalar(text('SHOW default_transaction_isolation'))}")
            if app_state().settings.database_prepared_statements and not libpq.keeps_prepared_statements(bind.engine):
                yield _fail(
                    "a pooler mixes up the prepared statements of its clients, so that many requests fail",
                    "use PgBouncer 1.22 or later with max_prepared_statements, or set DATABASE_PREPARED_STATEMENTS=0",
                )
        stored = custody.stored_network(session)
        yield from _about("rows", _check_integrity(session))
        yield from _about("audit", _check_witness(session))
        yield from _about("workers", _check_workers(session))
        yield from _about("movements", _check_movements(session))
        yield from _about("payouts", _check_earnings(session))
    yield from _run_check("keys", lambda: _check_custody(stored, network, vault))


def _check_custody(stored: str | None, network: Network, vault: Vault) -> Iterator[Finding]:
    if stored not in (None, network.value):
        fix = "correct NETWORK or DATABASE_URL: until then nothing is signed"
        yield _fail(f"this database holds keys of {stored}", fix)
    elif unopened := custody.count_undecryptable(vault, _KEY_SAMPLE_SIZE):
        fix = "add the missing key to (WALLET_)ENCRYPTION_KEYS; without it their money is inaccessible"
        yield _fail(f"{unopened} of the oldest and newest wallets' keys cannot be decrypted", fix)
    else:
        key_id, _, _ = vault.seal(b"", custody.key_location("doctor")).partition(".")
        yield _ok(f"the oldest and newest wallets' keys can be decrypted; new ones are sealed with key {key_id}")


def _check_signer(settings: Settings, signer: SignerProcess) -> Iterator[Finding]:
    """Check that the signer process responds, that nobody can take its place, and that only it has its keys."""
    path = Path(settings.signer_socket)
    if signer.refusals() is None:
        yield _fail("does not respond, so nothing is signed", "start it; signer_client_refused: see SIGNER_CLIENT_UIDS")
    else:
        owner, folder = path.stat().st_uid, path.parent.stat()
        yield _ok("responds")
        if owner == os.geteuid() or folder.st_uid not in (0, owner) or folder.st_mode & 0o027:
            fix = "let its folder belong to a user of its own, with mode 0750 and the service's group"
            message = "other users can read its key, reach its socket or put another in its place"
            yield (_warn if settings.is_sandbox else _fail)(message, fix)
    if given := [name.upper() for name in _OF_THE_SIGNER if str(getattr(settings, name))]:
        yield _warn(f"this process has {', '.join(given)}", "leave them to the signer process")
    if readable := sum(custody.count_sealed_with(name) for name, _ in settings.encryption_key_list()):
        fix = "run `flask --app wsgi keys rotate` with the settings of the signer process; then delete old backups"
        yield _warn(f"{readable} wallets' keys can be opened without the signer process", fix)


def _check_integrity(session: Session) -> Iterator[Finding]:
    changed = authenticated.find_changed(session)
    fix = "find out who wrote it; then restore it, or `flask --app wsgi keys accept-rows`"
    for each in changed[:20]:
        yield _fail(each, fix)
    if not changed:
        yield _ok("all rows that give power were written by this service")
    if authenticated.is_permitted(session):
        fix = "keep a worker running: it seals them"
        yield _warn("an upgrade permits unverified rows for a day", fix)


def _check_witness(session: Session) -> Iterator[Finding]:
    if witness.read() is None:
        fix = "let AUDIT_WITNESS_FILE name one on a disk that is kept, and a worker run"
        yield _warn("no file outside the database records the heads of the audit log", fix)
    fix = "find out who changed the database; after a restore, `flask --app wsgi restored`"
    for problem in verification.find_witness_problems(session):
        yield _fail(problem, fix)


def _check_workers(session: Session) -> Iterator[Finding]:
    age = leases.ages(session).get(ProcessKind.WORKER)
    if age is None or age > _ALIVE_WITHIN_SECONDS:
        message = "no worker has ever run" if age is None else f"no worker has run for {age} seconds"
        yield _fail(message, "start `worker` and `scheduler` of the Procfile: pending transactions wait for them")
    else:
        yield _ok(f"last seen {age} seconds ago")


def _check_movements(session: Session) -> Iterator[Finding]:
    for waiting in balances.pending(session):
        if waiting.type != "funding" and waiting.oldest_seconds > _STUCK_AFTER_SECONDS:
            minutes = waiting.oldest_seconds // 60
            message = f"a {waiting.type} on {waiting.chain} has been pending for {minutes} minutes"
            yield _warn(message, "see docs/operations/stuck-transactions.md")


def _check_earnings(session: Session) -> Iterator[Finding]:
    if app_state().settings.payouts_enabled:
        for service_id, nanos in earnings.owed_to_deleted(session).items():
            fix = f"POST /v1/platform/services/{service_id}/write-off, see docs/operations/payouts.md"
            yield _warn(f"{usd_string(nanos)} USD are owed to a deleted agent for service {service_id}", fix)


def _check_redis(settings: Settings, ports: Ports) -> Iterator[Finding]:
    totals, problem = counters.totals(ports.counters), ports.queue.problem()
    if totals is None or problem:
        yield _fail(
            f"does not respond ({problem})" if problem else "does not respond in time",
            "check REDIS_URL, and REDIS_CA_FILE if its certificate is the host's own;"
            " until then rate limits are per process, and the scheduler does all work itself",
        )
        return
    yield _ok("responds")
    if settings.redis_ca_file == "off":
        fix = "let REDIS_CA_FILE name the certificate of its authority, if the host gives you one"
        yield _warn("its certificate is not verified", fix)
    if not settings.is_sandbox:
        url = urlsplit(settings.redis_url.get_secret_value())
        if not ports.queue.needs_password():
            fix = "set one there (`requirepass`, or an ACL user) and in REDIS_URL: any client could fill the queue"
            yield _fail("serves clients without a password", fix)
        if url.scheme != "rediss" and not is_loopback(url.hostname):
            fix = "use rediss:// in REDIS_URL, unless the network between them is private"
            yield _warn("the connection to another machine is not encrypted", fix)
    forwarded = sum(each.value for each in totals if each.name == "purser_untrusted_forwarded_headers_total")
    if forwarded and settings.trusted_proxy_hops == 0:
        yield _warn(
            "requests have proxy headers, and TRUSTED_PROXY_HOPS is 0",
            "behind a platform's router set it to 1: until then all clients share one address and its limits",
            "proxies",
        )


def _check_chain(chain: Chain, network: Network) -> Iterator[Finding]:
    setting = f"{chain.name.value.upper()}_RPC_URL"
    is_configured = bool(app_state().settings.rpc_urls(chain.name))
    diagnosis = chain.diagnose()
    heights = [state.height for state in diagnosis.endpoints if state.height is not None]
    for state in diagnosis.endpoints:
        endpoint_name = f"endpoint {state.number} ({state.host})"
        if state.problem == "wrong_chain":
            fix = f"correct entry {state.number} of {setting}; it is not used until then"
            yield _fail(f"{endpoint_name} serves a chain that is not {chain.name.value} of {network.value}", fix)
        elif state.problem is not None:
            # One of several endpoints may be down.
            severity = Severity.WARN if heights else Severity.FAIL
            fix = f"check entry {state.number} of {setting}" if is_configured else f"set {setting}"
            yield Finding(severity, f"{endpoint_name} gives no usable response: {state.problem}", fix)
        elif (behind := max(heights) - (state.height or 0)) > _MAX_BLOCKS_BEHIND:
            yield _warn(f"{endpoint_name} is {behind} blocks behind", f"check entry {state.number} of {setting}")
        else:
            yield _ok(f"{endpoint_name} responds, at block {state.height}")
    for name in diagnosis.missing_contracts:
        yield _fail(f"there is no contract at the address of {name}", "correct NETWORK or the endpoints")
    if network is Network.MAINNET and len(diagnosis.endpoints) == 1:
        yield _warn("has a single endpoint", f"add a second provider to {setting}")
    if network is Network.MAINNET and not is_configured:
        yield _warn("uses public endpoints, which limit and may delay it", f"set {setting}")


def _check_unrecorded_transactions(chain: Chain) -> Iterator[Finding]:
    """Find transactions on a chain that the database does not know, as after restoring a backup."""
    gaps, unknown_spends = [], []
    try:
        gaps = list(restore_reconciliation.nonce_gaps(chain, only_recent=True))
        unknown_spends = list(itertools.islice(restore_reconciliation.unknown_spends(chain), 20))
    except SQLAlchemyError:
        return  # reported by the check of the database
    except PortError as error:
        yield _warn(f"sent transactions could not be compared with the database ({error.reason})", "run this again")
    if gaps:
        number = sum(len(gap.missing_nonces) for gap in gaps)
        yield _fail(
            f"it has {number} transactions of {len(gaps)} of our addresses that this database does not know",
            "was a backup restored? Stop all processes and run `flask --app wsgi restored`;"
            " if not, these keys are compromised",
        )
    if number := sum(found.needs_adoption for found in unknown_spends):
        fix = "run `flask --app wsgi restored --repair` immediately: they count as failed, and would be paid again"
        yield _fail(f"{number} transactions were executed or replaced by bytes that this database does not know", fix)
    if number := sum(found.is_undetermined for found in unknown_spends):
        yield _warn(
            f"the nonces of {number} transactions were used, and it cannot be determined whether by them",
            "list them with `flask --app wsgi restored --dry-run`;"
            f" add an archive node to {chain.name.value.upper()}_RPC_URL",
        )


def _check_prices(prices: PriceFeed) -> Iterator[Finding]:
    for symbol, token in sorted(TOKENS_BY_SYMBOL.items()):
        nanos = prices.nanos_per_token(token)
        fix = "check that feeds and CoinGecko are reachable: nothing is sent until limits can be checked"
        yield _fail(f"none for {symbol}", fix) if nanos is None else _ok(f"{symbol} {nanos / 10**9:,.2f} USD")


def _check_settlement_key() -> Iterator[Finding]:
    """Find chains on which the settlement key is low on gas."""
    try:
        submissions_by_chain = settlement_capacity.submissions_left()
    except SQLAlchemyError:
        return  # reported by the check of the database
    for chain, submissions in submissions_by_chain.items():
        if submissions < _LOW_SUBMISSIONS:
            yield _warn(
                f"the settlement key on {chain.value} has gas for {submissions} payments",
                f"send native tokens to {treasury.settler(chain)}: with little gas it pays no network fees for wallets"
                " without any, and without gas signed payments are not offered there",
            )
        else:
            yield _ok(f"{chain.value}: the settlement key has gas for {submissions} payments")


def _check_upstreams(providers: ProviderTable) -> Iterator[Finding]:
    configured = [row.slug for row in providers.rows if row.is_configured]
    unconfigured = [row.slug for row in providers.rows if not row.is_configured]
    yield _ok(f"configured: {', '.join(configured) or 'none'}; not configured: {', '.join(unconfigured) or 'none'}")
    if app_state().settings.gateway_prices_url and (problem := price_updates.problem_since_accepted()):
        fix = "correct the list, then: flask providers prices --refresh"
        yield _warn(f"the last list of GATEWAY_PRICES_URL was refused, the one before is used: {problem}", fix)


def _check_shopping(settings: Settings, shopper: Shopper | None) -> Iterator[Finding]:
    with read_only_unit() as session:
        is_used = settings.is_sandbox or ProcessKind.SHOPPER in leases.ages(session)
    if shopper is None or not is_used:
        yield _ok("no shopper has run" if shopper else "no browser on this machine")
    elif settings.is_sandbox or shopper.is_sandboxed():
        yield _ok("a browser is available")
    elif settings.browser_without_sandbox:
        fix = "enable it: a page that exploits the browser has all rights of the shopper's user"
        yield _warn("the browser runs without its sandbox, as BROWSER_WITHOUT_SANDBOX allows", fix)
    else:
        fix = "let the shopper be an ordinary user of a host that permits user namespaces; docs/operations/shopping.md"
        yield _fail("the browser does not start here with its sandbox, so purchases here fail", fix)
