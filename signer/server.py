"""The Unix socket of the signer process: one thread for each connection of a permitted user."""

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import structlog

from app.core.strict_json import parse_json
from app.errors import KeyServiceUnavailable, ServiceError
from app.ports.errors import PortError
from app.state import Application
from signer.intended import Refused
from signer.service import SignerService

_log = structlog.get_logger(__name__)
_MAX_LINE = 65_536
_CREDENTIALS = struct.Struct("3i")


class SignerServer:
    def __init__(self, app: Application, service: SignerService, path: str, uids: Collection[int]) -> None:
        self._app, self.service, self._path, self.uids = app, service, path, {*uids, os.geteuid()}

    def listen(self) -> socket.socket:
        """Return the listening socket, in place of that of an earlier process. Raises: OSError."""
        Path(self._path).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(self._path)
        # Its folder decides who can connect; whoever does is asked for their user.
        Path(self._path).chmod(0o666)
        listener.listen(128)
        return listener

    def serve(self, listener: socket.socket) -> None:
        """Serve until the listener is closed."""
        while True:
            try:
                connection, _address = listener.accept()
            except OSError:
                if listener.fileno() < 0:
                    return
                time.sleep(1)  # the process has no file descriptors left
                continue
            threading.Thread(target=self._serve_connection, args=(connection,), daemon=True).start()

    def _serve_connection(self, connection: socket.socket) -> None:
        _pid, uid, _gid = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        with connection, connection.makefile("rwb") as stream, self._app.app_context():
            if uid not in self.uids:
                _log.error("signer_client_refused", uid=uid)
                self._count("user")
                return
            try:
                # The rest of a line that is too long would be answered as another one.
                while (line := stream.readline(_MAX_LINE)).endswith(b"\n"):
                    stream.write(json.dumps(self.answer(line)).encode() + b"\n")
                    stream.flush()
            except (OSError, ValueError):
                return

    def answer(self, line: bytes) -> Mapping[str, Any]:
        """Return the answer, or the reason of a refusal, which contains no secret; nothing for a failure."""
        try:
            asked = parse_json(line)
            return {"answer": self.service.acts[asked.pop("act")](**asked)}
        except Refused as refusal:
            self._count(str(refusal))
            return {"refused": str(refusal)}
        except PortError as error:
            return {"refused": error.reason}
        except Exception as error:
            if isinstance(error, ServiceError) and not isinstance(error, KeyServiceUnavailable):
                return {"refused": error.code.lower()}
            _log.error("signer_request_failed", error=type(error).__name__)
            return {}

    def _count(self, reason: str) -> None:
        """Count a refusal for the metrics; its log line is all that is left of it if the journal is away."""
        try:
            self.service.journal.count_refusal(reason)
        except Exception as error:
            _log.error("refusal_not_counted", error=type(error).__name__)
