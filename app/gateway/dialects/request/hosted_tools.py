"""Tools of a request that run at the provider, with the limits that it states."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.errors import InvalidInput
from app.gateway.dialects.request import cost_params, tool_costs
from app.gateway.dialects.request import images as image_bounds
from app.gateway.dialects.request.cost_params import FIELDS, Dialect, HostedTools, SubCall, Surface
from app.gateway.dialects.request.tool_costs import HostedTool, ToolBilling, not_offered_error

# Results of OpenRouter's web plugin and search tool.
_MAX_RESULTS = 25
# messages[0].content[0].tool.definition: no place where a provider reads tools is deeper.
_MAX_PATH = 8
_MAX_HOSTED_TOOLS = 128
# developers.openai.com, "Pricing", section "Tools". A container is billed by the minute, at least five; here always
# the 20 minutes after which an idle one ends.
_CONTAINER_NANOS = {"1g": 30_000_000, "4g": 120_000_000, "16g": 480_000_000, "64g": 1_920_000_000}
_DEFAULT_IMAGE_MODEL = "gpt-image-2.6-sunburst"
_IMAGE_FORMATS = (None, "png", "webp", "jpeg")

# Anthropic summarizes a conversation of 150 000 tokens, or of another number in the request, at least 50 000.
_COMPACTION_DEFAULT_TOKENS, _COMPACTION_MIN_TOKENS = 150_000, 50_000
_SUMMARY_TOKENS = 16_000

# Choices among tools are not definitions of tools.
_SKIPPED_FIELDS = FIELDS["client_defined"] | {"tool_choice", "toolChoice", "toolConfig", "tool_config"}

# Groq's systems of models and tools; their responses report no fees.
_COMPOUND = re.compile(r"(groq/)?compound(-beta)?(-mini)?", re.IGNORECASE)
_DATE = re.compile(r"[0-9]{8}$")
_SNAKE = re.compile(r"_([a-z])")
# The only forms that are read; another one may be read by the provider.
_SHAPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "tool_choice": ((str, dict), "a string or an object"),
    "web_search_options": ((dict,), "an object"),
    "mcp_servers": ((list,), "a list of objects"),
    "plugins": ((list,), "a list"),
}


def read_hosted_tools(
    dialect: Dialect, surface: Surface, models: Sequence[str], parsed: Mapping[str, Any]
) -> HostedTools:
    """Return the possible cost of a request's hosted tools; any of the models may answer, the first by default.

    Limits that the request lacks are as high as they can be: `bounded` lowers them.

    Raises: RouteNotAllowed for a tool that is not offered, with `details.allowed`; InvalidInput for one that cannot be
    read.
    """
    for name in _SHAPES.keys() & parsed.keys():
        kinds, expected = _SHAPES[name]
        if parsed[name] is not None and not isinstance(parsed[name], kinds):
            raise InvalidInput.field(name, f"must be {expected}: its cost is read from it")
    hosted = [
        (kind, billing, definition)
        for definition in _iter_tools(surface, parsed)
        for kind, billing in _classify(dialect, surface, definition)
        if billing is not ToolBilling.NOTHING
    ]
    if len(hosted) > _MAX_HOSTED_TOOLS:
        raise InvalidInput.field("tools", f"has {len(hosted)} hosted tools: at most {_MAX_HOSTED_TOOLS} are allowed")
    are_limited = dialect is not Dialect.GEMINI and any(billing in tool_costs.LIMITED for _, billing, _ in hosted)
    paths = _paths(parsed) if are_limited else {}
    found = [_read_tool(dialect, paths, kind, billing, definition) for kind, billing, definition in hosted]
    models = [each.lower() for each in models]
    is_research = any("deep-research" in each for each in models)
    if (dialect is Dialect.GROQ and _COMPOUND.fullmatch(models[0])) or (is_research and dialect is not Dialect.OPENAI):
        # Only OpenAI's own deep research has a limit on its calls.
        raise not_offered_error("model", models[0], "Use a model without built-in tools.")
    servers = parsed.get("mcp_servers") or ()
    if not all(isinstance(server, dict) for server in servers):
        raise InvalidInput.field("mcp_servers", "must be a list of objects: its cost is read from it")
    is_search_model = "web_search_options" in parsed or any("-search" in each for each in models)
    is_online = any("online" in each.split(":")[1:] for each in models)
    extra = _plugins(dialect, parsed) + is_search_model + is_online
    if not (found or servers or extra or is_research):
        return cost_params.NO_TOOLS
    return tool_costs.ToolRequest(
        dialect, surface, tuple(models), tuple(found), _count(parsed, "max_tool_calls"), extra, is_search_model,
        # The first version of Anthropic's connector only has servers; the next has a toolset for each.
        has_bare_servers=bool(servers) and all(tool.kind != "mcp_toolset" for tool in found), is_research=is_research,
    ).at_most(cost_params.MAX_CALLS)  # fmt: skip


def compaction_calls(parsed: Mapping[str, Any], model: str, tokens_in: int) -> tuple[SubCall, ...]:
    """Return the summary of the conversation that Anthropic may write in the same call and bill separately."""
    management = parsed.get("context_management")
    edits = management.get("edits") if isinstance(management, dict) else None
    for edit in edits if isinstance(edits, list) else []:
        if isinstance(edit, dict) and str(edit.get("type")).startswith("compact_"):
            trigger = edit.get("trigger")
            value = _count(trigger, "value") if isinstance(trigger, dict) else None
            if tokens_in >= max(_COMPACTION_DEFAULT_TOKENS if value is None else value, _COMPACTION_MIN_TOKENS):
                return (SubCall(model, 1, _SUMMARY_TOKENS),)
    return ()


def _iter_tools(surface: Surface, parsed: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the tools of a request, including those added by items of its conversation. Raises: InvalidInput."""
    for node in cost_params.objects_in(parsed, _SKIPPED_FIELDS):
        tools = node.get("tools")
        # Google reads a single object like a list of one.
        listed = [tools] if surface is Surface.GENERATE and isinstance(tools, dict) else tools
        if node.get("type") == "tool_definition":
            listed = [*(listed or ()), node.get("definition")]
        if listed is None:
            continue
        if not isinstance(listed, list) or not all(isinstance(tool, dict) for tool in listed):
            raise not_offered_error("tools", "tools in this form", "Send a list of objects, each a tool.")
        yield from listed


