"""The soak's clients: they register, read, call, pay and move money, and hang up, by choices that a seed repeats."""

import http.client
import itertools
import json
import random
import socket
import struct
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from requests.structures import CaseInsensitiveDict

from app.core.chains import ChainName
from benchmarks.load_generator import Request
from benchmarks.payers import Payers
from benchmarks.upstream import CHAT
from tests.support.payments import by_hash, decoded

BROKEN = 0
"""The status of a request without a complete response."""
_AGENTS = 24
_CLIENTS = 20
_TIMEOUT_SECONDS = 60.0
_ATTEMPTS = 5
_PAYMENT_ATTEMPTS = 20
_UNSERVED = (BROKEN, 402, 409, 502, 503, 504)
_FEE_ROSE = b"The network fee is higher than the price"
"""On the sandbox's Ethereum, whose base fee falls to nothing, a cent covers the fee until most of the newest blocks are
empty, as during a fault: then the tip that the node suggests counts, a thousand times what it was."""
_LATE_SECONDS = 5.0
_ABORT = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset
_CHAT_PATH = "/v1/gateway/openai/chat/completions"
_RPC_PATH = "/v1/gateway/alchemy/base"
_RPC_BODY = {"jsonrpc": "2.0", "id": 1, "method": "eth_blockNumber", "params": []}
_WALLET_READS = ("", "/transactions?limit=10", "/controls", "/balances")
_READS = ("/v1/balance", "/v1/usage", "/v1/catalog?q=wea", "/v1/services", "/v1/health", "/openapi.json")
_HALF = 0.5
_REPEATED_SHARE = 0.2
_UNLIMITED = {f"{window}_limit_usd": 0 for window in ("daily", "weekly", "monthly", "per_tx")}
_FUNDS = (
    ("ethereum", "ETH", "50"), ("ethereum", "USDC", "10000"), ("base", "ETH", "50"), ("base", "USDC", "10000"),
    ("solana", "SOL", "50"), ("solana", "USDC", "10000"),
)  # fmt: skip
_SPEC = {
    "openapi": "3.1.0",
    "info": {"title": "Weather", "version": "1"},
    "paths": {"/berlin": {"get": {"responses": {"200": {"description": "now"}}}}},
}
_OUTSIDE = {
    "ethereum": "0x00000000000000000000000000000000C0FFEE00",
    "base": "0x00000000000000000000000000000000C0FFEE00",
    "solana": "9xQeWvG816bUx9EPjHmaT23yvVM2ZWbrrpZb9PusVFin",
}
# What is sent, by relative frequency.
_WEIGHTS = {
    "read": 22, "chat": 14, "stream": 5, "stream, client hangs up": 4, "chat, upstream hangs up": 3,
    "fixed price": 12, "proxy": 9, "transfer on base": 7, "transfer on ethereum": 3, "transfer on solana": 4,
    "withdraw": 2, "fund": 3, "swap": 2, "bridge": 2, "top-up": 1, "register and claim": 3, "revoked key": 2,
    "refusal": 6, "x402, signed": 2, "x402, by hash": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answer:
    """A response, or a broken connection."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the document of the body. Raises: ValueError."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class _Agent:
    id: str
    key: str
    claim_code: str
    wallet_id: str
    addresses: Mapping[str, str]

    @property
    def wallet(self) -> str:
        return f"/v1/wallets/{self.wallet_id}"


class Traffic:
    """Clients in threads. Each draws its actions and their parameters from its own seeded generator."""

    def __init__(self, port: int, settings: Mapping[str, str], *, master_key: str, seed: int, rate: float) -> None:
        """Take the settings of the launcher, with the addresses of the sandbox, and a rate per second."""
        self._port = port
        self._settings = settings
        self._master_key = master_key
        self._seed = seed
        self._interval = _CLIENTS / rate
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._serial = itertools.count(1)
        self._threads: list[threading.Thread] = []
        self.outcomes: Counter[tuple[str, int]] = Counter()
        self.internal_errors = 0
        """Answers 500 that do not report a failed movement."""
        self.unexpected: list[str] = []
        self.by_key: defaultdict[str, set[str]] = defaultdict(set)
        """The transactions that were returned under each idempotency key."""

    def prepare(self, upstream: str) -> None:
        """Register and fund the agents, and offer a service."""
        register = partial(self._send, "POST", "/v1/agents/register", {"name": "soak"})
        self._agents = [_agent_of(register()) for _ in range(_AGENTS)]
        for agent in self._agents:
            self._expect(HTTPStatus.OK, self._as(agent, "PUT", f"{agent.wallet}/controls", _UNLIMITED))
            for chain, currency, amount in _FUNDS:
                self.give(agent.addresses[chain], chain, currency, amount)
        offer = {
            "name": "Weather", "category": "weather", "price_per_call_usd": 0.001, "openapi_spec": _SPEC,
            "base_url": upstream,
        }  # fmt: skip
        offered = self._as(self._agents[0], "POST", "/v1/services", offer)
        self._service_id = str(self._expect(HTTPStatus.CREATED, offered)["id"])
        self._payers = [Payers(self._settings["SOLANA_RPC_URL"]) for _ in range(_CLIENTS)]
        for payers in self._payers:
            for chain in _OUTSIDE:
                payer = payers.solana if chain == "solana" else payers.evm
                self.give(payer.address, chain, "USDC", "1000")

    def give(self, address: str, chain: str, currency: str, amount: str) -> str:
        """Have the faucet pay an address; return the transaction's hash. Raises: RuntimeError."""
        order = {
            "reference": f"soak-{next(self._serial)}", "chain": chain, "address": address, "currency": currency,
            "amount": amount,
        }  # fmt: skip
        port = urlsplit(self._settings["FAUCET_URL"]).port or 0
        for _ in range(_ATTEMPTS):
            answer = send(port, "POST", "/pay", order, {})
            if answer.status == HTTPStatus.OK:
                return str(answer.json()["tx_hash"])
            time.sleep(1)
        raise RuntimeError(f"the faucet answers {answer}")

    def start(self) -> None:
        """Start the clients."""
        for number in range(_CLIENTS):
            thread = threading.Thread(target=self._run_client, args=(number,), name=f"client {number}")
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Let the clients finish what they do, and end."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run_client(self, number: int) -> None:
        draw = random.Random(f"{self._seed} client {number}")
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due = max(due + draw.expovariate(1 / self._interval), time.monotonic() - _LATE_SECONDS)
            action = draw.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
            # Choices do not depend on responses: each action has a generator of its own.
            own, agent = random.Random(draw.random()), draw.choice(self._agents)
            try:
                self._act(action, agent, own, self._payers[number])
            except Exception as error:  # a client must not end; what it met is reported
                self._count(action, Answer(BROKEN, {}, b""), ())
                self._note(f"{action}: {type(error).__name__}: {error}")

    def _act(self, action: str, agent: _Agent, draw: random.Random, payers: Payers) -> None:
        special: dict[str, Callable[[], None]] = {
            "stream, client hangs up": lambda: self._hang_up(action, agent, draw),
            "register and claim": lambda: self._register_and_claim(action),
            "revoked key": lambda: self._revoke(action),
            "refusal": lambda: self._be_refused(action, agent, draw),
            "x402, signed": lambda: self._buy(action, draw, payers),
            "x402, by hash": lambda: self._buy(action, draw, payers),
        }
        if action in special:
            special[action]()
        elif call := self._calls(agent, draw).get(action):
            method, path, body, expected = call
            self._count(action, self._as(agent, method, path, body), expected)
        else:
            self._move(action, agent, draw)

    def _calls(self, agent: _Agent, draw: random.Random) -> dict[str, tuple[str, str, Any, tuple[int, ...]]]:
        """Return method, path, body and expected statuses of the actions that are one request."""
        read = draw.choice([*(agent.wallet + each for each in _WALLET_READS), *_READS])
        cut = {**CHAT, "stream": draw.random() < _HALF, "user": "cut"}
        return {
            "read": ("GET", read, None, (200, 502)),
            "chat": ("POST", _CHAT_PATH, CHAT, (200,)),
            "stream": ("POST", _CHAT_PATH, {**CHAT, "stream": True}, (200,)),
            "chat, upstream hangs up": ("POST", _CHAT_PATH, cut, (502,)),
            "fixed price": ("POST", _RPC_PATH, _RPC_BODY, (200, 502, 504)),
            "proxy": ("GET", f"/v1/proxy/{self._service_id}/berlin", None, (200,)),
        }

    def _move(self, action: str, agent: _Agent, draw: random.Random) -> None:
        path, body = _movement(action, agent, draw.choice(self._agents), draw, next(self._serial))
        headers = {"Idempotency-Key": f"soak-{next(self._serial)}"}
        if draw.random() < _HALF:
            headers["Prefer"] = "respond-async"
        answers = self._repeat(lambda: self._as(agent, "POST", path, body, headers), (BROKEN, 409, 503))
        if draw.random() < _REPEATED_SHARE:
            answers.append(self._as(agent, "POST", path, body, headers))
        for answer in answers:
            self._count(action, answer, (200, 409, 500, 502))
            if answer.status == HTTPStatus.OK:
                found = answer.json()
                identifier = found.get("transaction_id") or found["funding_request_id"]
                self.by_key[headers["Idempotency-Key"]].add(identifier)

    def _register_and_claim(self, action: str) -> None:
        answer = self._send("POST", "/v1/agents/register", {"name": "soak"})
        self._count(action, answer, (201,))
        if answer.status == HTTPStatus.CREATED:
            claimed = self._send("POST", "/v1/device/claim", {"code": _agent_of(answer).claim_code})
            self._count(action, claimed, (200,))

    def _revoke(self, action: str) -> None:
        answer = self._send("POST", "/v1/agents/register", {"name": "soak"})
        if answer.status != HTTPStatus.CREATED:
            return self._count(action, answer, (201,))
        agent = _agent_of(answer)
        rotated = self._send(
            "POST", f"/v1/platform/agents/{agent.id}/rotate-key", {"grace_seconds": 0},
            {"X-Master-Key": self._master_key},
        )  # fmt: skip
        self._count(action, rotated, (200,))
        if rotated.status == HTTPStatus.OK:
            self._count(action, self._as(agent, "GET", "/v1/balance"), (401,))
        return None

    def _be_refused(self, action: str, agent: _Agent, draw: random.Random) -> None:
        rich = {"chain": "base", "to": _OUTSIDE["base"], "amount": "1000000000", "currency": "USDC"}
        path, body, key, status = draw.choice(
            (
                (f"{agent.wallet}/transfer", rich, agent.key, 500),  # TRANSFER_FAILED
                (f"{agent.wallet}/transfer", {"chain": "moon"}, agent.key, 400),
                (f"{agent.wallet}/transfer", rich, "ak_unknown", 401),
                ("/v1/wallets/00000000-0000-4000-8000-000000000000/transfer", rich, agent.key, 404),
                (_RPC_PATH, _RPC_BODY, "", 402),
                ("/v1/device/claim", {"code": "AAAA-0000"}, "", 404),
            )
        )
        self._count(action, self._send("POST", path, body, {"X-API-Key": key} if key else {}), (status,))

    def _buy(self, action: str, draw: random.Random, payers: Payers, *, refused: str = "") -> None:
        """Pay for a call without a key; repeat it until it is served, on a chain other than one that was refused."""
        answer = self._send("POST", _RPC_PATH, _RPC_BODY)
        if answer.status != HTTPStatus.PAYMENT_REQUIRED:
            return self._count(action, answer, (402,))
        network = ""
        if action == "x402, signed":
            offered = decoded(answer.headers["PAYMENT-REQUIRED"])["accepts"]
            terms = draw.choice([each for each in offered if each["network"] != refused])
            headers, network = payers.sign(terms), terms["network"]
        else:
            recipient = answer.json()["payment"]["recipient"]
            headers = by_hash(self.give(recipient, "base", "USDC", "0.01"), ChainName.BASE)
        call = partial(self._send, "POST", _RPC_PATH, _RPC_BODY, headers)
        *earlier, last = self._repeat(call, _UNSERVED, attempts=_PAYMENT_ATTEMPTS)
        # A call that was cut off may have been served: its payment stays consumed. The end cuts repetitions short.
        is_uncertain = self._stop.is_set() or any(answer.status == BROKEN for answer in earlier)
        if last.status == HTTPStatus.PAYMENT_REQUIRED and _FEE_ROSE in last.body and not (is_uncertain or refused):
            return self._buy(action, draw, payers, refused=network)
        return self._count(action, last, (200, 402) if is_uncertain else (200,))

    def _hang_up(self, action: str, agent: _Agent, draw: random.Random) -> None:
        request = Request("POST", _CHAT_PATH, {"X-API-Key": agent.key}, {**CHAT, "stream": True})
        status, is_abrupt, events = BROKEN, draw.random() < _HALF, draw.randint(0, 2)
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=_TIMEOUT_SECONDS) as connection:
                connection.sendall(request.encoded(self._port))
                received = b""
                while events and received.count(b"data:") < events and (more := connection.recv(65_536)):
                    received += more
                status = int(received[9:12] or HTTPStatus.OK)
                if is_abrupt:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        except OSError:
            pass
        self._count(action, Answer(status, {}, b""), (200,))

    def _repeat(
        self, send: Callable[[], Answer], statuses: tuple[int, ...], *, attempts: int = _ATTEMPTS
    ) -> list[Answer]:
        answers = [send()]
        while answers[-1].status in statuses and len(answers) < attempts and not self._stop.wait(1):
            answers.append(send())
        return answers

    def _as(self, agent: _Agent, method: str, path: str, body: Any = None, headers: Any = None) -> Answer:
        return self._send(method, path, body, {"X-API-Key": agent.key, **(headers or {})})

    def _send(self, method: str, path: str, body: Any = None, headers: Any = None) -> Answer:
        return send(self._port, method, path, body, headers or {})

    def _count(self, action: str, answer: Answer, expected: tuple[int, ...]) -> None:
        is_failure = answer.status == HTTPStatus.INTERNAL_SERVER_ERROR and b"_FAILED" not in answer.body
        with self._lock:
            self.outcomes[action, answer.status] += 1
            self.internal_errors += is_failure
        if is_failure or answer.status not in (*expected, BROKEN, HTTPStatus.SERVICE_UNAVAILABLE):
            self._note(f"{action}: {answer.status} {answer.body[:300].decode(errors='replace')}")

    def _note(self, text: str) -> None:
        with self._lock:
            self.unexpected.append(f"{time.strftime('%H:%M:%S', time.gmtime())} {text}")

    @staticmethod
    def _expect(status: HTTPStatus, answer: Answer) -> Any:
        if answer.status != status:
            raise RuntimeError(f"expected {status}: {answer}")
        return answer.json()


