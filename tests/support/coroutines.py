"""Running a coroutine in a test, whatever else lives in its process."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run_apart(story: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a thread of its own: the browser of other tests keeps a loop running in the main one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, story).result()
