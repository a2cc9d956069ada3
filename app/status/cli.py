"""`flask doctor`: the checks of this installation, or with `--live` of the systems that it uses."""

import json
from collections.abc import Collection
from dataclasses import asdict
from decimal import Decimal, InvalidOperation

import click
from flask.cli import with_appcontext

from app.core.money import nanos_from_usd
from app.observability import logs
from app.status import live
from app.status.doctor import Severity, run_checks
from app.status.live import Result

_FAILURES = frozenset({Result.DIFFERS, Result.FAILS})


def _nanos(text: str) -> int:
    try:
        nanos = nanos_from_usd(Decimal(text))
    except InvalidOperation:
        raise ValueError(text) from None
    if nanos < 0:
        raise ValueError(text)
    return nanos


@click.command("doctor")
@click.option("--live", "is_live", is_flag=True, help="Ask the live systems instead.")
@click.option("--only", multiple=True, metavar="NAME", help="With --live: only this system. May be repeated.")
@click.option(
    "--spend-up-to",
    "budget_nanos",
    type=_nanos,
    default="0",
    metavar="USD",
    help="With --live: ask what a provider bills, too, until the maximum costs add up to this.",
)
@click.option(
    "--timeout", type=click.IntRange(min=1), default=20, show_default=True, help="With --live: seconds for each probe."
)
@click.option("--json", "is_json", is_flag=True, help="With --live: print JSON.")
@with_appcontext
def doctor(*, is_live: bool, only: tuple[str, ...], budget_nanos: int, timeout: int, is_json: bool) -> None:
    """Check settings, database, Redis, workers, chains, contracts, prices and proxies, and print fixes.

    With --live, each configured system gets one cheap request per capability instead, and the code that uses its
    answers reads them: RPC endpoints one by one, prices, quotes and simulated transactions, the
    trading exchange, and the providers of the gateway. Nothing is signed or sent. Reads count against the quotas of
    plans; chats of one token and searches are billed, and are asked with --spend-up-to only. The results: works,
    differs (an answer that the service cannot use), fails (no answer, or a refusal), not configured, not run.

    Exits with 1 if a check fails, or an answer differs or fails. Changes nothing.
    """
    logs.redirect_to_stderr()
    has_failed = _print_live(only, budget_nanos, timeout, is_json=is_json) if is_live else _print_checks()
    if has_failed:
        raise SystemExit(1)


def _print_checks() -> bool:
    """Print the findings, and return whether a check failed."""
    has_failed = False
    for finding in run_checks():
        click.echo(f"{finding.severity.value:4}  {finding.component}: {finding.message}")
        if finding.fix:
            click.echo(f"      -> {finding.fix}")
        has_failed = has_failed or finding.severity is Severity.FAIL
    return has_failed


def _print_live(only: Collection[str], budget_nanos: int, timeout: int, *, is_json: bool) -> bool:
    """Print a row for each probe, and return whether an answer differs or fails."""
    probes = live.all_probes()
    known = live.names(probes)
    if unknown := [name for name in only if name not in known]:
        raise click.UsageError(f"There is no system {unknown[0]!r}; there are {', '.join(known)}.")
    rows = []
    for row in live.run_all(probes, only=only, budget_nanos=budget_nanos, seconds=timeout):
        rows.append(row)
        if not is_json:
            click.echo(f"{row.result.value:14}  {row.system:12}  {row.capability:24}  {row.remark}")
    if is_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=2))
    return any(row.result in _FAILURES for row in rows)
