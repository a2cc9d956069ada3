"""The base of the client's errors."""

from __future__ import annotations

from typing import Any


class PurserError(Exception):
    """An error of the API: its `code`, the HTTP `status` (0 without a response), and `details`."""

    def __init__(
        self, message: str, *, code: str, status: int = 0, body: dict[str, Any] | None = None,
        retry_after: float | None = None, receipt: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.message, self.code, self.status, self.retry_after = message, code, status, retry_after
        self.body, self.receipt = body or {}, receipt
        self.details: dict[str, Any] = self.body.get("details") or {}
        self.request_id: str | None = self.body.get("request_id")
        self.idempotency_key: str | None = None

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"
