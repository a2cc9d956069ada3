"""`python -m benchmarks.pruning`: the steps of the sweep that prune, unit after unit, until nothing is left.

A process of its own, so that it can be killed. Writes a line of JSON for each unit.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from datetime import timedelta

from app.config import Settings
from app.core import clock, pacing
from app.factory import create_app
from app.ports import provider
from app.spending import retention as spending_retention
from app.usage import retention as usage_retention
from app.wallets import retention as wallets_retention
from app.web import idempotency
from benchmarks import stack


def main() -> None:
    """Prune, and tell of each unit."""
    app = create_app(Settings(**stack.settings_of(dict(os.environ))))
    with app.app_context():
        now = clock.now()
        before = now - timedelta(days=provider.settings().retention_days)
        steps: dict[str, Callable[[], int]] = {
            "usage": lambda: usage_retention.prune(before, units=1),
            "spending": lambda: spending_retention.prune(before.date(), units=1),
            "history": lambda: wallets_retention.prune(before, units=1),
            "answers": lambda: idempotency.prune(now, units=1),
        }
        busy = True
        while busy:
            busy = False
            for name, step in steps.items():
                for _ in pacing.units(50):
                    started = time.perf_counter()
                    rows = step()
                    spent = (time.perf_counter() - started) * 1000
                    print(
                        json.dumps({"at": time.time(), "step": name, "rows": rows, "ms": spent}), flush=True
                    )
                    busy = busy or rows > 0
                    if not rows:
                        break


if __name__ == "__main__":
    main()
