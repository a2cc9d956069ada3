"""Web processes share the processors equally, also after one was replaced."""

from __future__ import annotations

import os
import shutil
import signal
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


def workers_of(service: WebService) -> list[int]:
    master = service.process.pid
    return [int(each) for each in Path(f"/proc/{master}/task/{master}/children").read_text().split()]


def test_each_process_stays_on_a_processor_of_its_own(_sqlite_template: Path, tmp_path: Path) -> None:
    database = tmp_path / "own.sqlite"
    shutil.copy(_sqlite_template, database)
    allowed = os.sched_getaffinity(0)
    each_once = sorted([processor] for processor in allowed)

    with web_service(f"sqlite:///{database}", workers=len(allowed), threads=8) as service:

        def processors() -> list[list[int]]:
            return sorted(sorted(os.sched_getaffinity(worker)) for worker in workers_of(service))

        wait_until(lambda: processors() == each_once)
        # Twice, so that a choice by the number of processes started so far fails once.
        for _ in range(2):
            replaced = workers_of(service)[-1]
            os.kill(replaced, signal.SIGKILL)
            wait_until(lambda gone=replaced: gone not in workers_of(service) and processors() == each_once)
