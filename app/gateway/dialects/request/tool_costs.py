"""Hosted tools by provider, how each is billed, and what it costs.

List prices are from the providers' pricing pages of November 2026, among them Exa's "Pricing" (exa.ai/docs/reference)
and Tavily's "Credits & Pricing" (docs.tavily.com).

A tool is offered only if its cost can be bounded before the call and charged after it; all others are refused.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum, auto
from pathlib import Path
from typing import Any, NamedTuple

from app.errors import InvalidInput, RouteNotAllowed
from app.gateway.dialects.request import cost_params
from app.gateway.dialects.request.cost_params import NO_TOOLS, Dialect, HostedTools, SubCall, Surface, ToolLimit


class ToolBilling(StrEnum):
    """How a kind of tool is billed."""

    # It runs at the client, or costs only the model's own tokens.
    NOTHING = auto()
    # Its results become input tokens.
    TOKENS = auto()
    # Fetched pages become input tokens; their number and size have limits.
    FETCHES = auto()
    # Others choose what it returns: up to a whole context window.
    UNBOUNDED = auto()
    SEARCHES = auto()
    MAPS = auto()
    CONTAINER = auto()
    CODE = auto()
    IMAGE = auto()
    ADVISOR = auto()


_TOOLS = {
    dialect: {kind: ToolBilling(billing) for billing, kinds in by_billing.items() for kind in kinds}
    for dialect, by_billing in tomllib.loads(Path(__file__).with_name("tools.toml").read_text("utf-8")).items()
}
OPENAI_TOOLS = _TOOLS[Dialect.OPENAI]
_REPORTED_BY_OPENROUTER = frozenset(
    {ToolBilling.NOTHING, ToolBilling.TOKENS, ToolBilling.FETCHES, ToolBilling.UNBOUNDED, ToolBilling.SEARCHES}
)
_OF_MAKERS = (OPENAI_TOOLS | _TOOLS[Dialect.ANTHROPIC]).items()
# OpenRouter reports the whole cost of a call, searches included.
_BY_OPENROUTER = {kind: each for kind, each in _OF_MAKERS if each in _REPORTED_BY_OPENROUTER}
OFFERED_TOOLS: Mapping[str, Mapping[str, ToolBilling]] = {
    **_TOOLS, Dialect.OPENROUTER: {**_BY_OPENROUTER, **_TOOLS[Dialect.OPENROUTER]},
}  # fmt: skip
OFFERED_PLUGINS = frozenset({"web", "file-parser", "response-healing", "context-compression"})


def not_offered_error(field: str, what: str, hint: str, *, allowed: Sequence[str] = ()) -> RouteNotAllowed:
    """Return the error for a tool of unknown cost."""
    return RouteNotAllowed(
        f"{what[:100]!r} is not available here: its cost has no limit that the gateway can enforce and charge. {hint}",
        details={"fields": {field: ["is not available here"]}, **({"allowed": list(allowed)} if allowed else {})},
    )


SEARCH_SURFACES = frozenset({Surface.SEARCH, Surface.CONTENTS, Surface.ANSWER})
_MILLI_USD = 1_000_000

# The price of a search includes ten results and their texts; each further result or summary costs 0.001 USD.
_EXA_SEARCH: Mapping[str | None, int] = {
    **dict.fromkeys(("lite", "instant"), 4 * _MILLI_USD),
    **dict.fromkeys((None, "auto", "fast", "neural", "keyword", "hybrid"), 7 * _MILLI_USD),
    **dict.fromkeys(("deep", "deep-lite"), 12 * _MILLI_USD),
}
_EXA_MAX_SEARCH, _EXA_ANSWER, _EXA_PER_PAGE = 15 * _MILLI_USD, 5 * _MILLI_USD, _MILLI_USD
_EXA_INCLUDED = 10
_EXA_FORMS = ("text", "highlights", "summary")

# The price of a credit without a plan. Five pages cost one credit.
TAVILY_CREDIT_NANOS = 8 * _MILLI_USD
_TAVILY_PAGES = 5
_TAVILY_BASIC_DEPTHS = frozenset({None, "basic", "fast", "ultra-fast"})


def max_nanos(dialect: Dialect, surface: Surface, parsed: Mapping[str, Any]) -> int:
    """Return the maximum list price of a call in nano-dollars."""
    if dialect is Dialect.EXA:
        return _exa_nanos(surface, parsed)
    if surface is Surface.CONTENTS:
        credits_each = 1 if _text(parsed, "extract_depth") in _TAVILY_BASIC_DEPTHS else 2
        return -(-_length(parsed.get("urls")) // _TAVILY_PAGES) * credits_each * TAVILY_CREDIT_NANOS
    is_cheap = _text(parsed, "search_depth") in _TAVILY_BASIC_DEPTHS and not parsed.get("auto_parameters")
    return (1 if is_cheap else 2) * TAVILY_CREDIT_NANOS


def _exa_nanos(surface: Surface, parsed: Mapping[str, Any]) -> int:
    if surface is Surface.ANSWER:
        return _EXA_ANSWER
    if surface is Surface.CONTENTS:
        pages = _length(parsed.get("urls")) + _length(parsed.get("ids"))
        return pages * max(1, sum(bool(parsed.get(form)) for form in _EXA_FORMS)) * _EXA_PER_PAGE
    stated = [each for name in ("numResults", "num_results") if isinstance(each := parsed.get(name), int)]
    results = max(stated, default=_EXA_INCLUDED)
    options = parsed.get("contents")
    summaries = results if isinstance(options, dict) and options.get("summary") else 0
    base = _EXA_SEARCH.get(_text(parsed, "type"), _EXA_MAX_SEARCH)
    return base + (max(0, results - _EXA_INCLUDED) + summaries) * _EXA_PER_PAGE


def _text(parsed: Mapping[str, Any], name: str) -> str | None:
    value = parsed.get(name)
    return value if value is None or isinstance(value, str) else ""


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 1 if value else 0


SEARCHES_PER_TOOL = 10
# Anthropic's documentation of web fetch: a large page of documentation has 25 000 tokens.
_TOKENS_PER_FETCH = 25_000
# Held for one tool that adds input, and for ten searches.
_MAX_TOKENS_PER_READER = 100_000
_MAX_FETCHED = 10**8
_MAX_SEARCHES = 1_000
# Anthropic's SDK: an advisor writes at least 1 024 tokens; 2 048 are recommended.
ADVISOR_TOKENS = 4_096

# The preview tool and models cost 25 USD per 1 000 calls with some models and 10 with others: 25 here with all.
_SEARCH_NANOS, _PREVIEW_SEARCH_NANOS = 10_000_000, 25_000_000
# Two models bill 8 000 input tokens for the content of each search (0.15 and 0.40 USD per million).
_SEARCH_BLOCK_NANOS = {"gpt-4o-mini": 1_200_000, "gpt-4.1-mini": 3_200_000}
# platform.claude.com, "Pricing": 0.05 USD an hour, at least five minutes; here always an hour.
_CODE_EXECUTION_NANOS = 50_000_000
CODE_EXECUTION, GOOGLE_MAPS = "code_execution", "google_maps"
# ai.google.dev, "Gemini API pricing": 25 USD per 1 000 prompts with Gemini 2. Later models bill each query, and no
# response reports how many there were.
_MAPS_NANOS = 25_000_000
# With these models Google bills per prompt, whatever the number of searches.
SEARCH_PER_PROMPT = ("gemini-1", "gemini-2")

LIMITED = frozenset({ToolBilling.SEARCHES, ToolBilling.FETCHES, ToolBilling.ADVISOR})
_SHARED_LIMIT_SURFACES = frozenset({Surface.CHAT, Surface.RESPONSES})


class HostedTool(NamedTuple):
    """A tool of a request: the position in the body of the object with its limits, and those that it states."""

    kind: str
    billing: ToolBilling
    path: tuple[str | int, ...]
    uses: int | None
    content: int | None
    nanos: int = 0
    # An image or an advisor: one call, and whether the request limits its output.
    sub_call: SubCall | None = None
    has_tokens: bool = True


class ToolRequest(NamedTuple):
    """What a request says about its hosted tools, without its content."""

    dialect: Dialect
    surface: Surface
    models: tuple[str, ...]
    tools: tuple[HostedTool, ...]
    max_tool_calls: int | None
    # Plugins and models that search; some search once before each answer.
    extra: int
    is_search_model: bool
    has_bare_servers: bool
    is_research: bool

    def of(self, billing: ToolBilling) -> list[HostedTool]:
        return [tool for tool in self.tools if tool.billing is billing]

    def at_most(self, most: int) -> HostedTools:
        """Return the possible cost if each limit that the request lacks is at most this number, and these limits."""
        images = self.of(ToolBilling.IMAGE)
        shared = sum(_shares_call_limit(self.dialect, tool) for tool in self.tools)
        limits = [limit for tool in self.tools for limit in self._limits_of(tool, most)]
        calls = self.max_tool_calls
        if calls is None and (shared or images or self.is_research):
            calls = min(most, cost_params.MAX_CALLS if images or self.is_research else SEARCHES_PER_TOOL * shared)
            if self.surface in _SHARED_LIMIT_SURFACES:
                limits.append(ToolLimit((), "max_tool_calls", calls))
        billed = self._search_costs(most, calls or 0)
        if not self.tools and not self.has_bare_servers and not limits:
            return billed
        return billed._replace(
            readers=billed.readers + self.has_bare_servers + sum(_reader_count(tool, most) for tool in self.tools),
            is_unbounded=self.has_bare_servers or bool(self.of(ToolBilling.UNBOUNDED)),
            limits=tuple(limits),
            container_nanos=sum(tool.nanos for tool in self.tools if tool.billing is ToolBilling.CONTAINER),
            use_nanos=_fees(self.models[0], self.tools),
            image=_image_sub_call(images, min(calls or 1, cost_params.MAX_CALLS)),
            sub_calls=tuple(
                tool.sub_call._replace(calls=min(most if tool.uses is None else tool.uses, cost_params.MAX_CALLS))
                for tool in self.of(ToolBilling.ADVISOR)
                if tool.sub_call is not None
            ),
            bounded=self.at_most if limits else None,
        )

    def _limits_of(self, tool: HostedTool, most: int) -> Iterator[ToolLimit]:
        """Yield the limits to add to a tool: Gemini's searches and MCP toolsets have none."""
        if self.dialect is Dialect.GEMINI or _shares_call_limit(self.dialect, tool):
            return
        if tool.uses is None and tool.billing in LIMITED:
            yield ToolLimit(tool.path, "max_uses", most if tool.sub_call else min(most, SEARCHES_PER_TOOL))
        if tool.content is None and tool.billing is ToolBilling.FETCHES:
            yield ToolLimit(tool.path, "max_content_tokens", _TOKENS_PER_FETCH)
        if not tool.has_tokens:
            yield ToolLimit(tool.path, "max_tokens", ADVISOR_TOKENS)

    def _search_costs(self, most: int, calls: int) -> HostedTools:
        """Return the maximum number of searches, and their price if the price table has another or none."""
        model, tools = self.models[0], self.of(ToolBilling.SEARCHES)
        if self.dialect is Dialect.OPENAI and self.is_search_model and not tools:
            # Chat models that search once before each answer and do not report it.
            each = _SEARCH_NANOS if "-search-api" in model else _PREVIEW_SEARCH_NANOS
            return HostedTools(readers=1, searches=1, searches_unreported=1, search_nanos=each)
        per_prompt = self.dialect is Dialect.GEMINI and model.startswith(SEARCH_PER_PROMPT)
        counted = [tool for tool in tools if not _shares_call_limit(self.dialect, tool)]
        searches = sum(1 if per_prompt else (tool.uses or min(most, SEARCHES_PER_TOOL)) for tool in counted)
        if len(counted) < len(tools):
            searches += calls
        if not tools and not self.extra:
            return NO_TOOLS
        searches += self.extra * SEARCHES_PER_TOOL
        search_nanos = None
        if self.dialect is Dialect.OPENAI and tools:
            is_preview = any("preview" in tool.kind for tool in tools)
            blocks = (nanos for name, nanos in _SEARCH_BLOCK_NANOS.items() if model.startswith(name))
            search_nanos = _PREVIEW_SEARCH_NANOS if is_preview else _SEARCH_NANOS + next(blocks, 0)
        # Searches beyond the first ten of each tool add more text.
        surplus_searches = max(0, searches - (len(tools) + self.extra) * SEARCHES_PER_TOOL)
        readers = self.extra + -(-min(surplus_searches, _MAX_SEARCHES) // SEARCHES_PER_TOOL)
        return HostedTools(readers=readers, searches=min(searches, _MAX_SEARCHES), search_nanos=search_nanos)


def _shares_call_limit(dialect: Dialect, tool: HostedTool) -> bool:
    """Return whether `max_tool_calls` of the request limits a tool: only OpenAI's own tools."""
    return (
        dialect in {Dialect.OPENAI, Dialect.OPENROUTER}
        and tool.kind in OPENAI_TOOLS
        and tool.billing in {ToolBilling.SEARCHES, ToolBilling.UNBOUNDED}
    )


def _reader_count(tool: HostedTool, most: int) -> int:
    """Return the input that a tool may add, in units of `_MAX_TOKENS_PER_READER`."""
    if tool.billing in {ToolBilling.IMAGE, ToolBilling.ADVISOR}:
        return 0
    if tool.billing is not ToolBilling.FETCHES:
        return 1
    fetched = (tool.uses or min(most, SEARCHES_PER_TOOL)) * (tool.content or _TOKENS_PER_FETCH)
    return -(-min(fetched, _MAX_FETCHED) // _MAX_TOKENS_PER_READER)


def _fees(model: str, found: Sequence[HostedTool]) -> tuple[tuple[str, int], ...]:
    fees = {}
    for tool in found:
        if tool.billing is ToolBilling.CODE:
            fees[CODE_EXECUTION] = _CODE_EXECUTION_NANOS
        if tool.billing is ToolBilling.MAPS:
            if not model.startswith(SEARCH_PER_PROMPT):
                raise not_offered_error("tools", tool.kind, "Grounding with Maps is available with Gemini 2 models.")
            fees[GOOGLE_MAPS] = _MAPS_NANOS
    return tuple(fees.items())


def _image_sub_call(images: Sequence[HostedTool], calls: int) -> SubCall | None:
    if len(images) > 1:
        raise InvalidInput.field("tools", "may contain only one image_generation")
    found = images[0].sub_call if images else None
    return found and found._replace(calls=calls)
