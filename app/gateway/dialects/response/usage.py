"""The usage of a call as the upstream reports it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

# The key of searches in `UsageReading.tool_calls`.
WEB_SEARCH = "web_search"


class Usage(NamedTuple):
    """Tokens as billed: `tokens_in` includes cached tokens, `tokens_out` includes reasoning.

    The other counts are parts of those two with their own prices. `cost_nanos` is the cost that the upstream itself
    reports, rounded up; it takes precedence over every price table.
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
    image_cached: int = 0
    image_out: int = 0
    video_in: int = 0
    video_out: int = 0
    reasoning: int = 0
    # Input tokens that the response does not assign to text, audio, images or video; whether it assigns no output.
    undivided_in: int = 0
    is_undivided: bool = False
    searches: int = 0
    audio_seconds: int = 0
    cost_nanos: int | None = None
    # Each billed run of a model, with its name (None: the one that answered), if there were several. The counts above
    # are their sums; `searches` is only counted there.
    runs: tuple[tuple[str | None, Usage], ...] = ()


class UsageReading(NamedTuple):
    """The usage read from one response; `usage` is None if it reported none.

    `is_complete` is false if the response ended before its last count: then `streamed_bytes`, the content that was
    relayed, limits what the model wrote after the last count.
    """

    status: int = 200
    usage: Usage | None = None
    is_complete: bool = False
    # Bytes of the response as received, and of the content in it (text, reasoning, tool arguments).
    bytes_received: int = 0
    streamed_bytes: int = 0
    # Bytes of a body in an unknown format; all may be content.
    bytes_unread: int = 0
    model: str | None = None
    tier: str | None = None
    speed: str | None = None
    # Where inference ran, as the upstream reports it.
    region: str | None = None
    # How often the response shows each hosted tool in use.
    tool_calls: Mapping[str, int] = MappingProxyType({})
    # The upstream reported an error after a successful status (a stream that fails midway).
    has_failed: bool = False
    # Some audio was streamed.
    has_audio: bool = False
    # There is neither an object nor content: an empty body, a page in HTML, a stream of comments.
    is_blank: bool = False

    @property
    def has_content(self) -> bool:
        return self.streamed_bytes > 0 or self.has_audio
