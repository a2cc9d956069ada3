"""Tools of a request that run at the provider: their possible cost, and the limits that enforce it.

List prices are from the providers' pricing pages of November 2026.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from app.errors import RouteNotAllowed
from app.gateway.dialects.request import images as image_bounds
from app.gateway.dialects.request.cost_params import (
    NO_TOOLS,
    Dialect,
    HostedTools,
    SubCall,
    Surface,
    ToolLimit,
    invalid_field,
)
from app.gateway.dialects.request.offered_tools import (
    CLIENT_DEFINED_FIELDS,
    OFFERED_PLUGINS,
    OFFERED_TOOLS,
    OPENAI_TOOLS,
    ToolBilling,
    objects_in,
)

SEARCHES_PER_TOOL = 10
# Anthropic's documentation of web fetch: a large page of documentation has 25 000 tokens.
_FETCHES_PER_TOOL, _TOKENS_PER_FETCH = 10, 25_000
# Held for one tool that adds input, and for ten searches.
_MAX_TOKENS_PER_READER = 100_000
# Results of OpenRouter's web plugin and search tool.
_MAX_RESULTS = 25
_MAX_FETCHED = 10**8
_MAX_SEARCHES = 1_000
_MAX_CALLS = 1_000

# developers.openai.com, "Pricing", section "Tools". A container is billed by the minute, at least five; here always
# the 20 minutes after which an idle one ends.
_CONTAINER_NANOS = {"1g": 30_000_000, "4g": 120_000_000, "16g": 480_000_000, "64g": 1_920_000_000}
# The preview tool and models cost 25 USD per 1 000 calls with some models and 10 with others: 25 here with all.
_SEARCH_NANOS, _PREVIEW_SEARCH_NANOS = 10_000_000, 25_000_000
# Two models bill 8 000 input tokens for the content of each search (0.15 and 0.40 USD per million).
_SEARCH_BLOCK_NANOS = {"gpt-4o-mini": 1_200_000, "gpt-4.1-mini": 3_200_000}
_DEFAULT_IMAGE_MODEL = "gpt-image-2.6-sunburst"
_IMAGE_FIELDS = frozenset(
    {
        "type", "action", "background", "input_fidelity", "model", "moderation", "output_compression",
        "output_format", "partial_images", "quality", "size",
    }
)  # fmt: skip
_IMAGE_FORMATS = (None, "png", "webp", "jpeg")

# platform.claude.com, "Pricing": 0.05 USD an hour, at least five minutes; here always an hour.
_CODE_EXECUTION_NANOS = 50_000_000
CODE_EXECUTION, GOOGLE_MAPS = "code_execution", "google_maps"
# ai.google.dev, "Gemini API pricing": 25 USD per 1 000 prompts with Gemini 2. Later models bill each query, and no
# response reports how many there were.
_MAPS_NANOS = 25_000_000
# With these models Google bills per prompt, whatever the number of searches.
SEARCH_PER_PROMPT = ("gemini-1", "gemini-2")

# Anthropic summarizes a conversation of 150 000 tokens, or of another number in the request, at least 50 000.
_COMPACTION_DEFAULT_TOKENS, _COMPACTION_MIN_TOKENS = 150_000, 50_000
_SUMMARY_TOKENS = 16_000

# Choices among tools are not definitions of tools.
_SKIPPED_FIELDS = CLIENT_DEFINED_FIELDS | {"tool_choice", "toolChoice", "toolConfig", "tool_config"}

# Groq's systems of models and tools; their responses report no fees.
_COMPOUND = re.compile(r"(groq/)?compound(-beta)?(-mini)?", re.IGNORECASE)
_DATE = re.compile(r"[0-9]{8}$")
_SNAKE = re.compile(r"_([a-z])")


class _Tool(NamedTuple):
    kind: str
    billing: ToolBilling
    definition: Mapping[str, Any]
    # Its position in the body.
    path: tuple[str | int, ...] = ()

    @property
    def limit_holder(self) -> tuple[Mapping[str, Any], tuple[str | int, ...]]:
        """The object that contains its limits, and its position: of OpenRouter's tools, their `parameters`."""
        if not self.kind.startswith("openrouter:"):
            return self.definition, self.path
        parameters = self.definition.get("parameters")
        return (parameters if isinstance(parameters, dict) else {}), (*self.path, "parameters")


