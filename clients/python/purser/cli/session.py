"""The service and key of a command, and the exit code of an error."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from purser import (
    AuthenticationError,
    Conflict,
    ConnectionFailed,
    MovementFailed,
    NotFound,
    PaymentRequired,
    PermissionDenied,
    Purser,
    PurserError,
    RateLimited,
    ServerError,
    UpstreamError,
    ValidationError,
    WaitTimeout,
)  # fmt: skip
from purser.cli import login
from purser.cli.credentials import Credentials

EXIT_FAILED, EXIT_PENDING = 11, 10
EXIT_CODES: dict[type[PurserError], int] = {
    ValidationError: 2, AuthenticationError: 3, PermissionDenied: 4, NotFound: 5, Conflict: 6, RateLimited: 7,
    UpstreamError: 8, ServerError: 8, ConnectionFailed: 9, WaitTimeout: EXIT_PENDING, MovementFailed: EXIT_FAILED,
    PaymentRequired: 12,
}  # fmt: skip
EXIT_CODE_TEXT = """Exit codes: 0 done, 1 other error, 2 invalid arguments, 3 no valid key, 4 not permitted or above a
limit, 5 not found, 6 conflict, 7 too many requests, 8 service or provider failed, 9 no connection, 10 still pending,
11 failed and nothing was paid, 12 credits or a payment missing."""
_DEFAULT_URL = "http://127.0.0.1:8000"
_RENEW_BEFORE_SECONDS = 60


class Session:
    """The service that a command talks to, and what is stored of it."""

    def __init__(self, base_url: str | None, *, as_json: bool = False) -> None:
        self.as_json, self.stored = as_json, Credentials()
        found = base_url or os.environ.get("PURSER_BASE_URL") or self.stored.base_url or _DEFAULT_URL
        self.base_url = found.rstrip("/")

    def client(self) -> Purser:
        """Return a client with the key of the environment, or with the stored one."""
        key = os.environ.get("PURSER_API_KEY")
        if key:
            return Purser(base_url=self.base_url, api_key=key)
        entry = self.stored.load(self.base_url)
        if not entry:
            raise AuthenticationError(
                f"No key for {self.base_url}: run `purser register` or `purser login`.", code="NO_KEY"
            )
        if "access_token" in entry:
            entry = self._renewed()
        key = entry.get("api_key") or entry.get("access_token")
        return Purser(base_url=self.base_url, api_key=key, wallet_id=entry.get("wallet_id"))

    def _renewed(self) -> dict[str, Any]:
        with self.stored.locked():
            entry = self.stored.load(self.base_url)
            if entry["expires_at"] - time.time() < _RENEW_BEFORE_SECONDS:
                tokens = login.renew(self.base_url, entry)
                self.stored.save(self.base_url, tokens, wallet_id=entry.get("wallet_id"))
                entry = {**entry, **tokens}
            return entry


class Common:
    """The options of every command, and its errors."""

    def parameters(self) -> list[click.Parameter]:
        return [
            click.Option(["--json", "as_json"], is_flag=True, help="Print the response as JSON."),
            click.Option(["--base-url"], help="The service; PURSER_BASE_URL, or that of the last login, by default."),
        ]

    def __call__(self, run: Callable[..., None]) -> Callable[..., None]:
        """Return a callback that exits with the code of an error."""

        @wraps(run)
        def wrapped(**values: Any) -> None:
            try:
                run(**values)
            except PurserError as error:
                _print_error(error, as_json=values["as_json"])
                codes = [code for kind, code in EXIT_CODES.items() if isinstance(error, kind)]
                raise SystemExit(codes[0] if codes else 1) from None

        return wrapped


common = Common()


def _print_error(error: PurserError, *, as_json: bool) -> None:
    repeat = error.idempotency_key if isinstance(error, (ConnectionFailed, ServerError, UpstreamError)) else None
    if as_json:
        shown = {"error": error.message, "code": error.code, "status": error.status, "details": error.details}
        click.echo(json.dumps({**shown, "request_id": error.request_id, "idempotency_key": repeat}), err=True)
        return
    click.echo(f"{error.code}: {error.message}", err=True)
    for name, value in error.details.items():
        click.echo(f"  {name}: {value if isinstance(value, str) else json.dumps(value)}", err=True)
    if repeat:
        click.echo(f"Repeat it without a second payment: --idempotency-key {repeat}", err=True)
