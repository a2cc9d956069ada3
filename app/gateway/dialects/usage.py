"""What an upstream says that a call used."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as billed: `tokens_in` includes cached ones, `tokens_out` includes reasoning.

    The other counts are parts of those two that have prices of their own. `cost_nanos` is a cost that the upstream
    itself reports, rounded up, and beats every table.
    """

    tokens_in: int = 0
    tokens_out: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    audio_in: int = 0
    audio_cached: int = 0
    audio_out: int = 0
    image_in: int = 0
    image_out: int = 0
    reasoning: int = 0
    searches: int = 0
    audio_seconds: int = 0
    cost_nanos: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """All that an answer told: `usage` is None where it named none at all.

    `is_complete` is false where the answer broke off before its last count: then `streamed_bytes`, the content that
    passed, bounds what was written since.
    """

    status: int = 200
    usage: Usage | None = None
    is_complete: bool = False
    # Bytes of the answer as it came; and of what was written in it (text, reasoning, tool arguments).
    bytes_received: int = 0
    streamed_bytes: int = 0
    # What may have been written at most in an answer that told no usage: a byte is a token at most.
    tokens_unread: int = 0
    model: str | None = None
    tier: str | None = None
    speed: str | None = None
    # The upstream answered with an error inside of a good status (a stream that fails midway).
    has_failed: bool = False
