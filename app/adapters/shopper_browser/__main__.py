"""The browser's process: one errand from standard input, reports to standard output, then the end.

It starts with an empty environment: neither it nor the browser knows a secret of the service. It prints nothing else
and logs nothing, for the texts of its errors quote what was typed. It dies with the process that started it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, BinaryIO

from app.adapters.shopper_browser import browser, egress, errand, messages
from app.adapters.shopper_browser.egress import Egress
from app.ports.shopper import Bought, Failed, Product, Review, Step, Trouble, Unclear

_PR_SET_PDEATHSIG = 1  # prctl(2)


class Reporter:
    """Stands in for the one who sent the shopper: passes on what it says, and waits for the answers."""

    def __init__(self, reader: BinaryIO, writer: BinaryIO) -> None:
        """Take the two pipes."""
        self._reader = reader
        self._writer = writer

    def first_page(self) -> None:
        """Report."""
        messages.write(self._writer, "first_page")

    def found(self, product: Product) -> None:
        """Ask."""
        self._ask("found", asdict(product))

    def may_order(self, review: Review) -> None:
        """Ask."""
        self._ask("may_order", asdict(review))

    def stepped(self, step: Step) -> None:
        """Report."""
        messages.write(self._writer, "stepped", **asdict(step))

    def saw(self, name: str, png: bytes) -> None:
        """Report."""
        messages.write(self._writer, "saw", name=name, png=messages.picture(png))

    def alive(self) -> None:
        """Say nothing: the parent sees for itself that this process lives."""

    def _ask(self, kind: str, values: Mapping[str, Any]) -> None:
        messages.write(self._writer, kind, **values)
        answer = messages.read(self._reader)
        if answer["kind"] == "stop":
            raise messages.failure_of(answer)
        if answer["kind"] != "go":
            raise messages.Closed


def main(reader: BinaryIO, writer: BinaryIO) -> None:
    """Run one errand."""
    order = messages.read(reader)
    wanted = messages.errand_of(order["errand"])
    rules = Egress(private=bool(order["private"]), reachable=tuple(order["reachable"]))
    try:
        with (
            egress.serve(rules) as proxy,
            browser.context(
                str(order["browser"]), proxy=proxy, environment=dict(order["environment"])
            ) as context,
        ):
            ended = errand.run(context, wanted, Reporter(reader, writer))
            # Said before the browser is closed: what is known must not be lost by a browser that does not end.
            messages.write(writer, "bought" if isinstance(ended, Bought) else "reviewed", **asdict(ended))
    except Failed as failure:
        messages.write(writer, "failed", **messages.failure_values(failure))
    except Unclear as unclear:
        messages.write(writer, "unclear", message=unclear.message)
    except messages.Closed:
        return
    except Exception as error:
        # The class says enough for a log; the text may quote what was typed.
        broken = Failed(Trouble.BROWSER_ERROR, f"The browser failed ({type(error).__name__}).")
        messages.write(writer, "failed", **messages.failure_values(broken))


def _die_with_the_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(sys.argv[1]):
            os._exit(1)


if __name__ == "__main__":
    _die_with_the_parent()
    # Whatever else prints must not get between the messages.
    _out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    main(sys.stdin.buffer, _out)
