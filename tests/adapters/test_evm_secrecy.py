"""The key in an endpoint's URL is never shown, however the endpoint fails."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence

import pytest

from app.adapters.evm.calls import EvmRpc, head
from app.core.chains import ChainName
from app.ports.errors import PortError
from tests.support.loopback_http import Asked, Reply, serve, unused_url

CHAIN_ID = 900001
SECRET = "canary-0123456789abcdef"


def rpc_at(*urls: str, read_seconds: float = 5) -> EvmRpc:
    return EvmRpc(ChainName.ETHEREUM, chain_id=CHAIN_ID, urls=urls, connect_seconds=1, read_seconds=read_seconds)


def block_number(rpc: EvmRpc) -> int:
    call = head()
    rpc.run(call)
    return call.result


FAILURES: Sequence[Callable[[Asked], Reply]] = (
    lambda _asked: Reply(b"", status=503),
    lambda _asked: Reply(b"<html>"),
    lambda _asked: Reply(None),
    lambda asked: Reply(json.dumps({"jsonrpc": "2.0", "id": 0, "error": asked.target}).encode()),
    lambda asked: Reply(
        json.dumps([{"jsonrpc": "2.0", "id": 0, "error": {"code": 1, "message": asked.target}}]).encode()
    ),
)


def test_the_key_in_a_url_is_in_no_exception_repr_or_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    # As `app.observability.telemetry` configures it: it logs whole URLs.
    logging.getLogger("urllib3").setLevel(logging.WARNING)
    raised: list[BaseException] = []
    shown: list[str] = []

    def failures_at(base: str) -> None:
        with_key = f"{base.replace('http://', f'http://user:{SECRET}@')}/v2/{SECRET}?key={SECRET}"
        rpc = rpc_at(with_key, read_seconds=0.5)
        shown.extend([repr(rpc), str(rpc), repr(rpc.candidates())])
        shown.append(repr(rpc.diagnose(head, lambda _endpoint: ())))
        try:
            block_number(rpc)
        except PortError as error:
            raised.append(error)
            shown.append(repr(error) + str(error.details))

    for failure in FAILURES:
        with serve(failure) as server:
            failures_at(server.url)
    failures_at(unused_url())
    failures_at("http://127.0.0.1:99999")
    failures_at("http://[not-an-address")

    chained: list[BaseException] = []
    for error in raised:
        link: BaseException | None = error
        while link is not None:
            chained.append(link)
            link = link.__cause__ or link.__context__
    assert len(raised) == 8
    assert SECRET not in "".join(map(repr, chained))
    assert SECRET not in "".join(map(str, chained))
    assert SECRET not in "".join(shown)
    assert SECRET not in caplog.text
