"""Access to nodes: failover, batches, connections."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

import pytest

from app.adapters.evm import calls
from app.adapters.evm.calls import EvmRpc, head
from app.adapters.http_client import HttpClient, ResponseTooLargeError
from app.adapters.jsonrpc.calls import EndpointError, RpcCall, RpcError
from app.core.chains import ChainName
from app.ports.errors import Unreachable
from tests.support.loopback_http import Asked, RecordingServer, Reply, serve, unused_url

CHAIN_ID = 900001


def rpc_at(*urls: str, read_seconds: float = 5) -> EvmRpc:
    return EvmRpc(ChainName.ETHEREUM, chain_id=CHAIN_ID, urls=urls, connect_seconds=1, read_seconds=read_seconds)


def result_of(call: dict[str, Any]) -> dict[str, Any]:
    """Answer like a node at block 7 that echoes unknown methods."""
    results = {"eth_chainId": hex(CHAIN_ID), "eth_blockNumber": "0x7", "web3_clientVersion": "loopback"}
    result = results.get(call["method"], call["params"][0] if call["params"] else None)
    return {"jsonrpc": "2.0", "id": call["id"], "result": result}


def node(asked: Asked) -> Reply:
    body = json.loads(asked.body)
    answer = [result_of(call) for call in body] if isinstance(body, list) else result_of(body)
    return Reply(json.dumps(answer).encode())


def send() -> RpcCall[str]:
    return RpcCall("eth_sendRawTransaction", ("0x02",), read=str)


def echo(number: int) -> RpcCall[int]:
    return RpcCall("echo", (hex(number),), read=lambda result: int(str(result), 16))


@contextmanager
def two_nodes(first: Callable[[Asked], Reply]) -> Iterator[tuple[RecordingServer, RecordingServer, EvmRpc]]:
    """Serve a first endpoint defined by the test and a second one that works."""
    with serve(first) as bad, serve(node) as good:
        yield bad, good, rpc_at(bad.url, good.url)


def block_number(rpc: EvmRpc) -> int:
    call = head()
    rpc.run(call)
    return call.result


def test_installed_decoders_do_not_change_accept_encoding() -> None:
    with serve(node) as server:
        block_number(rpc_at(server.url))
        HttpClient(connect_seconds=1, total_seconds=5).post(server.url, b'{"method":"echo","params":["0x1"],"id":1}')
        assert {asked.headers["Accept-Encoding"] for asked in server.asked} == {"gzip, deflate"}


def methods(server: RecordingServer) -> list[str]:
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
def test_a_failing_endpoint_is_skipped_for_a_while(broken: Reply) -> None:
    with two_nodes(lambda _asked: broken) as (bad, good, rpc):
        assert block_number(rpc) == 7
        tried = len(bad.asked)
        assert block_number(rpc) == 7
        assert len(bad.asked) == tried, "it is not called again immediately"
        assert len(good.asked) == 2

    with serve(lambda _asked: broken) as alone, pytest.raises(Unreachable):
        block_number(rpc_at(alone.url))


def test_web3_reads_through_the_endpoints_and_their_failover() -> None:
    with two_nodes(lambda _asked: Reply(b"", status=503)) as (_, good, rpc):
        assert rpc.w3.eth.block_number == 7
        with rpc.w3.batch_requests() as batch:
            for _ in range(3):
                batch.add(rpc.w3.eth.block_number)
            assert batch.execute() == [7, 7, 7]
        assert len(good.asked) == 2


def test_web3_sends_no_transaction() -> None:
    with serve(node) as server, pytest.raises(ValueError, match="broadcaster"):
        rpc_at(server.url).w3.eth.send_raw_transaction(b"\2")
    assert server.asked == []


def test_silent_and_unreachable_endpoints_are_skipped() -> None:
    hanging = threading.Event()

    def hang(_asked: Asked) -> Reply:
        hanging.wait(5)
        return Reply(None)

    with serve(hang) as silent, serve(node) as good:
        started = time.monotonic()
        assert block_number(rpc_at(unused_url(), silent.url, good.url, read_seconds=0.3)) == 7
        assert time.monotonic() - started < 3
        hanging.set()


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\nX-Long: ", b"a"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
    ids=["body", "head", "informational responses"],
)
def test_a_trickling_response_is_cut_off_by_the_deadline(start: bytes, piece: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def trickle() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    try:
                        connection.sendall(start)
                        for _ in range(100):
                            connection.sendall(piece)
                            time.sleep(0.05)
                    except OSError:
                        continue

        threading.Thread(target=trickle, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with serve(node) as good:
            started = time.monotonic()
            assert block_number(rpc_at(url, good.url, read_seconds=0.3)) == 7
            assert time.monotonic() - started < 3


def test_a_small_response_that_expands_without_bound_is_cut_off() -> None:
    expanded = 200 * 2**20
    bomb = gzip.compress(b" " * expanded, compresslevel=9)
    with serve(lambda _asked: Reply(bomb, headers={"Content-Encoding": "gzip"})) as server:
        tracemalloc.start()
        try:
            with pytest.raises(ResponseTooLargeError):
                HttpClient(connect_seconds=1, total_seconds=20, max_bytes=2**20).post(server.url, b"{}")
            assert tracemalloc.get_traced_memory()[1] < expanded / 20
        finally:
            tracemalloc.stop()


def test_a_skipped_endpoint_is_used_when_all_others_fail() -> None:
    state = {"broken": True}

    def unreliable(asked: Asked) -> Reply:
        return Reply(b"", status=503) if state["broken"] else node(asked)

    with serve(unreliable) as first, serve(unreliable) as second:
        rpc = rpc_at(first.url, second.url)
        with pytest.raises(Unreachable):
            block_number(rpc)
        state["broken"] = False
        assert block_number(rpc) == 7


def problems(rpc: EvmRpc) -> list[str | None]:
    return [endpoint.problem for endpoint in rpc.diagnose(calls.head, lambda _endpoint: ()).endpoints]


def test_an_endpoint_of_another_chain_is_never_used() -> None:
    def mainnet(asked: Asked) -> Reply:
        return Reply(node(asked).body.replace(hex(CHAIN_ID).encode(), b"0x1"))  # type: ignore[union-attr]

    with two_nodes(mainnet) as (bad, good, rpc):
        assert block_number(rpc) == 7
        assert methods(good) == ["eth_chainId", "eth_blockNumber"]
        assert problems(rpc) == ["wrong_chain", None]
        with pytest.raises(Unreachable):
            block_number(rpc_at(bad.url))


def test_the_chain_id_is_verified_by_the_endpoints_that_answer() -> None:
    with serve(node) as good:
        assert problems(rpc_at(unused_url(), good.url)) == ["it cannot be connected to (Connection refused)", None]


def test_a_batch_is_one_request_and_replies_may_come_in_any_order() -> None:
    def shuffled(asked: Asked) -> Reply:
        answers = json.loads(node(asked).body or b"")
        return Reply(json.dumps(answers[::-1] if isinstance(answers, list) else answers).encode())

    with serve(shuffled) as server:
        rpc = rpc_at(server.url)
        calls = [echo(number) for number in range(250)]
        rpc.run(*calls)

        assert [call.result for call in calls] == list(range(250))
        assert len(server.asked) == 3
        assert max(len(json.loads(asked.body)) for asked in server.asked) == 100


@pytest.mark.parametrize("status", [200, 413])
def test_the_batch_limit_of_an_endpoint_is_learned(status: int) -> None:
    def limited(asked: Asked) -> Reply:
        body = json.loads(asked.body)
        if isinstance(body, list) and len(body) > 10:
            error = {"code": -32600, "message": "maximum 10 calls in 1 batch"}
            refusal = {"jsonrpc": "2.0", "id": None, "error": error}
            return Reply(json.dumps(refusal).encode(), status=status)
        return node(asked)

    with serve(limited) as server:
        rpc = rpc_at(server.url)
        calls = [echo(number) for number in range(60)]
        rpc.run(*calls)
        asked = len(server.asked)
        rpc.run(*calls)

        assert [call.result for call in calls] == list(range(60))
        sizes = [len(json.loads(request.body)) for request in server.asked[asked:]]
        assert sum(sizes) == 60, "the learned limit is used from then on"
        assert max(sizes) <= 10


def test_a_tolerated_error_is_a_result_and_any_other_fails_the_endpoint() -> None:
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
        tolerant = RpcCall(
            "echo",
            ("0x1",),
            read=lambda result: int(str(result), 16),
            tolerates=lambda error: "header" in error.message,
        )
        number = head()
        rpc = rpc_at(server.url)
        rpc.run(tolerant, number)
        assert tolerant.error == RpcError(-32000, "header not found")
        assert number.result == 7
        with pytest.raises(Unreachable):
            rpc.run(number, echo(1))


def test_a_mistake_of_our_own_reader_is_not_taken_for_an_answer_of_the_endpoint() -> None:
    mistaken = RpcCall("echo", (), read=lambda _result: dict[str, str]()["missing"])
    with pytest.raises(KeyError):
        mistaken.set_reply({"result": "0x7"})
    with pytest.raises(EndpointError, match="unexpected_answer"):
        mistaken.set_reply({"id": 1})


def test_no_cookie_is_stored_and_no_redirect_followed() -> None:
    def recording(asked: Asked) -> Reply:
        reply = node(asked)
        return Reply(reply.body, headers={"Set-Cookie": "tracker=1; Path=/"})

    with serve(recording) as server, serve(node) as elsewhere:
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


def test_a_proxy_in_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
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
        # Generous, because two hundred threads of one process share a processor.
        rpc = EvmRpc(ChainName.ETHEREUM, chain_id=CHAIN_ID, urls=[server.url], connect_seconds=90, read_seconds=90)
        answers: list[int] = []

        def work() -> None:
            for _ in range(3):
                call = echo(5)
                rpc.run(call)
                answers.append(call.result)

        threads = [threading.Thread(target=work) for _ in range(200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert answers == [5] * 600
        assert server.connections <= 200


def test_a_node_that_closes_idle_connections_costs_nothing() -> None:
    closing = {"now": False}

    def closes_idle(asked: Asked) -> Reply:
        if closing["now"]:
            closing["now"] = False
            return Reply(None)
        return node(asked)

    with serve(closes_idle) as server:
        rpc = rpc_at(server.url)
        block_number(rpc)
        closing["now"] = True
        assert block_number(rpc) == 7


def read_request(received: IO[bytes]) -> None:
    received.readline()
    headers = http.client.parse_headers(received)
    received.read(int(headers["Content-Length"]))


def test_a_possibly_executed_first_attempt_is_reported_after_a_refused_second() -> None:
    # The node reads the transaction and disappears: the second attempt certainly reaches no node.
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def identify_then_read_and_close() -> None:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as received:
                read_request(received)
                identity = b'{"jsonrpc":"2.0","id":0,"result":"%s"}' % hex(CHAIN_ID).encode()
                head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(identity)
                connection.sendall(head + identity)
                read_request(received)
                listener.close()

        node_that_dies = threading.Thread(target=identify_then_read_and_close)
        node_that_dies.start()
        (endpoint,) = rpc_at(f"http://127.0.0.1:{listener.getsockname()[1]}").candidates()

        with pytest.raises(EndpointError) as failed:
            endpoint.run([send()])
        node_that_dies.join()

    assert failed.value.perhaps_executed


def test_a_transaction_is_not_sent_again_on_a_connection_that_breaks() -> None:
    received: list[str] = []

    def read_and_close(asked: Asked) -> Reply:
        received.append(json.loads(asked.body)["method"])
        return node(asked) if received[-1] == "eth_chainId" else Reply(None)

    with serve(read_and_close) as server:
        (endpoint,) = rpc_at(server.url).candidates()
        with pytest.raises(EndpointError) as failed:
            endpoint.run([send()])
    assert failed.value.perhaps_executed
    assert received == ["eth_chainId", "eth_sendRawTransaction"]


RECEIPT = {
    "transactionHash": "0x" + "ab" * 32, "blockHash": "0x" + "cd" * 32, "blockNumber": "0x10", "status": "0x1",
    "gasUsed": "0x5208", "effectiveGasPrice": "0x1", "logs": [],
}  # fmt: skip


def read(call: RpcCall[Any], result: object) -> Any:
    call.set_reply({"jsonrpc": "2.0", "id": 0, "result": result})
    return call.result


def test_a_field_that_nobody_reads_does_not_spoil_a_receipt() -> None:
    found = read(calls.receipt("0x" + "ab" * 32), {**RECEIPT, "l1FeeScalar": "0"})
    assert found.gas_used == 21_000
    with pytest.raises(EndpointError):
        read(calls.receipt("0x" + "ab" * 32), {**RECEIPT, "gasUsed": "21000"})


@pytest.mark.parametrize("text", ["", "f", "0x1", "6001", "0xzz"])
def test_what_is_not_whole_bytes_is_no_code(text: str) -> None:
    with pytest.raises(EndpointError):
        read(calls.code("0x" + "11" * 20), text)


def test_no_transaction_is_sent_to_an_endpoint_before_it_is_identified() -> None:
    def mainnet(asked: Asked) -> Reply:
        return Reply(node(asked).body.replace(hex(CHAIN_ID).encode(), b"0x1"))  # type: ignore[union-attr]

    for answer in (mainnet, lambda _asked: Reply(None), lambda _asked: Reply(b"", status=503)):
        with serve(answer) as server:
            (endpoint,) = rpc_at(server.url).candidates()
            with pytest.raises(EndpointError) as failed:
                endpoint.run([send()])

        assert set(methods(server)) == {"eth_chainId"}
        assert not failed.value.perhaps_executed


def test_importing_the_adapter_keeps_pythons_recursion_limit() -> None:
    # A body of 100 000 brackets would otherwise kill the process by a segmentation fault.
    program = (
        "import json, sys, app.adapters.evm.chain\n"
        "assert sys.getrecursionlimit() == 1000\n"
        "try: json.loads('[' * 100_000)\n"
        "except RecursionError: print('refused')"
    )

    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)

    assert ended.stdout.strip() == "refused"


def test_a_chain_without_endpoints_is_a_configuration_error() -> None:
    with pytest.raises(ValueError, match="endpoint"):
        rpc_at()
