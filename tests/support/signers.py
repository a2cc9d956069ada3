"""A signer process as a thread of the test: the same code behind a real socket, with a key that its clients lack."""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from app.adapters.key_services import key_file
from app.adapters.vault import LocalVault
from app.state import Application
from signer.client import RemoteVault, SignerClient
from signer.journal import Journal
from signer.server import SignerServer
from signer.service import SignerService
from tests.support.applications import change_ports, close, make_app

KEY_ID = "w1"
VAULTS: dict[str, LocalVault] = {}
"""The vaults of signers by the paths of their sockets, for what only an operator's command may read."""


@dataclass
class SignerThread:
    """A running signer and what its clients use; `stop` and `start` are its death and its next process."""

    app: Application
    folder: Path
    server: SignerServer
    client: SignerClient
    listener: socket.socket | None = None

    def start(self) -> None:
        self.listener = self.server.listen()
        threading.Thread(target=self.server.serve, args=(self.listener,), daemon=True).start()

    def stop(self) -> None:
        if self.listener is not None:
            Path(self.client.path).unlink()
            self.listener.shutdown(socket.SHUT_RDWR)
            self.listener.close()
            self.listener = None
        self.client.forget_connections()

    def end(self) -> None:
        self.stop()
        del VAULTS[self.client.path]
        self.server.service.journal.disconnect()
        close(self.app)


def start_signer(app: Application, folder: Path | None = None) -> SignerThread:
    """Start a signer on the database of an application, which becomes its client."""
    folder = folder or Path(tempfile.mkdtemp())
    key = folder / "wallet.key"
    if not key.exists():
        key.write_bytes(secrets.token_bytes(32))
    keys = app.state.settings.encryption_key_list()
    path = str(folder / "signer.sock")
    VAULTS[path] = LocalVault(keys, {KEY_ID: partial(key_file, str(key))}, KEY_ID)
    own = make_app(app.state.settings, vault=VAULTS[path])
    service = SignerService(Journal(f"sqlite:///{folder}/signed.sqlite"))
    client = SignerClient(path)
    running = SignerThread(own, folder, SignerServer(own, service, path, [os.geteuid()]), client)
    running.start()
    change_ports(app, vault=RemoteVault(keys, client), signer=client)
    return running


@contextmanager
def signer_of(app: Application, folder: Path) -> Iterator[SignerThread]:
    """Run a signer for an application."""
    running = start_signer(app, folder)
    try:
        yield running
    finally:
        running.end()
