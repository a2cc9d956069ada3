"""The way to the nodes: fail-over, batches, connections."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from web3 import Web3

from app.adapters.evm.endpoint import Call, EndpointFailed, RpcError
from app.adapters.evm.rpc import JsonRpc
from app.adapters.evm.wire import quantity
from app.core.chains import ChainName
from app.ports.errors import Rejected, Unreachable
from tests.support.loopback_http import Asked, LoopbackServer, Reply, serve, unused_url

CHAIN_ID = 900001


def rpc_at(*urls: str, read_seconds: float = 5) -> JsonRpc:
    return JsonRpc(
        ChainName.ETHEREUM, chain_id=CHAIN_ID, urls=urls, connect_seconds=1, read_seconds=read_seconds
    )


def result_of(call: dict[str, Any]) -> dict[str, Any]:
    """Answer like a node that is at block 7 and echoes what it does not know."""
    results = {"eth_chainId": hex(CHAIN_ID), "eth_blockNumber": "0x7", "web3_clientVersion": "loopback"}
    result = results.get(call["method"], call["params"][0] if call["params"] else None)
    return {"jsonrpc": "2.0", "id": call["id"], "result": result}


def node(asked: Asked) -> Reply:
    body = json.loads(asked.body)
    answer = [result_of(call) for call in body] if isinstance(body, list) else result_of(body)
    return Reply(json.dumps(answer).encode())


def echo(number: int) -> Call[int]:
    return Call("echo", (hex(number),), read=quantity)


@contextmanager
def two_nodes(first: Callable[[Asked], Reply]) -> Iterator[tuple[LoopbackServer, LoopbackServer, JsonRpc]]:
    """Serve a first endpoint of the test's making and a second one that works."""
    with serve(first) as bad, serve(node) as good:
        yield bad, good, rpc_at(bad.url, good.url)


def block_number(rpc: JsonRpc) -> int:
    call = Call("eth_blockNumber", (), read=quantity)
    rpc.run(call)
    return call.answer


def methods(server: LoopbackServer) -> list[str]:
    bodies = [json.loads(asked.body) for asked in server.asked]
    return [call["method"] for body in bodies for call in (body if isinstance(body, list) else [body])]


@pytest.mark.parametrize(
    "broken",
    [
        Reply(b"", status=500),
        Reply(b"slow down", status=429),
        Reply(b"", status=401),
        Reply(b"", status=302, headers={"Location": "http://127.0.0.1:9/"}),
        Reply(None),
        Reply(b"<html>"),
        Reply(b"[]"),
        Reply(b"null"),
        Reply(b"[" * 100_000),
        Reply(b'{"jsonrpc":"2.0","id":99,"result":"0x7"}'),
        Reply(b'{"jsonrpc":"2.0","id":0}'),
        Reply(b'{"jsonrpc":"2.0","id":0,"error":{"code":"x"}}'),
        Reply(b'{"jsonrpc":"2.0","id":0,"error":{"code":-32005,"message":"daily request limit exceeded"}}'),
        Reply(b'[{"jsonrpc":"2.0","id":0,"result":"0x7"},{"jsonrpc":"2.0","id":0,"result":"0x7"}]'),
    ],
    ids=lambda reply: f"{reply.status} {(reply.body or b'hang up')[:60]!r}",
)
def test_an_endpoint_that_fails_is_passed_over_and_spared_for_a_while(broken: Reply) -> None:
    with two_nodes(lambda _asked: broken) as (bad, good, rpc):
        assert block_number(rpc) == 7
        tried = len(bad.asked)
        assert block_number(rpc) == 7
        assert len(bad.asked) == tried, "it is not asked again at once"
        assert len(good.asked) == 2

    with serve(lambda _asked: broken) as alone, pytest.raises(Unreachable):
        block_number(rpc_at(alone.url))


def test_silence_and_refused_connections_are_passed_over() -> None:
    hanging = threading.Event()

    def hang(_asked: Asked) -> Reply:
        hanging.wait(5)
        return Reply(None)

    with serve(hang) as silent, serve(node) as good:
        started = time.monotonic()
        assert block_number(rpc_at(unused_url(), silent.url, good.url, read_seconds=0.3)) == 7
        assert time.monotonic() - started < 3
        hanging.set()


