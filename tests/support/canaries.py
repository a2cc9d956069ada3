"""Canary values for every secret of the service, and capture of log records before redaction."""

from __future__ import annotations

import base64
import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import select

from app.adapters import vault
from app.config import Settings
from app.db.unit_of_work import read_only_unit
from app.extensions import db
from app.factory import create_app
from app.state import app_state
from app.wallets.core import custody
from app.wallets.core.models import WalletKey
from tests.support.agents import Agent
from tests.support.applications import settings_for

MASTER_KEY = "mk_canary-master-" + "M" * 32
RPC_KEY = "canary-rpc-key-0123456789"
REDIS_PASSWORD = "canary-redis-password"
DATABASE_PASSWORD = "canary-database-password"
SECRET_KEY = "canary-secret-key-" + "S" * 32
PRICE_KEY = "canary-price-api-key"
BODY = "canary-in-a-body"


def _key(letter: str) -> tuple[str, bytes]:
    raw = letter.encode() * 32
    return f"k1:{base64.b64encode(raw).decode()}", raw


ENCRYPTION_KEYS, ENCRYPTION_KEY = _key("E")
CODE_PEPPERS, PEPPER = _key("P")


class Canaries:
    """Every secret in every encoding in which it could leak, by name."""

    def __init__(self) -> None:
        self.encodings: dict[str, str] = {}
        for name, text in {
            "master key": MASTER_KEY, "RPC key": RPC_KEY, "Redis password": REDIS_PASSWORD,
            "database password": DATABASE_PASSWORD, "secret key": SECRET_KEY, "price key": PRICE_KEY, "body": BODY,
        }.items():  # fmt: skip
            self.add_text(name, text)
        self.add_bytes("encryption key", ENCRYPTION_KEY)
        self.add_bytes("pepper", PEPPER)

    def add_text(self, name: str, text: str) -> None:
        self.encodings[name] = text
        # The rest if log redaction covers only a part.
        if len(text) >= 40:
            self.encodings[f"{name} (end)"] = text[-20:]

    def add_bytes(self, name: str, raw: bytes) -> None:
        self.encodings |= {
            f"{name} (hex)": raw.hex(),
            f"{name} (base64)": base64.b64encode(raw).decode().rstrip("="),
            f"{name} (base64url)": base64.urlsafe_b64encode(raw).decode().rstrip("="),
            f"{name} (repr)": repr(raw)[2:-1],
            f"{name} (integer)": str(int.from_bytes(raw, "big")),
        }

    def add_agent(self, client: FlaskClient) -> Agent:
        answer = client.post("/v1/agents/register", json={"name": BODY, "email": "canary@example.com"})
        body = answer.get_json()
        assert answer.status_code == 201, body
        wallet = body["wallet"]
        agent = Agent(
            client, body["agentId"], body["apiKey"], wallet["id"], wallet["addresses"]["base"],
            wallet["addresses"]["solana"],
        )  # fmt: skip
        self.add_text("API key", agent.key)
        self.add_text("claim code", body["claimCode"])
        self.add_wallet(agent.wallet_id)
        return agent

    def add_wallet(self, wallet_id: str) -> None:
        with read_only_unit() as session:
            sealed = session.scalars(select(WalletKey.sealed).where(WalletKey.wallet_id == wallet_id)).one()
        secret = app_state().ports.vault.open(sealed, custody.key_location(wallet_id))
        entropy = secret[: vault.ENTROPY_BYTES]
        evm, solana = vault.wallet_keys(entropy)
        private = solana.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        self.add_text("mnemonic", vault.phrase(entropy))
        for name, raw in (("entropy", entropy), ("EVM key", evm.secret), ("Solana key", private)):
            self.add_bytes(name, raw)

    def found_in(self, text: str) -> list[str]:
        return [name for name, encoded in self.encodings.items() if encoded in text]


class RecordCapture(logging.Handler):
    """Captures every record with its traceback before redaction."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records += [repr(record.msg), repr(record.args)]
        exc_info = record.exc_info or sys.exc_info()
        if exc_info[0] is not None:
            self.records.append("".join(traceback.format_exception(*exc_info)))


@contextmanager
def capturing_records() -> Iterator[RecordCapture]:
    capture, root = RecordCapture(), logging.getLogger()
    level = root.level
    root.addHandler(capture)
    try:
        yield capture
    finally:
        root.removeHandler(capture)
        root.setLevel(level)


def canary_settings(database_url: str, rpc_url: str, **changes: Any) -> Settings:
    with_key = f"{rpc_url.replace('http://', f'http://user:{RPC_KEY}@')}/v2/{RPC_KEY}"
    return settings_for(
        database_url,
        **{
            "log_level": "DEBUG",
            "redis_url": f"redis://:{REDIS_PASSWORD}@127.0.0.1:1/0",
            "secret_key": SECRET_KEY,
            "encryption_keys": ENCRYPTION_KEYS,
            "code_peppers": CODE_PEPPERS,
            "bootstrap_master_key": MASTER_KEY,
            "coingecko_api_key": PRICE_KEY,
            "ethereum_rpc_url": with_key,
            "base_rpc_url": f"{with_key}a,{with_key}b",
            "solana_rpc_url": with_key,
            "faucet_url": rpc_url,
            "price_overrides": "",
            "rate_limit_per_key": "1000 per minute",
            "registration_rate_limit": "1000 per minute",
            "device_miss_limit": "1000 per hour",
            **changes,
        },
    )


@contextmanager
def running(settings: Settings) -> Iterator[Flask]:
    """Run the service with its real wiring, and restore the logging of the tests afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    app = create_app(settings)
    app.testing = True
    try:
        with app.app_context():
            yield app
            db.engine.dispose()
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
