"""The facts of a call that decide what it may cost, read from its request alone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

# What a call may write when it does not say so itself, and what no model writes in one answer.
DEFAULT_TOKENS_OUT = 16_000
MOST_TOKENS_OUT = 1_000_000


class Dialect(StrEnum):
    """The language of an upstream. A row of the provider table names one."""

    OPENAI = "openai"
    OPENROUTER = "openrouter"
    GROQ = "groq"
    ANTHROPIC = "anthropic"
    GEMINI = "gemini"


class Surface(StrEnum):
    """The shape of one call, found by its path; each has its own names for bounds and usage."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    EMBEDDINGS = "embeddings"
    MESSAGES = "messages"
    GENERATE = "generate"
    EMBED_CONTENT = "embed_content"
    # Model lists, token counts, moderation: upstreams bill nothing for them.
    FREE = "free"
    # Anything else that may be billed: its usage is looked for under all known names, else a configured price.
    OPAQUE = "opaque"


@dataclass(frozen=True, slots=True)
class CallFacts:
    """What a request says about its cost.

    `tokens_in` is a bound that a real tokenizer does not pass by much; `tokens_in_likely` is what such a text usually
    has, and is charged when nobody ever tells. `tokens_out` bounds all candidates together.
    """

    surface: Surface
    dialect: Dialect
    model: str = ""
    # Further models that may answer instead (OpenRouter's `models`): the worst case is the dearest of all.
    alternatives: tuple[str, ...] = ()
    tokens_in: int = 0
    tokens_in_likely: int = 0
    tokens_out: int = 0
    tokens_out_is_stated: bool = False
    candidates: int = 1
    is_streamed: bool = False
    has_media: bool = False
    writes_cache: bool = False
    searches: int = 0
    # Letters to be spoken: speech is billed by them.
    characters: int = 0
    # `service_tier` or `speed` as asked for; a dearer one is priced so.
    tier: str | None = None
    speed: str | None = None
    # The body to forward: the caller's, byte for byte, except where usage was asked for on its behalf.
    body: bytes = b""
    usage_injected: bool = False

    @property
    def is_free(self) -> bool:
        """Tell whether the upstream bills nothing for this call."""
        return self.surface is Surface.FREE
