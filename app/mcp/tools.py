"""The tools: which view each calls. All texts are constants: what others wrote never describes a tool."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

REQUEST_ID = "request_id"


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool, and what is promised about it. One that moves money takes a `request_id`.

    `endpoint` is Flask's, of the view; without one it is `call_service`, which can reach any route that is forwarded.
    """

    name: str
    description: str
    endpoint: str | None = None
    read_only: bool = False
    moves_money: bool = False
    open_world: bool = False
    is_additive: bool = False
    is_keyless: bool = False
    one: tuple[str, str] | None = None
    """The endpoint of the view of one object, which is called if the argument with the first name is present."""


_FILE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
TOOLS = {name: McpTool(name, **stated) for name, stated in _FILE["tools"].items()}
TEXTS: Mapping[str, Mapping[str, str]] = _FILE["texts"]
"""What arguments and members of results mean, where no OpenAPI document says it."""
RESOURCES: Mapping[str, Mapping[str, str]] = _FILE["resources"]
"""Pages of this service, by path: the endpoint of the view, and what a list of resources says of it."""
