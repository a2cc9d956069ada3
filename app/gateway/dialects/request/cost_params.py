"""The parameters of a request that determine its cost."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

WORDS = tomllib.loads(Path(__file__).parents[1].joinpath("words.toml").read_text("utf-8"))
FIELDS: Mapping[str, frozenset[str]] = {name: frozenset(fields) for name, fields in WORDS["fields"].items()}
"""Names of fields in requests and responses, by what they have in common."""
# Output tokens: held for a call without a limit; the most that current models write for such a call; more than any
# model writes in one response.
DEFAULT_TOKENS_OUT = 16_000
MAX_TOKENS_OUT_UNSET = 128_000
MAX_TOKENS_OUT = 1_000_000
# The context window of a model for which the price table has none: the largest of current models.
MAX_TOKENS_IN = 1_050_000
# A limit on the output is not lowered below this when credits are scarce.
MIN_TOKENS_OUT = 256
# Calls of tools: the highest limit that is added to a request without one.
MAX_CALLS = 1_000


class Dialect(StrEnum):
    """The request and response format of an upstream."""

    OPENAI = "openai"
    OPENROUTER = "openrouter"
    GROQ = "groq"
    ANTHROPIC = "anthropic"
    GEMINI = "gemini"
    EXA = "exa"
    TAVILY = "tavily"


class Surface(StrEnum):
    """The kind of a call, determined by its path; each has its own fields for limits and usage."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    EMBEDDINGS = "embeddings"
    MESSAGES = "messages"
    GENERATE = "generate"
    EMBED_CONTENT = "embed_content"
    # Model lists, token counts, moderation: upstreams bill nothing for them.
    FREE = "free"
    IMAGES = "images"
    SPEECH = "speech"
    TRANSCRIPTION = "transcription"
    TRANSLATION = "translation"
    # Searches, and the pages at given URLs (Exa, Tavily); answers with sources (Exa).
    SEARCH = "search"
    CONTENTS = "contents"
    ANSWER = "answer"
    # Anything else that may be billed: by usage under any known name, or at a configured price.
    OPAQUE = "opaque"


# Surfaces whose responses are text; only there can the request limit the output.
TEXT_SURFACES = frozenset({Surface.CHAT, Surface.COMPLETIONS, Surface.RESPONSES, Surface.MESSAGES, Surface.GENERATE})
_DEFAULT_HINT = {"body": "asks for too much"}


class SubCall(NamedTuple):
    """Calls of another model that one request may cause: an advisor, an image, a summary of the conversation."""

    model: str
    calls: int
    # Output tokens of each call at most; each reads no more than the request's own input and output.
    tokens_out: int


class ToolLimit(NamedTuple):
    """A number to put into the JSON of a request, in an object below these names and positions."""

    path: tuple[str | int, ...]
    name: str
    number: int


class HostedTools(NamedTuple):
    """The possible cost of tools that run at the provider, beyond the tokens of the requested model."""

    # The number of tools that add their results to the input.
    readers: int = 0
    # One of them returns content that others choose (an MCP server, a page): only the context window limits that.
    is_unbounded: bool = False
    # Limits to add to the body, so that no tool is used more often than the hold covers.
    limits: tuple[ToolLimit, ...] = ()
    # The maximum number of searches, how many of them no response reports, and their price if it differs from the
    # price table.
    searches: int = 0
    searches_unreported: int = 0
    search_nanos: int | None = None
    # Containers: charged once for each call, used or not.
    container_nanos: int = 0
    # Fees by tool, charged if the response shows its use or was interrupted.
    use_nanos: tuple[tuple[str, int], ...] = ()
    image: SubCall | None = None
    sub_calls: tuple[SubCall, ...] = ()
    # The same tools with each added limit at most this number; None if none was added.
    bounded: Callable[[int], HostedTools] | None = None


NO_TOOLS = HostedTools()


