"""Commands that call one operation of the API, with its arguments as options."""

from __future__ import annotations

import inspect
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from purser import Purser
from purser.cli import options, output
from purser.cli.session import EXIT_FAILED, EXIT_PENDING, Session, common


def command(
    operation: str,
    *,
    name: str = "",
    arguments: Sequence[str] = (),
    is_movement: bool = False,
    can_wait: bool = False,
    rows: str = "",
    columns: Sequence[str] = (),
    examples: str = "",
) -> click.Command:
    """Return the command for an operation; `rows` is the member of the response that is shown as a table."""
    method = getattr(Purser, operation)

    def run(*, as_json: bool, base_url: str | None, **values: Any) -> None:
        session = Session(base_url, as_json=as_json)
        is_confirmed, waits = values.pop("yes", True), values.pop("wait", False)
        given = options.arguments_of(values)
        with session.client() as client:
            call = getattr(client, operation)
            if is_movement and not is_confirmed and not given.get("dry_run"):
                _confirm(call, given, session)
            if is_movement:
                # Known before the request is sent, so that the same command can be repeated if it breaks off.
                given.setdefault("idempotency_key", str(uuid.uuid4()))
            result = call(**given)
            if waits and not given.get("dry_run") and _is_pending(result):
                click.echo(
                    f"Waiting: {result.get('message') or result['status']} (Ctrl-C ends only the wait)", err=True
                )
                result = client.wait(result, wallet_id=given.get("wallet_id"))
        if operation == "pay" and not as_json and "body" in result:
            _print_paid(result)
            return
        output.print_result(result if as_json or not rows else result[rows], as_json=as_json, columns=columns)
        _exit_by_status(result)

    parameters = options.parameters_of(method, arguments=arguments)
    if can_wait:
        parameters.append(click.Option(["--wait/--no-wait"], default=True, help="Wait until it is no longer pending."))
    if is_movement:
        parameters.append(click.Option(["--yes", "-y"], is_flag=True, help="Do not ask for a confirmation."))
    summary = (inspect.getdoc(method) or operation).split("\n\n")[0]
    return click.Command(
        name or operation, callback=common(run), params=[*parameters, *common.parameters()],
        help=f"{summary}\n\n\b\n{examples}" if examples else summary, short_help=summary.split(". ")[0],
    )  # fmt: skip


def _confirm(call: Callable[..., Any], given: Mapping[str, Any], session: Session) -> None:
    """Show what a movement would do, and ask. Nothing is asked where nobody can answer."""
    if session.as_json or not sys.stdin.isatty():
        raise click.UsageError("This moves money: confirm it with --yes.")
    quote = call(**{**given, "dry_run": True, "idempotency_key": str(uuid.uuid4())})
    output.print_result(quote, as_json=False)
    click.confirm("Do it?", abort=True)


def _print_paid(result: Mapping[str, Any]) -> None:
    """Print the answer of a web service, and on standard error what was paid for it."""
    payment = result["payment"]
    paid = f"paid {payment['amount']} {payment['currency']} on {payment['chain']}" if payment else "paid nothing"
    click.echo(f"HTTP {result['status']}, {paid}", err=True)
    click.echo(result["body"] or "")


def _is_pending(result: Mapping[str, Any]) -> bool:
    return result.get("status") in {"pending", "awaiting_approval"}


def _exit_by_status(result: Any) -> None:
    status = result.get("status") if isinstance(result, Mapping) else None
    if status == "failed":
        raise SystemExit(EXIT_FAILED)
    if status == "awaiting_approval":
        raise SystemExit(EXIT_PENDING)
