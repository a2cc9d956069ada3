"""Client of the signer process: lines of JSON over a Unix socket, on connections that threads share.

A request that is repeated gets the same signature, so the client repeats a request whose answer was lost.
"""

import json
import select
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from app.adapters.vault import WALLET_TABLES, LocalVault
from app.core.strict_json import parse_response
from app.errors import KeyServiceUnavailable
from app.ports.errors import Rejected
from app.ports.vault import INTENTS, NewWallet, SecretLocation

_SECONDS, _RETRY_SECONDS, _MOST, _MOST_PHRASE = 5, 5, 65_536, 4096
_SECONDS_OF_METRICS = 2


class SignerClient:
    def __init__(self, path: str, seconds: int = _SECONDS) -> None:
        self.path, self._seconds, self._idle = path, seconds, deque[socket.socket]()

    def ask(self, act: str, **asked: Any) -> Any:
        """Return the signer's answer. Raises: Rejected with its reason; KeyServiceUnavailable."""
        line = json.dumps({"act": act, **asked}, default=_plain).encode() + b"\n"
        answer = self._exchange(line) or self._exchange(line, is_new=True)
        found = parse_response(answer) if answer else {}
        if "refused" in found:
            raise Rejected(found["refused"])
        if "answer" not in found:
            raise KeyServiceUnavailable(retry_after_seconds=_RETRY_SECONDS)
        return found["answer"]

    def _exchange(self, line: bytes, *, is_new: bool = False) -> bytes | None:
        """Return the line that answers, None if the connection is lost or silent."""
        connection = None
        try:
            connection = self._connect() if is_new or not self._idle else self._idle.pop()
            connection.sendall(line)
            answer = connection.recv(_MOST)
            while answer and not answer.endswith(b"\n"):
                more = connection.recv(_MOST)
                answer = answer + more if more else b""
        except (OSError, IndexError):
            answer = b""
        if answer and connection is not None:
            self._idle.append(connection)
            return answer
        if connection is not None:
            connection.close()
        return None

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(self._seconds)
            connection.connect(self.path)
        except OSError:
            connection.close()
            raise
        return connection

    def forget_connections(self) -> None:
        """Close idle connections."""
        while self._idle:
            self._idle.pop().close()

    def assert_reachable(self) -> None:
        try:
            connection = self._idle.pop()
        except IndexError:
            self.ask("ping")
            return
        if select.select([connection], [], [], 0)[0]:  # nothing was asked: the signer has closed it
            connection.close()
            self.ask("ping")
        else:
            self._idle.append(connection)

    def withdraw(self, intents: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        found = self.ask("withdraw", intents=intents).items()
        return {each: {"nonce": nonce, "valid_until": _instant(until)} for each, (nonce, until) in found}

    def announce_export(self, wallet_id: str, request_id: str) -> None:
        self.ask("announce_export", wallet=wallet_id, request=request_id)

    def refusals(self) -> int | None:
        impatient = SignerClient(self.path, _SECONDS_OF_METRICS)
        try:
            return int(sum(impatient.ask("refusals").values()))
        except KeyServiceUnavailable:
            return None
        finally:
            impatient.forget_connections()

    def signed_since(self, since: datetime) -> Mapping[str, str]:
        found: Mapping[str, str] = self.ask("signed", since=int(since.timestamp()))
        return found


@dataclass(frozen=True, slots=True)
class RemoteSigner:
    """The wallet of a signer process, which signs for the movements in `INTENTS` alone."""

    client: SignerClient
    wallet_id: str
    evm_address: str
    solana_address: str

    def sign_digest(self, _digest: bytes, of: Mapping[str, Any]) -> tuple[int, int, int]:
        return self.sign_transaction(of)

    def sign_transaction(self, fields: Mapping[str, Any]) -> tuple[int, int, int]:
        y_parity, r, s = self._sign(fields)
        return y_parity, r, s

    def sign_message(self, message: bytes) -> bytes:
        return bytes.fromhex(self._sign({"message": message}))

    def _sign(self, content: Mapping[str, Any]) -> Any:
        return self.client.ask("sign", wallet=self.wallet_id, intents=INTENTS.get(), content=content)


class RemoteVault(LocalVault):
    """Seals and authenticates as `LocalVault`, except for wallets' keys, which only the signer process opens."""

    __slots__ = ("_client", "_local")

    def __init__(self, keys: Sequence[tuple[str, bytes]], client: SignerClient) -> None:
        super().__init__(keys)
        self._client, self._local = client, LocalVault(keys)

    def seal(self, secret: bytes, location: SecretLocation) -> str:
        if location.table not in WALLET_TABLES:
            return super().seal(secret, location)
        return str(self._client.ask("seal", secret=secret, row_id=location.row_id))

    def open(self, sealed: str, location: SecretLocation) -> bytes:
        """Open a secret, unless it is a wallet's key. Raises: Rejected."""
        if location.table in WALLET_TABLES:
            raise Rejected("keys_are_in_signer")
        return super().open(sealed, location)

    def check(self, sealed: str, location: SecretLocation) -> None:
        if location.table in WALLET_TABLES:
            self._client.ask("check", sealed=sealed, table=location.table, row_id=location.row_id)
        else:
            super().check(sealed, location)

    def create_wallet(self, location: SecretLocation) -> NewWallet:
        return NewWallet(*self._client.ask("create", row_id=location.row_id))

    def import_wallet(self, location: SecretLocation, *, evm: bytes | None, solana: bytes | None) -> NewWallet:
        return NewWallet(*self._client.ask("import", row_id=location.row_id, evm=evm, solana=solana))

    def import_key(self, location: SecretLocation) -> tuple[str, str]:
        sealed, public = self._client.ask("import_key", import_id=location.row_id)
        return sealed, public

    def import_phrase(self, to: SecretLocation, phrase: str, info: str, key: str, at: SecretLocation) -> NewWallet:
        if len(phrase) > _MOST_PHRASE:  # a longer line ends the connection, which would look like an outage
            raise ValueError("not_a_phrase")
        asked = {"row_id": to.row_id, "phrase": phrase, "info": info, "key": key, "import_id": at.row_id}
        try:
            return NewWallet(*self._client.ask("import_phrase", **asked))
        except Rejected as refused:
            raise ValueError(refused.reason) from None

    def signer(self, _sealed: str, location: SecretLocation, *, addresses: tuple[str, str] = ("", "")) -> RemoteSigner:
        return RemoteSigner(self._client, location.row_id, *addresses)

    def move(self, sealed: str, location: SecretLocation, to: SecretLocation) -> str:
        """Keep what only the signer can open as it is; what this process can open still is sealed anew."""
        return self._local.move(sealed, location, to) if sealed.partition(".")[0] in self._keys else sealed

    def seal_phrase(self, _sealed: str, location: SecretLocation, *, recipient: str, info: str) -> str:
        return str(self._client.ask("export", row_id=location.row_id, recipient=recipient, info=info))


def _plain(value: Any) -> str:
    if isinstance(value, bytes):
        return "0x" + value.hex()
    raise TypeError(type(value).__name__)


def _instant(seconds: int | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