class CostParams(NamedTuple):
    """The parameters of a request that determine its cost.

    `tokens_in` is an upper estimate that a real tokenizer hardly exceeds; `tokens_in_likely` is the usual count of such
    a text, charged when the response reports none. `tokens_out` covers all candidates together.
    """

    surface: Surface
    dialect: Dialect
    model: str = ""
    # Other models that may answer instead (OpenRouter's `models`): the worst case is the most expensive of all.
    alternatives: tuple[str, ...] = ()
    tokens_in: int = 0
    tokens_in_likely: int = 0
    # There is input that is not counted in `tokens_in`: only the context window of the model limits it.
    is_input_unbounded: bool = False
    tokens_out: int = 0
    is_tokens_out_set: bool = False
    # The lowest valid limit on the output of each candidate: above the thinking budget, if there is one.
    min_tokens_out: int = MIN_TOKENS_OUT
    candidates: int = 1
    is_streamed: bool = False
    has_media: bool = False
    # Some of the input may be audio.
    has_audio: bool = False
    writes_cache: bool = False
    searches: int = 0
    # Characters to be spoken: some speech models are billed by them.
    characters: int = 0
    # Seconds of a recording, at most.
    audio_seconds: int = 0
    # For a call without tokens (a search): the most that the provider bills for this request, in nano-dollars.
    max_nanos: int = 0
    # `service_tier` or `speed` as requested; it may raise the price.
    tier: str | None = None
    speed: str | None = None
    # The requested region of inference (Anthropic's `inference_geo`); None: the default of the account.
    region: str | None = None
    tools: HostedTools = NO_TOOLS
    # The body to forward: the client's, byte for byte, unless usage was requested on its behalf.
    body: bytes = b""
    usage_injected: bool = False
    # The limit on the output that the gateway has set in the body.
    applied_max_tokens: int | None = None
    # The field for a limit on the output where a request has none; empty for the surface's first.
    output_limit_field: str = ""

    @property
    def applied_limits(self) -> dict[str, str]:
        """The limits that the gateway has set in the body, by name: a number, or one for each tool in their order."""
        found = {} if self.applied_max_tokens is None else {"max_tokens": [str(self.applied_max_tokens)]}
        for limit in self.tools.limits:
            name = "advisor_max_tokens" if limit.name == "max_tokens" else limit.name
            found.setdefault(name, []).append(str(limit.number))
        return {name: each[0] if len(set(each)) == 1 else ", ".join(each) for name, each in found.items()}

    @property
    def can_be_bounded(self) -> bool:
        """Return whether a limit in the body applies to the output of this call."""
        return self.tokens_out > 0 and self.surface in TEXT_SURFACES

    @property
    def is_output_unbounded(self) -> bool:
        """Return whether the request could limit its output and does not."""
        return self.can_be_bounded and not self.is_tokens_out_set

    def cost_hints(self, worst_case_nanos: int, max_nanos: int) -> dict[str, str]:
        """Return, by field, what to change so that a call costs at most `max_nanos`."""
        found = dict(WORDS["hints"].get(self.surface, _DEFAULT_HINT))
        if self.candidates > 1:
            affordable_count = self.candidates * max_nanos // max(1, worst_case_nanos)
            found = {"n": f"must be at most {affordable_count}" if affordable_count else "must be 1"} | found
        if self.is_input_unbounded:
            found["model"] = "must have a smaller context window, because files at URLs and MCP servers may fill it"
        if self.tools.searches or self.tools.is_unbounded or self.tools.image or self.tools.sub_calls:
            found["tools"] = "must be fewer, or limited by max_tool_calls or max_uses"
        return found


_CONTAINERS = (dict, list)
_TOOL_CALL_TYPES = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})


def is_tool_call(node: Mapping[str, Any]) -> bool:
    """Return whether an object is a call of a tool, with arguments in `input`."""
    kind = node.get("type")
    return isinstance(kind, str) and kind in _TOOL_CALL_TYPES


def objects_in(parsed: Any, skipped: Collection[str] = FIELDS["client_defined"]) -> Sequence[Mapping[str, Any]]:
    """Return the objects of a body, without those below some fields and the arguments of calls."""
    found = []
    stack = [parsed]
    while stack:
        node = stack.pop()
        if isinstance(node, list):
            stack += node
        elif isinstance(node, dict):
            found.append(node)
            for name, value in node.items():
                if (
                    isinstance(value, _CONTAINERS)
                    and name not in skipped
                    and not (name == "input" and is_tool_call(node))
                ):
                    stack.append(value)
    return found
