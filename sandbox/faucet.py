"""Faucet over HTTP: `POST /pay` pays a funding request, exactly once per reference.

Every order is recorded before anything is sent. It listens on loopback only and pays test money, so it needs no
authentication.
"""

import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from app.core.chains import ZERO_EVM_ADDRESS, AddressError, ChainName, Family, address_for_chain, tokens
from app.core.money import AmountError, parse_amount
from sandbox.evm.rpc import NodeDown, NodeError
from sandbox.payers import Order, Payer, Payment, PaymentRefused
from solana_node.loopback_server import LoopbackHandler, LoopbackServer

CAPS = {"ETH": 1_000, "SOL": 10_000, "USDC": 1_000_000}
"""The maximum of one payment, in whole tokens."""
_MAX_BODY_BYTES = 16_384
_MAX_REFERENCE_LETTERS = 200
_FIELDS = ("reference", "chain", "address", "currency", "amount")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS payments (
    reference TEXT PRIMARY KEY, chain TEXT NOT NULL, address TEXT NOT NULL, currency TEXT NOT NULL,
    units TEXT NOT NULL, tx_hash TEXT, nonce INTEGER, raw TEXT
) STRICT
"""


class InvalidOrder(Exception):
    """The order is invalid; the message is returned to the client."""


class PaymentLedger:
    """Orders with the transactions that paid them, in one SQLite file."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._connection.execute(_SCHEMA)
        self._lock = threading.Lock()

    def reserve(self, order: Order) -> Payment | None:
        """Record an order, and return the payment already sent for it. Raises: InvalidOrder (used reference)."""
        wanted = (order.chain, order.address, order.currency, str(order.units))
        with self._lock:
            self._connection.execute(
                "INSERT INTO payments (reference, chain, address, currency, units) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT DO NOTHING",
                (order.reference, *wanted),
            )
            *known, tx_hash, nonce, raw = self._connection.execute(
                "SELECT chain, address, currency, units, tx_hash, nonce, raw FROM payments WHERE reference = ?",
                (order.reference,),
            ).fetchone()
        if tuple(known) != wanted:
            raise InvalidOrder("this reference was used for another payment")
        return Payment(tx_hash, nonce, raw) if tx_hash else None

    def record(self, order: Order, payment: Payment) -> None:
        """Record the transaction that pays an order."""
        with self._lock:
            self._connection.execute(
                "UPDATE payments SET tx_hash = ?, nonce = ?, raw = ? WHERE reference = ?",
                (payment.tx_hash, payment.nonce, payment.raw, order.reference),
            )

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()


class Faucet:
    """Validates orders and pays each once."""

    def __init__(self, book: PaymentLedger, payers: Mapping[str, Payer]) -> None:
        self._book = book
        self._payers = payers
        self._reference_locks: dict[str, tuple[threading.Lock, int]] = {}
        self._lock = threading.Lock()

    def pay(self, document: object) -> str:
        """Pay the order in a request's JSON, and return the transaction's hash.

        Raises: InvalidOrder, PaymentRefused, NodeDown, NodeError.
        """
        order = self._read(document)
        with self._reference_lock(order.reference):
            earlier = self._book.reserve(order)
            return self._payers[order.chain].pay(
                order, earlier=earlier, record=lambda payment: self._book.record(order, payment)
            )

    @contextmanager
    def _reference_lock(self, reference: str) -> Iterator[None]:
        """Serialise the requests for one reference."""
        with self._lock:
            lock, users = self._reference_locks.get(reference, (threading.Lock(), 0))
            self._reference_locks[reference] = (lock, users + 1)
        try:
            with lock:
                yield
        finally:
            with self._lock:
                lock, users = self._reference_locks.pop(reference)
                if users > 1:
                    self._reference_locks[reference] = (lock, users - 1)

    def _read(self, document: object) -> Order:
        if not isinstance(document, dict) or not all(isinstance(document.get(name), str) for name in _FIELDS):
            raise InvalidOrder(f"send a JSON object with the strings {', '.join(_FIELDS)}")
        reference, chain, address, currency, amount = (str(document[name]) for name in _FIELDS)
        if not 0 < len(reference) <= _MAX_REFERENCE_LETTERS:
            raise InvalidOrder(f"reference: 1 to {_MAX_REFERENCE_LETTERS} characters")
        if chain not in self._payers:
            raise InvalidOrder(f"chain: one of {', '.join(self._payers)}")
        served = {token.symbol: token for token in tokens(ChainName(chain))}
        if currency not in served:
            raise InvalidOrder(f"currency: {' or '.join(served)} on {chain}")
        token = served[currency]
        try:
            units = parse_amount(amount, token).units
            recipient = address_for_chain(address, ChainName(chain))
        except AmountError as error:
            raise InvalidOrder(f"amount: {error}") from error
        except AddressError as error:
            raise InvalidOrder(f"address: {error}") from error
        if units > CAPS[currency] * 10**token.decimals:
            raise InvalidOrder(f"amount: at most {CAPS[currency]} {currency} at a time")
        if ChainName(chain).family is Family.EVM and recipient == ZERO_EVM_ADDRESS:
            raise InvalidOrder("address: the zero address cannot spend")
        return Order(reference, chain, recipient, currency, units)


class FaucetServer(LoopbackServer):
    """The faucet on a loopback port (0: a free one)."""

    def __init__(self, faucet: Faucet, *, port: int = 0) -> None:
        super().__init__(_Handler, port=port)
        self.faucet = faucet


class _Handler(LoopbackHandler):
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
        body = self.read_limited_body(_MAX_BODY_BYTES)
        if body is None:
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"error": "send a body with its Content-Length"})
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
        except (InvalidOrder, PaymentRefused) as error:
            return HTTPStatus.BAD_REQUEST, {"error": str(error)}
        except (NodeDown, NodeError) as error:
            return HTTPStatus.SERVICE_UNAVAILABLE, {"error": f"the chain does not answer, try again ({error})"}
        return HTTPStatus.OK, {"reference": document["reference"], "tx_hash": tx_hash}

    def _answer(self, status: HTTPStatus, document: Mapping[str, Any]) -> None:
        self.reply(status, json.dumps(document).encode())