def read_hosted_tools(
    dialect: Dialect, surface: Surface, models: Sequence[str], parsed: Mapping[str, Any]
) -> HostedTools:
    """Return the possible cost of a request's hosted tools; any of the models may answer, the first by default.

    Raises: RouteNotAllowed for a tool that is not offered, with `details.allowed`; InvalidInput for one of unbounded
    cost.
    """
    listed = parsed.get("tools")
    paths = {id(each): ("tools", at) for at, each in enumerate(listed)} if isinstance(listed, list) else {}
    found = [
        tool._replace(path=paths.get(id(definition), ()))
        for definition in _iter_tools(parsed)
        for tool in _classify(dialect, surface, definition)
        if tool.billing is not ToolBilling.NOTHING
    ]
    models = [each.lower() for each in models]
    model, is_research = models[0], any("deep-research" in each for each in models)
    if (dialect is Dialect.GROQ and _COMPOUND.fullmatch(model)) or (
        is_research and dialect is not Dialect.OPENAI
    ):
        # Only OpenAI's own deep research has a limit on its calls.
        raise _not_offered_error("model", model, "Use a model without built-in tools.")
    plugins = _plugins(dialect, parsed)
    limits = _missing_limits(dialect, surface, parsed, found)
    billed = _search_costs(dialect, models, parsed, found, plugins)
    images = [tool for tool in found if tool.billing is ToolBilling.IMAGE]
    most_calls = _count(parsed, "max_tool_calls")
    if most_calls is None and (images or is_research):
        raise invalid_field(
            "max_tool_calls",
            "is required with image generation and deep research, because each call is billed",
        )
    # The first version of Anthropic's connector only has servers; the next has a toolset for each.
    has_bare_servers = bool(parsed.get("mcp_servers")) and all(tool.kind != "mcp_toolset" for tool in found)
    if not found and not has_bare_servers:
        return billed
    return billed._replace(
        readers=billed.readers + has_bare_servers + sum(map(_reader_count, found)),
        is_unbounded=has_bare_servers or any(tool.billing is ToolBilling.UNBOUNDED for tool in found),
        limits=limits,
        container_nanos=sum(
            _container_nanos(tool) for tool in found if tool.billing is ToolBilling.CONTAINER
        ),
        use_nanos=_fees(model, found),
        image=_image_sub_call([tool.definition for tool in images], most_calls or 1),
        sub_calls=tuple(
            _advisor_sub_call(tool.definition) for tool in found if tool.billing is ToolBilling.ADVISOR
        ),
    )


def compaction_calls(parsed: Mapping[str, Any], model: str, tokens_in: int) -> tuple[SubCall, ...]:
    """Return the summary of the conversation that Anthropic may write in the same call and bill separately."""
    management = parsed.get("context_management")
    edits = management.get("edits") if isinstance(management, dict) else None
    for edit in edits if isinstance(edits, list) else []:
        if isinstance(edit, dict) and str(edit.get("type")).startswith("compact_"):
            trigger = edit.get("trigger")
            value = _count(trigger, "value") if isinstance(trigger, dict) else None
            if tokens_in >= max(
                _COMPACTION_DEFAULT_TOKENS if value is None else value, _COMPACTION_MIN_TOKENS
            ):
                return (SubCall(model, 1, _SUMMARY_TOKENS),)
    return ()


