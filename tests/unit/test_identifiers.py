"""Generated ids are unique in all threads and processes."""

from __future__ import annotations

import os
import uuid
from concurrent.futures import ThreadPoolExecutor

from app.core.identifiers import new_id, parse_id

_COUNT = 500


def test_an_id_is_a_random_uuid_in_canonical_form() -> None:
    made = {new_id() for _ in range(_COUNT)}
    assert len(made) == _COUNT
    assert all(parse_id(each) == each and uuid.UUID(each).version == 4 for each in made)
    assert {uuid.UUID(each).variant for each in made} == {uuid.RFC_4122}


def test_threads_get_different_ids() -> None:
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: new_id(), range(8 * _COUNT)))
    assert len(set(made)) == len(made)


def test_a_forked_process_gets_other_ids_than_its_parent() -> None:
    new_id()
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writable, new_id().encode())
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable) as received:
        of_child = received.read()
    assert os.waitpid(child, 0)[1] == 0
    assert parse_id(of_child)
    assert of_child not in {new_id() for _ in range(_COUNT)}
