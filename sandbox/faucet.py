"""Pays open funding requests over HTTP: `POST /pay`, once per reference, whatever happens in between.

Every order is written down before anything is sent. It listens on loopback only and pays play money, so it
asks nobody who they are.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from app.core import addresses
from app.core.chains import ChainName, Family, tokens
from app.core.money import AmountError, parse_amount
from sandbox.evm.rpc import NodeDown, NodeError
from sandbox.payers import Order, Payer, Payment, Refused

CAPS = {"ETH": 1_000, "SOL": 10_000, "USDC": 1_000_000}
"""The most that one payment brings, in whole tokens."""
_MAX_BODY_BYTES = 16_384
_MAX_REFERENCE_LETTERS = 200
_FIELDS = ("reference", "chain", "address", "currency", "amount")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS payments (
    reference TEXT PRIMARY KEY, chain TEXT NOT NULL, address TEXT NOT NULL, currency TEXT NOT NULL,
    units TEXT NOT NULL, tx_hash TEXT, nonce INTEGER, raw TEXT
) STRICT
"""


class BadOrder(Exception):
    """The order cannot be paid as it is; the message is fit for the caller."""


class Book:
    """Who was promised what, and the transaction that paid it, in one SQLite file."""

    def __init__(self, path: Path) -> None:
        """Open or make the file."""
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._connection.execute(_SCHEMA)
        self._alone = threading.Lock()

    def promise(self, order: Order) -> Payment | None:
        """Write an order down, and return what was sent for it already. Raises: BadOrder (used reference)."""
        wanted = (order.chain, order.address, order.currency, str(order.units))
        with self._alone:
            self._connection.execute(
                "INSERT INTO payments (reference, chain, address, currency, units) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT DO NOTHING",
                (order.reference, *wanted),
            )
            *known, tx_hash, nonce, raw = self._connection.execute(
                "SELECT chain, address, currency, units, tx_hash, nonce, raw FROM payments "
                "WHERE reference = ?",
                (order.reference,),
            ).fetchone()
        if tuple(known) != wanted:
            raise BadOrder("this reference was used for another payment")
        return Payment(tx_hash, nonce, raw) if tx_hash else None

    def record(self, order: Order, payment: Payment) -> None:
        """Write down the transaction that pays an order."""
        with self._alone:
            self._connection.execute(
                "UPDATE payments SET tx_hash = ?, nonce = ?, raw = ? WHERE reference = ?",
                (payment.tx_hash, payment.nonce, payment.raw, order.reference),
            )

    def close(self) -> None:
        """Close the file."""
        with self._alone:
            self._connection.close()


class Faucet:
    """Reads orders and pays each once."""

    def __init__(self, book: Book, payers: Mapping[str, Payer]) -> None:
        """Pay on the chains that have a payer."""
        self._book = book
        self._payers = payers
        self._at_work: dict[str, tuple[threading.Lock, int]] = {}
        self._alone = threading.Lock()

    def pay(self, document: object) -> str:
        """Pay what a request's JSON orders, and return the transaction's hash.

        Raises: BadOrder, Refused, NodeDown, NodeError.
        """
        order = self._read(document)
        with self._reference_to_oneself(order.reference):
            earlier = self._book.promise(order)
            return self._payers[order.chain].pay(
                order,
                earlier=earlier,
                record=lambda payment: self._book.record(order, payment),
            )

    @contextmanager
    def _reference_to_oneself(self, reference: str) -> Iterator[None]:
        """Let the second of two requests for one reference wait, and find what the first has done."""
        with self._alone:
            lock, users = self._at_work.get(reference, (threading.Lock(), 0))
            self._at_work[reference] = (lock, users + 1)
        try:
            with lock:
                yield
        finally:
            with self._alone:
                lock, users = self._at_work.pop(reference)
                if users > 1:
                    self._at_work[reference] = (lock, users - 1)

    def _read(self, document: object) -> Order:
        if not isinstance(document, dict) or not all(isinstance(document.get(name), str) for name in _FIELDS):
            raise BadOrder(f"send a JSON object with the texts {', '.join(_FIELDS)}")
        reference, chain, address, currency, amount = (str(document[name]) for name in _FIELDS)
        if not 0 < len(reference) <= _MAX_REFERENCE_LETTERS:
            raise BadOrder(f"reference: 1 to {_MAX_REFERENCE_LETTERS} letters")
        if chain not in self._payers:
            raise BadOrder(f"chain: one of {', '.join(self._payers)}")
        served = {token.symbol: token for token in tokens(ChainName(chain))}
        if currency not in served:
            raise BadOrder(f"currency: {' or '.join(served)} on {chain}")
        token = served[currency]
        try:
            units = parse_amount(amount, token).units
            recipient = addresses.for_chain(address, ChainName(chain))
        except AmountError as error:
            raise BadOrder(f"amount: {error}") from error
        except addresses.AddressError as error:
            raise BadOrder(f"address: {error}") from error
        if units > CAPS[currency] * 10**token.decimals:
            raise BadOrder(f"amount: at most {CAPS[currency]} {currency} at a time")
        if ChainName(chain).family is Family.EVM and recipient == addresses.ZERO_EVM_ADDRESS:
            raise BadOrder("address: nobody can spend from the zero address")
        return Order(reference, chain, recipient, currency, units)


class FaucetServer(ThreadingHTTPServer):
    """The faucet on a loopback port (0: a free one)."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, faucet: Faucet, *, port: int = 0) -> None:
        """Listen; `start()` begins to answer."""
        super().__init__(("127.0.0.1", port), _Handler)
        self.faucet = faucet

    @property
    def url(self) -> str:
        """Return the base address."""
        return f"http://127.0.0.1:{self.server_port}"

    def start(self) -> None:
        """Answer in a thread of its own."""
        threading.Thread(target=self.serve_forever, name="faucet", daemon=True).start()

    def stop(self) -> None:
        """Stop answering and listening."""
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30
    server: FaucetServer

    def do_GET(self) -> None:
        """Answer GET /health."""
        if self.path == "/health":
            self._answer(HTTPStatus.OK, {"status": "ok"})
        else:
            self._answer(HTTPStatus.NOT_FOUND, {"error": "there are POST /pay and GET /health"})

    def do_POST(self) -> None:
        """Answer POST /pay."""
        body = self._body()
        if body is None:
            self.close_connection = True
            self._answer(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"error": "send a body with its Content-Length"}
            )
        elif self.path != "/pay":
            self._answer(HTTPStatus.NOT_FOUND, {"error": "there are POST /pay and GET /health"})
        else:
            self._answer(*self._pay(body))

    def _pay(self, body: bytes) -> tuple[HTTPStatus, dict[str, Any]]:
        try:
            document = json.loads(body)
            tx_hash = self.server.faucet.pay(document)
        except ValueError:
            return HTTPStatus.BAD_REQUEST, {"error": "the body is not JSON"}
        except (BadOrder, Refused) as error:
            return HTTPStatus.BAD_REQUEST, {"error": str(error)}
        except (NodeDown, NodeError) as error:
            return HTTPStatus.SERVICE_UNAVAILABLE, {
                "error": f"the chain does not answer, try again ({error})"
            }
        return HTTPStatus.OK, {"reference": document["reference"], "tx_hash": tx_hash}

    def _body(self) -> bytes | None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _MAX_BODY_BYTES:
            return None
        return self.rfile.read(int(length))

    def _answer(self, status: HTTPStatus, document: Mapping[str, Any]) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's signature
        """Say nothing: the service that asks has the log."""
