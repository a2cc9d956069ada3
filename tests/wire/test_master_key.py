from __future__ import annotations

from tests.support.wire import Wire
from tests.wire.conftest import MASTER_KEY


def test_the_bootstrap_master_key_works_from_the_first_response(wire: Wire) -> None:
    """Without a scheduler, which would also create it."""
    status, _, body = wire.service.ask("GET", "/v1/platform/agents", headers={"X-Master-Key": MASTER_KEY})
    assert status == 200, body
