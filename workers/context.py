"""The application around a job: made once per process, a context per job, failures logged without arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

import structlog
from flask import Flask, has_app_context

from app.core import alarms, identifiers
from app.ports import provider
from app.status import handover

P = ParamSpec("P")
_log = structlog.get_logger(__name__)
_app: Flask | None = None


def application() -> Flask:
    """Return this process's application, made from the environment on first use."""
    global _app  # noqa: PLW0603 - one per process, made before the worker forks
    if _app is None:
        from app.factory import create_app  # noqa: PLC0415 - the factory is heavy

        _app = create_app()
    return _app


def job(function: Callable[P, None]) -> Callable[P, None]:
    """Run a job inside an application context with a request id of its own in the logs."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=identifiers.new_id(), job=function.__qualname__)
        if has_app_context():
            _run(function, *args, **kwargs)
            return
        with application().app_context():
            _run(function, *args, **kwargs)

    return run


def _run(function: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    try:
        function(*args, **kwargs)
    except Exception as error:
        alarms.report(error)
        # The process of a job ends with it, and does not wait for threads.
        alarms.deliver()
        raise
    finally:
        handover.hand_over(provider.current().tallies)
