"""Hosted tools that are offered, by provider, and how each is billed.

A tool is offered only if its cost can be bounded before the call and charged after it; all others are refused.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import Enum, auto
from typing import Any

from app.errors import RouteNotAllowed
from app.gateway.dialects.request.cost_params import Dialect


class ToolBilling(Enum):
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


def _kinds(by_billing: Mapping[ToolBilling, str]) -> Mapping[str, ToolBilling]:
    return {kind: billing for billing, kinds in by_billing.items() for kind in kinds.split()}


# A star matches a date of eight digits.
OPENAI_TOOLS = _kinds(
    {
        ToolBilling.NOTHING: "function custom namespace tool_search apply_patch local_shell computer computer_use "
        "computer_use_preview",
        ToolBilling.UNBOUNDED: "mcp",
        ToolBilling.SEARCHES: "web_search web_search_2025_08_26 web_search_preview web_search_preview_2025_03_11",
        ToolBilling.CONTAINER: "code_interpreter shell",
        ToolBilling.IMAGE: "image_generation",
    }
)
_ANTHROPIC_TOOLS = _kinds(
    {
        ToolBilling.NOTHING: "function custom bash_* text_editor_* computer_* memory_* computer_toolset_* "
        "browser_toolset_*",
        ToolBilling.TOKENS: "tool_search_tool_bm25 tool_search_tool_bm25_* tool_search_tool_regex "
        "tool_search_tool_regex_*",
        ToolBilling.UNBOUNDED: "mcp_toolset",
        ToolBilling.FETCHES: "web_fetch_*",
        ToolBilling.SEARCHES: "web_search_*",
        ToolBilling.CODE: "code_execution_*",
        ToolBilling.ADVISOR: "advisor_*",
    }
)
_GEMINI_TOOLS = _kinds(
    {
        ToolBilling.NOTHING: "function functionDeclarations computerUse",
        ToolBilling.TOKENS: "codeExecution",
        ToolBilling.UNBOUNDED: "urlContext mcpServers mcpServer",
        ToolBilling.SEARCHES: "googleSearch googleSearchRetrieval",
        ToolBilling.MAPS: "googleMaps",
    }
)
_REPORTED_BY_OPENROUTER = frozenset(
    {ToolBilling.NOTHING, ToolBilling.TOKENS, ToolBilling.FETCHES, ToolBilling.UNBOUNDED, ToolBilling.SEARCHES}
)
OFFERED_TOOLS: Mapping[Dialect, Mapping[str, ToolBilling]] = {
    Dialect.OPENAI: OPENAI_TOOLS,
    Dialect.ANTHROPIC: _ANTHROPIC_TOOLS,
    Dialect.GEMINI: _GEMINI_TOOLS,
    Dialect.GROQ: {"function": ToolBilling.NOTHING, "mcp": ToolBilling.UNBOUNDED},
    # OpenRouter reports the whole cost of a call, searches included. Tools that call other models have no bound.
    Dialect.OPENROUTER: {
        **{
            kind: billing
            for kind, billing in {**OPENAI_TOOLS, **_ANTHROPIC_TOOLS}.items()
            if billing in _REPORTED_BY_OPENROUTER
        },
        "openrouter:datetime": ToolBilling.NOTHING,
        "openrouter:web_fetch": ToolBilling.FETCHES,
        "openrouter:web_search": ToolBilling.SEARCHES,
    },
}
OFFERED_PLUGINS = frozenset({"web", "file-parser", "response-healing", "context-compression"})
# Schemas of a client's own tools, and arguments that a model wrote for them: the names inside are the client's own.
CLIENT_DEFINED_FIELDS = frozenset(
    {
        "parameters", "input_schema", "inputSchema", "parametersJsonSchema", "schema", "json_schema",
        "responseSchema", "response_schema", "responseJsonSchema", "args", "arguments", "response", "metadata",
    }
)  # fmt: skip
_CONTAINERS = (dict, list)
_TOOL_CALL_TYPES = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})


def is_tool_call(node: Mapping[str, Any]) -> bool:
    """Return whether an object is a call of a tool, with arguments in `input`."""
    kind = node.get("type")
    return isinstance(kind, str) and kind in _TOOL_CALL_TYPES


def objects_in(parsed: Any, skipped: Collection[str] = CLIENT_DEFINED_FIELDS) -> Sequence[Mapping[str, Any]]:
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


def not_offered_error(field: str, what: str, hint: str, *, allowed: Sequence[str] = ()) -> RouteNotAllowed:
    """Return the error for a tool of unknown cost."""
    return RouteNotAllowed(
        f"{what[:100]!r} is not available here: its cost has no limit that the gateway can enforce and charge. {hint}",
        details={"fields": {field: ["is not available here"]}, **({"allowed": list(allowed)} if allowed else {})},
    )