def _classify(dialect: Dialect, surface: Surface, definition: Mapping[str, Any]) -> Iterator[tuple[str, ToolBilling]]:
    # In generateContent, the kind of a tool is the name of its field.
    kinds = list(definition) if surface is Surface.GENERATE else [_kind(definition)]
    if dialect is Dialect.GEMINI:
        kinds = [_SNAKE.sub(lambda part: part[1].upper(), str(kind)) for kind in kinds]
    offered = tool_costs.OFFERED_TOOLS[dialect]
    for kind in kinds:
        billing = offered.get(kind) or offered.get(_DATE.sub("*", kind))
        if billing is None:
            raise not_offered_error("tools", kind, f"Available: {', '.join(offered)}.", allowed=list(offered))
        if definition.get("tunnel_id"):
            hint = "Use server_url: tunnels belong to the operator's account."
            raise not_offered_error("tools.tunnel_id", kind, hint)
        environment = definition.get("environment")
        if kind == "shell" and isinstance(environment, dict) and environment.get("type") == "local":
            billing = ToolBilling.NOTHING
        yield kind, billing


def _kind(definition: Mapping[str, Any]) -> str:
    """Return the type of a tool; without one it is a function, and has nothing else than a function has."""
    kind = definition.get("type")
    if kind is not None:
        return str(kind)
    unknown = [name for name in definition if name not in FIELDS["function"] and type(definition[name]) is not bool]
    if unknown or not definition:
        what = f"a tool without type, and with {unknown[0]}" if unknown else "an empty tool"
        raise not_offered_error("tools", what, "Send its type.")
    return "function"


