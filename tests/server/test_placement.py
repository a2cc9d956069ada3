"""Web processes share the processors equally, also after one was replaced."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from server.placement import choose_processor
from tests.support.services import WebService, web_service
from tests.support.waiting import wait_until


@pytest.mark.parametrize(
    ("allowed", "processes", "taken", "expected"),
    [
        ({0, 1}, 2, [], 0),
        ({0, 1}, 2, [0], 1),
        ({0, 1}, 2, [1], 0),
        ({3, 5}, 4, [3, 5, 3], 5),
        ({3}, 2, [3], 3),
        # Others may use the rest, or the processes would not get equal parts.
        ({0, 1, 2, 3}, 2, [], None),
        ({0, 1}, 3, [0, 1], None),
        (set(), 2, [], None),
    ],
)
def test_a_process_gets_the_processor_with_the_fewest(
    allowed: set[int], processes: int, taken: list[int], expected: int | None
) -> None:
    assert choose_processor(allowed, processes, taken) == expected


@pytest.fixture
def service(_sqlite_template: Path, tmp_path: Path) -> Iterator[WebService]:
    """A service with as many web processes as there are processors."""
    database = tmp_path / "own.sqlite"
    shutil.copy(_sqlite_template, database)
    with web_service(f"sqlite:///{database}", workers=len(os.sched_getaffinity(0)), threads=8) as running:
        yield running


def workers_of(service: WebService) -> list[int]:
    master = service.process.pid
    return [int(each) for each in Path(f"/proc/{master}/task/{master}/children").read_text().split()]


def test_each_process_stays_on_a_processor_of_its_own(service: WebService) -> None:
    each_once = [[processor] for processor in sorted(os.sched_getaffinity(0))]

    def are_placed(*, without: int = 0) -> bool:
        workers = workers_of(service)
        return without not in workers and sorted(sorted(os.sched_getaffinity(each)) for each in workers) == each_once

    wait_until(are_placed)
    # Twice, so that a choice by the number of processes started so far fails once.
    for _ in range(2):
        replaced = workers_of(service)[-1]
        os.kill(replaced, signal.SIGKILL)
        wait_until(partial(are_placed, without=replaced))
