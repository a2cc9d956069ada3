"""Sealed columns: secrets that the vault encrypts, each bound to its table, column and row."""

from __future__ import annotations

from dataclasses import dataclass

from app.ports.vault import SecretLocation
from app.state import app_state


@dataclass(frozen=True, slots=True)
class SealedColumn:
    """A column of sealed secrets; `name` is `sealed` or ends in `_sealed`, so that key rotation finds it."""

    table: str
    name: str

    def seal(self, secret: bytes | str, row_id: str) -> str:
        plain = secret.encode() if isinstance(secret, str) else secret
        return app_state().ports.vault.seal(plain, SecretLocation(self.table, self.name, row_id))

    def open(self, sealed: str, row_id: str) -> bytes:
        """Open the secret of a row. Raises: Rejected."""
        return app_state().ports.vault.open(sealed, SecretLocation(self.table, self.name, row_id))