def _read_tool(
    dialect: Dialect,
    paths: Mapping[int, tuple[str | int, ...]],
    kind: str,
    billing: ToolBilling,
    definition: Mapping[str, Any],
) -> HostedTool:
    """Return a tool with the limits that it states. Raises: InvalidInput."""
    holder: Any = definition
    below: tuple[str, ...] = ()
    if kind.startswith("openrouter:"):
        holder, below = definition.get("parameters") or {}, ("parameters",)
        if not isinstance(holder, dict):
            raise InvalidInput.field("tools.parameters", "must be an object")
    uses, content = _count(holder, "max_uses"), _count(holder, "max_content_tokens")
    tool = HostedTool(kind, billing, (), uses, content)
    if billing is ToolBilling.CONTAINER:
        return tool._replace(nanos=_container_nanos(kind, definition))
    if billing is ToolBilling.IMAGE:
        return tool._replace(sub_call=_read_image(definition))
    if billing is ToolBilling.ADVISOR:
        model, tokens = definition.get("model"), _count(definition, "max_tokens")
        if not isinstance(model, str):
            raise InvalidInput.field("tools", "must name the model of an advisor, because it is billed separately")
        call = SubCall(model, 0, tokens or tool_costs.ADVISOR_TOKENS)
        tool = tool._replace(sub_call=call, has_tokens=bool(tokens), uses=uses or None)
    if billing in tool_costs.LIMITED and dialect is not Dialect.GEMINI:
        if id(definition) not in paths:
            raise InvalidInput.field("tools", f"may contain {kind} in the request's own list of tools only")
        return tool._replace(path=(*paths[id(definition)], *below))
    return tool


def _paths(parsed: Mapping[str, Any]) -> dict[int, tuple[str | int, ...]]:
    """Return the path of each object that is not deeper than a limit can be set, by its identity."""
    paths: dict[int, tuple[str | int, ...]] = {}
    stack: list[tuple[tuple[str | int, ...], Any]] = [((), parsed)]
    while stack:
        path, node = stack.pop()
        if isinstance(node, dict):
            paths[id(node)] = path
        inner = node.items() if isinstance(node, dict) else enumerate(node)
        if len(path) < _MAX_PATH:
            stack += [((*path, key), each) for key, each in inner if isinstance(each, dict | list)]
    return paths


def _plugins(dialect: Dialect, parsed: Mapping[str, Any]) -> int:
    plugins = (parsed.get("plugins") or ()) if dialect is Dialect.OPENROUTER else ()
    names = [str(plugin.get("id") if isinstance(plugin, dict) else plugin) for plugin in plugins]
    for name in names:
        if name not in tool_costs.OFFERED_PLUGINS:
            allowed = sorted(tool_costs.OFFERED_PLUGINS)
            raise not_offered_error("plugins", name, f"Available: {', '.join(allowed)}.", allowed=allowed)
    if any((_count(each, "max_results") or 0) > _MAX_RESULTS for each in plugins if isinstance(each, dict)):
        raise InvalidInput.field("plugins.max_results", f"must be at most {_MAX_RESULTS}")
    return len(names)


def _container_nanos(kind: str, tool: Mapping[str, Any]) -> int:
    """Return the price of a container created by the call, without stored references. Raises: RouteNotAllowed."""
    name, made = ("environment", "container_auto") if kind == "shell" else ("container", "auto")
    place = tool.get(name)
    definition = {key: value for key, value in place.items() if value} if isinstance(place, dict) else {}
    network = definition.pop("network_policy", {"type": "disabled"})
    memory = definition.pop("memory_limit", "1g")
    if definition != {"type": made} or network != {"type": "disabled"}:
        hint = f'Use {name} {{"type": "{made}"}} with memory_limit, without files, skills and network.'
        raise not_offered_error(f"tools.{name}", kind, hint)
    if not isinstance(memory, str) or memory not in _CONTAINER_NANOS:
        raise InvalidInput.field("tools.memory_limit", f"must be one of {', '.join(_CONTAINER_NANOS)}")
    return _CONTAINER_NANOS[memory]


def _read_image(tool: Mapping[str, Any]) -> SubCall:
    """Return the generation of one image. Raises: InvalidInput, RouteNotAllowed."""
    surplus = sorted(name for name in tool if tool[name] is not None and name not in FIELDS["image_tool"])
    if surplus:
        raise not_offered_error("tools", f"image_generation with {surplus[0]}", "Leave it out.")
    if tool.get("output_format") not in _IMAGE_FORMATS:
        raise InvalidInput.field("tools.output_format", "must be png, webp or jpeg")
    model = tool.get("model") or _DEFAULT_IMAGE_MODEL
    if not isinstance(model, str):
        raise InvalidInput.field("tools.model", "must be a string")
    return SubCall(model, 0, image_bounds.generated_image_tokens(model, tool))


def _count(given: Mapping[str, Any], name: str) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidInput.field(name, "must be a whole number of zero or more")
    return value
