"""The browser process: reads one purchase request from standard input, writes messages to standard output, ends.

It starts with an empty environment: neither it nor the browser has a secret of the service. It prints nothing else
and logs nothing, because the texts of its errors quote what was typed. It dies with the process that started it.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any, BinaryIO

from playwright.sync_api import Browser

from app.ports.shopper import (
    ElementQuestion,
    FailureCode,
    OrderConfirmation,
    OrderReview,
    Product,
    PurchaseFailed,
    PurchaseOutcomeUnknown,
    ShoppingStep,
)
from shopper.flow import run
from shopper.process import browser, egress, memory, protocol
from shopper.process.egress import EgressProxy

_PR_SET_PDEATHSIG = 1  # prctl(2)


class PipePurchaseHandler:
    """A `PurchaseHandler` that forwards every call to the parent process, and waits for its decisions."""

    def __init__(self, reader: BinaryIO, writer: BinaryIO) -> None:
        self._reader = reader
        self._writer = writer

    def on_first_page(self) -> None:
        """Send `first_page`."""
        protocol.write(self._writer, "first_page")

    def on_product(self, product: Product) -> None:
        """Send `product` and wait for the decision. Raises: PurchaseFailed."""
        self._request_decision("product", asdict(product))

    def authorize_order(self, review: OrderReview) -> None:
        """Send `authorize_order` and wait for the decision. Raises: PurchaseFailed."""
        self._request_decision("authorize_order", asdict(review))

    def choose(self, question: ElementQuestion) -> int | None:
        """Send `choose` and wait for the `choice`."""
        protocol.write(self._writer, "choose", **asdict(question))
        answer = protocol.read(self._reader)
        if answer["kind"] != "choice":
            raise protocol.PeerClosed
        index: int | None = answer["index"]
        return index

    def on_step(self, step: ShoppingStep) -> None:
        """Send `step`."""
        protocol.write(self._writer, "step", **asdict(step))

    def on_screenshot(self, name: str, png: bytes) -> None:
        """Send `screenshot`."""
        protocol.write(self._writer, "screenshot", name=name, png=protocol.encode_png(png))

    def on_page(self, document: str) -> None:
        """Send `page`."""
        protocol.write(self._writer, "page", document=document)

    def heartbeat(self) -> None:
        """Send nothing: the parent sees that this process lives."""

    def _request_decision(self, kind: str, values: Mapping[str, Any]) -> None:
        protocol.write(self._writer, kind, **values)
        decision = protocol.read(self._reader)
        if decision["kind"] == "refuse":
            raise protocol.failure_from_json(decision)
        if decision["kind"] != "allow":
            raise protocol.PeerClosed


def main(reader: BinaryIO, writer: BinaryIO) -> None:
    """Run one purchase, or only check that the browser starts with its sandbox."""
    command = protocol.read(reader)
    if command["kind"] == "check_sandbox":
        _check_sandbox(command, writer)
    else:
        _run(command, reader, writer)


def _check_sandbox(command: Mapping[str, Any], writer: BinaryIO) -> None:
    try:
        # Nothing is opened, so no proxy is needed.
        with _launch(command, writer, proxy="http://127.0.0.1:9"):
            protocol.write(writer, "sandboxed")
    except browser.SandboxUnavailable:
        protocol.write(writer, "sandbox_unavailable")


def _launch(command: Mapping[str, Any], writer: BinaryIO, *, proxy: str) -> AbstractContextManager[Browser]:
    return browser.launch_browser(
        str(command["browser"]),
        proxy=proxy,
        environment=dict(command["environment"]),
        sandbox_required=bool(command["sandbox_required"]),
        on_unsandboxed=lambda: protocol.write(writer, "unsandboxed"),
    )


def _run(command: Mapping[str, Any], reader: BinaryIO, writer: BinaryIO) -> None:
    memory.watch(writer, int(command["max_memory"]))
    request = protocol.request_from_json(command["request"])
    rules = EgressProxy(private=bool(command["private"]), reachable=tuple(command["reachable"]))
    try:
        with (
            egress.serve(rules) as proxy,
            _launch(command, writer, proxy=proxy) as launched,
            browser.new_context(launched, command["signatures"]) as context,
        ):
            result = run.run(context, request, PipePurchaseHandler(reader, writer))
            # Sent before the browser closes: a browser that does not end must not cost the result.
            protocol.write(
                writer, "confirmed" if isinstance(result, OrderConfirmation) else "reviewed", **asdict(result)
            )
    except PurchaseFailed as failure:
        protocol.write(writer, "failed", **protocol.failure_to_json(failure))
    except PurchaseOutcomeUnknown as unknown:
        protocol.write(writer, "outcome_unknown", message=unknown.message, quoted=unknown.quoted)
    except browser.SandboxUnavailable:
        protocol.write(writer, "sandbox_unavailable")
    except protocol.PeerClosed:
        return
    except Exception as error:
        # The class is enough for a log; the text may quote what was typed.
        crash = PurchaseFailed(FailureCode.BROWSER_ERROR, f"The browser failed ({type(error).__name__}).")
        protocol.write(writer, "failed", **protocol.failure_to_json(crash))


def _exit_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(sys.argv[1]):
            os._exit(1)


if __name__ == "__main__":
    _exit_with_parent()
    # Other output must not mix with the messages.
    _out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    main(sys.stdin.buffer, _out)