def _iter_tools(parsed: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the tools of a request, including those added by items of its conversation."""
    for node in objects_in(parsed, _SKIPPED_FIELDS):
        if "tools" in node:
            tools = node["tools"]
            listed = tools if isinstance(tools, list) else [tools]
            yield from (tool for tool in listed if isinstance(tool, dict))
        if node.get("type") == "tool_definition" and isinstance(node.get("definition"), dict):
            yield node["definition"]


def _classify(dialect: Dialect, surface: Surface, definition: Mapping[str, Any]) -> Iterator[_Tool]:
    # In generateContent, the kind of a tool is the name of its field.
    kinds = list(definition) if surface is Surface.GENERATE else [definition.get("type") or "function"]
    if dialect is Dialect.GEMINI:
        kinds = [_SNAKE.sub(lambda part: part[1].upper(), str(kind)) for kind in kinds]
    offered = OFFERED_TOOLS[dialect]
    for kind in map(str, kinds):
        billing = offered.get(kind) or offered.get(_DATE.sub("*", kind))
        if billing is None:
            raise _not_offered_error(
                "tools", kind, f"Available: {', '.join(offered)}.", allowed=list(offered)
            )
        if definition.get("tunnel_id"):
            raise _not_offered_error(
                "tools.tunnel_id", kind, "Use server_url: tunnels belong to the operator's account."
            )
        environment = definition.get("environment")
        if kind == "shell" and isinstance(environment, dict) and environment.get("type") == "local":
            billing = ToolBilling.NOTHING
        yield _Tool(kind, billing, definition)


def _plugins(dialect: Dialect, parsed: Mapping[str, Any]) -> int:
    plugins = (parsed.get("plugins") or []) if dialect is Dialect.OPENROUTER else []
    if not isinstance(plugins, list):
        raise invalid_field("plugins", "must be a list")
    names = [str(plugin.get("id") if isinstance(plugin, dict) else plugin) for plugin in plugins]
    for name in names:
        if name not in OFFERED_PLUGINS:
            allowed = sorted(OFFERED_PLUGINS)
            raise _not_offered_error("plugins", name, f"Available: {', '.join(allowed)}.", allowed=allowed)
    if any(
        (_count(each, "max_results") or 0) > _MAX_RESULTS for each in plugins or () if isinstance(each, dict)
    ):
        raise invalid_field("plugins.max_results", f"must be at most {_MAX_RESULTS}")
    return len(names)


def _search_costs(
    dialect: Dialect, models: Sequence[str], parsed: Mapping[str, Any], found: Sequence[_Tool], plugins: int
) -> HostedTools:
    """Return the maximum number of searches, and their price if the price table has another or none."""
    model = models[0]
    tools = [tool for tool in found if tool.billing is ToolBilling.SEARCHES]
    is_search_model = "web_search_options" in parsed or any("-search" in each for each in models)
    if dialect is Dialect.OPENAI and is_search_model and not tools:
        # Chat models that search once before each answer and do not report it.
        each = _SEARCH_NANOS if "-search-api" in model else _PREVIEW_SEARCH_NANOS
        return HostedTools(readers=1, searches=1, searches_unreported=1, search_nanos=each)
    per_prompt = dialect is Dialect.GEMINI and model.startswith(SEARCH_PER_PROMPT)
    counted = [tool for tool in tools if not _shares_call_limit(dialect, tool)]
    searches = sum(1 if per_prompt else _max_uses(tool) for tool in counted)
    if len(counted) < len(tools):
        searches += _max_calls(dialect, parsed, found)
    extra = plugins + is_search_model + any("online" in each.split(":")[1:] for each in models)
    if not tools and not extra:
        return NO_TOOLS
    searches += extra * SEARCHES_PER_TOOL
    search_nanos = None
    if dialect is Dialect.OPENAI and tools:
        is_preview = any("preview" in tool.kind for tool in tools)
        blocks = (nanos for name, nanos in _SEARCH_BLOCK_NANOS.items() if model.startswith(name))
        search_nanos = _PREVIEW_SEARCH_NANOS if is_preview else _SEARCH_NANOS + next(blocks, 0)
    # Searches beyond the first ten of each tool add more text.
    surplus_searches = max(0, searches - (len(tools) + extra) * SEARCHES_PER_TOOL)
    readers = extra + -(-min(surplus_searches, _MAX_SEARCHES) // SEARCHES_PER_TOOL)
    return HostedTools(readers=readers, searches=min(searches, _MAX_SEARCHES), search_nanos=search_nanos)


def _missing_limits(
    dialect: Dialect, surface: Surface, parsed: Mapping[str, Any], found: Sequence[_Tool]
) -> tuple[ToolLimit, ...]:
    """Return the limits to add to a request, equal to what the hold covers. Raises: InvalidInput.

    Gemini's searches and MCP toolsets have no limits.
    """
    limits = []
    for tool in found:
        holder, path = tool.limit_holder
        for name, number in () if _shares_call_limit(dialect, tool) else _LIMITS.get(tool.billing, ()):
            if dialect is Dialect.GEMINI or _count(holder, name) is not None:
                continue
            if not tool.path:
                raise invalid_field(name, f"is required for {tool.kind} outside the list of tools")
            limits.append(ToolLimit(path, name, number))
    is_together = any(_shares_call_limit(dialect, tool) for tool in found)
    if is_together and surface in _SHARED_LIMIT_SURFACES and _count(parsed, "max_tool_calls") is None:
        limits.append(ToolLimit((), "max_tool_calls", _max_calls(dialect, parsed, found)))
    return tuple(limits)


_LIMITS: Mapping[ToolBilling, tuple[tuple[str, int], ...]] = {
    ToolBilling.SEARCHES: (("max_uses", SEARCHES_PER_TOOL),),
    ToolBilling.FETCHES: (("max_uses", _FETCHES_PER_TOOL), ("max_content_tokens", _TOKENS_PER_FETCH)),
}
_SHARED_LIMIT_SURFACES = frozenset({Surface.CHAT, Surface.RESPONSES})


def _shares_call_limit(dialect: Dialect, tool: _Tool) -> bool:
    """Return whether `max_tool_calls` of the request limits a tool: only OpenAI's own tools."""
    return (
        dialect in {Dialect.OPENAI, Dialect.OPENROUTER}
        and tool.kind in OPENAI_TOOLS
        and tool.billing in {ToolBilling.SEARCHES, ToolBilling.UNBOUNDED}
    )


def _max_calls(dialect: Dialect, parsed: Mapping[str, Any], found: Sequence[_Tool]) -> int:
    stated = _count(parsed, "max_tool_calls")
    if stated is not None:
        return stated
    return SEARCHES_PER_TOOL * sum(_shares_call_limit(dialect, tool) for tool in found)


def _max_uses(tool: _Tool) -> int:
    return _count(tool.limit_holder[0], "max_uses") or SEARCHES_PER_TOOL


def _reader_count(tool: _Tool) -> int:
    """Return the input that a tool may add, in units of `_MAX_TOKENS_PER_READER`."""
    if tool.billing in {ToolBilling.IMAGE, ToolBilling.ADVISOR}:
        return 0
    if tool.billing is not ToolBilling.FETCHES:
        return 1
    content = _count(tool.limit_holder[0], "max_content_tokens") or _TOKENS_PER_FETCH
    return -(-min(_max_uses(tool) * content, _MAX_FETCHED) // _MAX_TOKENS_PER_READER)


def _container_nanos(tool: _Tool) -> int:
    """Return the price of a container created by the call, without stored references. Raises: RouteNotAllowed."""
    name, made = ("environment", "container_auto") if tool.kind == "shell" else ("container", "auto")
    place = tool.definition.get(name)
    definition = {key: value for key, value in place.items() if value} if isinstance(place, dict) else {}
    network = definition.pop("network_policy", {"type": "disabled"})
    memory = definition.pop("memory_limit", "1g")
    if definition != {"type": made} or network != {"type": "disabled"}:
        raise _not_offered_error(
            f"tools.{name}",
            tool.kind,
            f'Use {name} {{"type": "{made}"}} with memory_limit, without files, skills and network.',
        )
    if not isinstance(memory, str) or memory not in _CONTAINER_NANOS:
        raise invalid_field("tools.memory_limit", f"must be one of {', '.join(_CONTAINER_NANOS)}")
    return _CONTAINER_NANOS[memory]


def _fees(model: str, found: Sequence[_Tool]) -> tuple[tuple[str, int], ...]:
    fees = {}
    for tool in found:
        if tool.billing is ToolBilling.CODE:
            fees[CODE_EXECUTION] = _CODE_EXECUTION_NANOS
        if tool.billing is ToolBilling.MAPS:
            if not model.startswith(SEARCH_PER_PROMPT):
                raise _not_offered_error(
                    "tools", tool.kind, "Grounding with Maps is available with Gemini 2 models."
                )
            fees[GOOGLE_MAPS] = _MAPS_NANOS
    return tuple(fees.items())


def _image_sub_call(definitions: Sequence[Mapping[str, Any]], most_calls: int) -> SubCall | None:
    if not definitions:
        return None
    if len(definitions) > 1:
        raise invalid_field("tools", "may contain only one image_generation")
    (tool,) = definitions
    surplus = sorted(name for name in tool if tool[name] is not None and name not in _IMAGE_FIELDS)
    if surplus:
        raise _not_offered_error("tools", f"image_generation with {surplus[0]}", "Leave it out.")
    if tool.get("output_format") not in _IMAGE_FORMATS:
        raise invalid_field("tools.output_format", "must be png, webp or jpeg")
    model = tool.get("model") or _DEFAULT_IMAGE_MODEL
    if not isinstance(model, str):
        raise invalid_field("tools.model", "must be a string")
    return SubCall(model, min(most_calls, _MAX_CALLS), image_bounds.generated_image_tokens(model, tool))


def _advisor_sub_call(definition: Mapping[str, Any]) -> SubCall:
    model = definition.get("model")
    uses, tokens = _count(definition, "max_uses"), _count(definition, "max_tokens")
    if not isinstance(model, str) or not uses or not tokens:
        raise invalid_field(
            "tools", "an advisor needs model, max_uses and max_tokens, because it is billed separately"
        )
    return SubCall(model, min(uses, _MAX_CALLS), tokens)


def _count(given: Mapping[str, Any], name: str) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise invalid_field(name, "must be a whole number of zero or more")
    return value


def _not_offered_error(field: str, what: str, hint: str, *, allowed: Sequence[str] = ()) -> RouteNotAllowed:
    return RouteNotAllowed(
        f"{what[:100]!r} is not available here: its cost has no limit that the gateway can enforce and charge. {hint}",
        details={
            "fields": {field: ["is not available here"]},
            **({"allowed": list(allowed)} if allowed else {}),
        },
    )