def test_an_endpoint_that_drips_its_answer_cannot_hold_us_for_long() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    try:
                        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                        for _ in range(100):
                            connection.sendall(b" ")
                            time.sleep(0.05)
                    except OSError:
                        continue

        threading.Thread(target=drip, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with serve(node) as good:
            started = time.monotonic()
            assert block_number(rpc_at(url, good.url, read_seconds=0.3)) == 7
            assert time.monotonic() - started < 3


def test_an_endpoint_that_rested_is_asked_when_all_others_fail() -> None:
    state = {"broken": True}

    def moody(asked: Asked) -> Reply:
        return Reply(b"", status=503) if state["broken"] else node(asked)

    with serve(moody) as first, serve(moody) as second:
        rpc = rpc_at(first.url, second.url)
        with pytest.raises(Unreachable):
            block_number(rpc)
        state["broken"] = False
        assert block_number(rpc) == 7


def test_an_endpoint_of_another_chain_is_never_believed() -> None:
    def mainnet(asked: Asked) -> Reply:
        return Reply(node(asked).body.replace(hex(CHAIN_ID).encode(), b"0x1"))  # type: ignore[union-attr]

    with two_nodes(mainnet) as (bad, good, rpc):
        assert block_number(rpc) == 7
        assert methods(good) == ["eth_chainId", "eth_blockNumber"]
        with pytest.raises(Rejected) as wrong:
            rpc.verify_identity()
        assert wrong.value.reason == "wrong_chain"
        assert wrong.value.details == {"endpoint": "1", "expected": str(CHAIN_ID), "served": "1"}
        with pytest.raises(Unreachable):
            block_number(rpc_at(bad.url))


def test_identity_is_proved_by_those_who_answer() -> None:
    with serve(node) as good:
        rpc_at(unused_url(), good.url).verify_identity()
    with pytest.raises(Unreachable):
        rpc_at(unused_url()).verify_identity()


def test_a_batch_is_one_request_and_answers_find_their_calls_in_any_order() -> None:
    def shuffled(asked: Asked) -> Reply:
        answers = json.loads(node(asked).body or b"")
        return Reply(json.dumps(answers[::-1] if isinstance(answers, list) else answers).encode())

    with serve(shuffled) as server:
        rpc = rpc_at(server.url)
        calls = [echo(number) for number in range(250)]
        rpc.run(*calls)

        assert [call.answer for call in calls] == list(range(250))
        assert len(server.asked) == 3
        assert max(len(json.loads(asked.body)) for asked in server.asked) == 100


@pytest.mark.parametrize("status", [200, 413])
def test_an_endpoint_that_takes_short_batches_gets_short_ones_and_is_remembered(status: int) -> None:
    def picky(asked: Asked) -> Reply:
        body = json.loads(asked.body)
        if isinstance(body, list) and len(body) > 10:
            error = {"code": -32600, "message": "maximum 10 calls in 1 batch"}
            refusal = {"jsonrpc": "2.0", "id": None, "error": error}
            return Reply(json.dumps(refusal).encode(), status=status)
        return node(asked)

    with serve(picky) as server:
        rpc = rpc_at(server.url)
        calls = [echo(number) for number in range(60)]
        rpc.run(*calls)
        asked = len(server.asked)
        rpc.run(*calls)

        assert [call.answer for call in calls] == list(range(60))
        sizes = [len(json.loads(request.body)) for request in server.asked[asked:]]
        assert sum(sizes) == 60, "nothing is tried and refused again"
        assert max(sizes) <= 10


def test_a_tolerated_error_is_an_answer_and_any_other_is_the_endpoints_failure() -> None:
    def erring(asked: Asked) -> Reply:
        calls = json.loads(asked.body)
        error = {"code": -32000, "message": "header not found"}
        return Reply(
            json.dumps(
                [
                    {"jsonrpc": "2.0", "id": call["id"], "error": error}
                    if call["method"] == "echo"
                    else result_of(call)
                    for call in calls
                ]
            ).encode()
        )

    with serve(erring) as server:
        tolerant = Call("echo", ("0x1",), read=quantity, tolerates=lambda error: "header" in error.message)
        number = Call("eth_blockNumber", (), read=quantity)
        rpc = rpc_at(server.url)
        rpc.run(tolerant, number)
        assert tolerant.error == RpcError(-32000, "header not found")
        assert number.answer == 7
        with pytest.raises(Unreachable):
            rpc.run(number, echo(1))


def test_no_cookie_is_kept_and_no_redirect_followed() -> None:
    def nosy(asked: Asked) -> Reply:
        reply = node(asked)
        return Reply(reply.body, headers={"Set-Cookie": "tracker=1; Path=/"})

    with serve(nosy) as server, serve(node) as elsewhere:
        rpc = rpc_at(server.url)
        block_number(rpc)
        block_number(rpc)
        assert not [asked for asked in server.asked if "Cookie" in asked.headers]

        def redirecting(_asked: Asked) -> Reply:
            return Reply(b"", status=307, headers={"Location": elsewhere.url})

        server.answer = redirecting
        with pytest.raises(Unreachable):
            block_number(rpc)
        assert elsewhere.asked == []


def test_a_proxy_in_the_environment_does_not_come_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", unused_url())
    monkeypatch.setenv("http_proxy", unused_url())
    with serve(node) as server:
        assert block_number(rpc_at(server.url)) == 7


def test_one_connection_serves_many_calls_and_a_fork_opens_its_own() -> None:
    with serve(node) as server:
        rpc = rpc_at(server.url)
        assert server.connections == 0, "nothing is opened before the first call"
        for _ in range(5):
            block_number(rpc)
        assert server.connections == 1

        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(write_end, str(block_number(rpc)).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.close(write_end)
        with os.fdopen(read_end) as pipe:
            assert pipe.read() == "7"
        assert server.connections == 2
        assert block_number(rpc) == 7


def test_two_hundred_threads_share_one_pool() -> None:
    with serve(node) as server:
        # Generous, for the server of the test accepts few connections at a time.
        rpc = JsonRpc(
            ChainName.ETHEREUM, chain_id=CHAIN_ID, urls=[server.url], connect_seconds=20, read_seconds=20
        )
        answers: list[int] = []

        def work() -> None:
            for _ in range(3):
                call = echo(5)
                rpc.run(call)
                answers.append(call.answer)

        threads = [threading.Thread(target=work) for _ in range(200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert answers == [5] * 600
        assert server.connections <= 200


def test_a_node_that_closes_idle_connections_costs_nothing() -> None:
    closing = {"now": False}

    def closer(asked: Asked) -> Reply:
        if closing["now"]:
            closing["now"] = False
            return Reply(None)
        return node(asked)

    with serve(closer) as server:
        rpc = rpc_at(server.url)
        block_number(rpc)
        closing["now"] = True
        assert block_number(rpc) == 7


def test_a_first_try_that_may_have_arrived_is_not_forgotten_when_the_second_finds_nobody() -> None:
    # The node reads the request and is gone, with its address: the second try certainly reaches no node.
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def read_and_vanish() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                listener.close()

        node_that_dies = threading.Thread(target=read_and_vanish)
        node_that_dies.start()
        (endpoint,) = rpc_at(f"http://127.0.0.1:{listener.getsockname()[1]}").candidates()

        with pytest.raises(EndpointFailed) as failed:
            endpoint.run([echo(1)])
        node_that_dies.join()

    assert failed.value.perhaps_executed


def test_importing_the_adapter_leaves_pythons_recursion_limit_alone() -> None:
    # A body of 100 000 brackets would end the process by a segmentation fault otherwise.
    program = (
        "import json, sys, app.adapters.evm.chain\n"
        "assert sys.getrecursionlimit() == 1000\n"
        "try: json.loads('[' * 100_000)\n"
        "except RecursionError: print('refused')"
    )

    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)

    assert ended.stdout.strip() == "refused"


def test_web3_reads_through_it_and_can_send_nothing() -> None:
    with serve(node) as server:
        rpc = rpc_at(unused_url(), server.url)
        web3 = Web3(rpc)

        assert web3.eth.block_number == 7
        assert web3.is_connected()
        with pytest.raises(ValueError, match="broadcast"):
            web3.eth.send_raw_transaction(b"\x02")
        assert "eth_sendRawTransaction" not in methods(server)
        assert not Web3(rpc_at(unused_url())).is_connected()


def test_a_chain_without_endpoints_is_a_mistake_at_the_start() -> None:
    with pytest.raises(ValueError, match="endpoint"):
        rpc_at()