def _movement(
    action: str, agent: _Agent, friend: _Agent, draw: random.Random, serial: int
) -> tuple[str, dict[str, str]]:
    """Return path and body. Each amount is used once, so that a payment made twice is found in the database."""
    chain = action.rpartition(" ")[2] if action.startswith("transfer") else draw.choice(sorted(_OUTSIDE))
    native = "SOL" if chain == "solana" else "ETH"
    currency, (sold, bought) = draw.choice(("USDC", "USDC", native)), draw.sample(("USDC", native), 2)
    source, destination = draw.sample(sorted(_OUTSIDE), 2)
    bridged = "USDC" if "solana" in (source, destination) else draw.choice(("USDC", "ETH"))
    to = friend.addresses[chain] if friend != agent else _OUTSIDE[chain]
    sent = {"chain": chain, "currency": currency, "amount": _amount("0", "0.001", currency, serial)}
    requests = {
        "withdraw": ("/withdraw", {**sent, "to": _OUTSIDE[chain]}),
        "fund": ("/fund", {**sent, "amount": "1.5"}),
        "swap": (
            "/swap",
            {"chain": chain, "input_token": sold, "output_token": bought, "amount": _amount("1", "0.01", sold, serial)},
        ),
        "bridge": (
            "/bridge",
            {
                "source_chain": source, "destination_chain": destination, "token": bridged,
                "amount": _amount("2", "0.02", bridged, serial),
            },
        ),
    }  # fmt: skip
    if action == "top-up":
        return "/v1/credits/topup", {
            "wallet_id": agent.wallet_id, "chain": chain, "amount": _amount("0", "", "USDC", serial)
        }  # fmt: skip
    path, body = requests.get(action, ("/transfer", {**sent, "to": to}))
    return agent.wallet + path, body


def _amount(dollars: str, native: str, symbol: str, serial: int) -> str:
    return f"{dollars}.{serial:06d}" if symbol == "USDC" else f"{native}{serial:06d}"


def _agent_of(answer: Answer) -> _Agent:
    made = answer.json()
    wallet = made["wallet"]
    return _Agent(made["agentId"], made["apiKey"], made["claimCode"], wallet["id"], wallet["addresses"])


def send(
    port: int, method: str, path: str, body: Any, headers: Mapping[str, str], *, seconds: float = _TIMEOUT_SECONDS
) -> Answer:
    """Send a request on a new connection; without a complete response in time the answer is `BROKEN`."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        content = None if body is None else json.dumps(body)
        connection.request(method, path, content, {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        return Answer(response.status, CaseInsensitiveDict(response.getheaders()), response.read())
    except (OSError, http.client.HTTPException):
        return Answer(BROKEN, {}, b"")
    finally:
        connection.close()
