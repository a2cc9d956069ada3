"""The application of jobs, with a context per job. Failures are logged without arguments."""

import functools
import gc
import sys
from collections.abc import Callable
from typing import ParamSpec, cast

import structlog
from flask import Flask, has_app_context

from app.core import identifiers
from app.observability import counters, telemetry
from app.state import app_state

P = ParamSpec("P")
_log = structlog.get_logger(__name__)


@functools.cache
def application() -> Flask:
    """Return this process's application, created from the environment on first use. It need not answer requests."""
    if loaded := sys.modules.get("wsgi"):
        # The launcher's, from before the fork.
        return cast("Flask", loaded.app)
    from app.factory import create_app  # noqa: PLC0415 - imports the whole service

    created = create_app(serves=False)
    # Whatever lives as long as the process is not looked through again.
    gc.freeze()
    gc.enable()
    return created


def job(function: Callable[P, None]) -> Callable[P, None]:
    """Run a job inside an application context with its own request id in the logs."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=identifiers.new_id(), job=function.__qualname__)
        if has_app_context():
            _run_logged(function, *args, **kwargs)
            return
        with application().app_context():
            _run_logged(function, *args, **kwargs)

    return run


def _run_logged(function: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    span = telemetry.start_span(f"job {function.__qualname__}", "INTERNAL")
    error_type = ""
    if span is not None:
        structlog.contextvars.bind_contextvars(trace_id=span.trace_id)
    try:
        function(*args, **kwargs)
    except Exception as error:
        error_type = type(error).__name__
        telemetry.report(error)
        # A process ends after a timeout, and does not wait for threads.
        telemetry.flush_error_reports()
        raise
    finally:
        if span is not None:
            span.end(error=error_type)
        counters.flush(app_state().ports.counters)
