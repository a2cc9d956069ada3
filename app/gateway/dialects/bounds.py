"""How many tokens a request can bring in: a bound for its text and media, and what is likely.

A byte-level tokenizer never makes more tokens than bytes. Letters and spaces of ASCII come at least two to a token in
any text that says something; every other byte is counted as a token of its own. English is over-counted about twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from app.errors import InvalidInput

_LETTERS_AND_SPACES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz \t\r\n"
_LETTERS_PER_TOKEN = 2
LIKELY_BYTES_PER_TOKEN = 4

# What providers wrap around a request: the template of a conversation, and a prompt that explains tools.
_WRAPPING, _WRAPPING_OF_TOOLS = 100, 1_000

# Bounds per part, and what is likely. Sources: the providers' pages on vision, audio and documents.
_IMAGE, _IMAGE_LIKELY = 10_000, 1_500
# gpt-4o-mini counts 2 833 + 5 667 a tile, to cost as much as its big sister: eight tiles at most.
_IMAGE_OF_MINI = 50_000
_DOCUMENT_AT_LEAST, _DOCUMENT_AT_MOST, _DOCUMENT_LIKELY_BYTES_PER_TOKEN = 5_000, 1_000_000, 20
# 32 tokens a second of sound at no less than 2 KB a second; film is 290 tokens a second at 12 KB.
_RECORDING_BYTES_PER_TOKEN, _RECORDING_LIKELY_BYTES_PER_TOKEN, _RECORDING_AT_LEAST = 32, 128, 500
# Something at an address may be a book or an hour of film.
_ELSEWHERE, _ELSEWHERE_LIKELY = 250_000, 10_000

# A tool that runs at the provider puts what it finds into the prompt, and searches are billed one by one.
_HOSTED_TOOL, _HOSTED_TOOL_LIKELY = 100_000, 5_000
SEARCHES_PER_TOOL = 10
_HOSTED = (
    "search",
    "fetch",
    "mcp",
    "interpreter",
    "execution",
    "context",
    "contents",
    "maps",
    "generation",
    "grounding",
)

_NESTED_PARTS = ("content", "parts", "output")
# Blocks of a conversation, and pictures and files in it: no provider takes as many.
_MOST_PARTS = 50_000
_MOST_MEDIA = 4_000


@dataclass(frozen=True, slots=True)
class InputBound:
    """Tokens that a request brings in, at most and likely, and what of it has prices of its own."""

    at_most: int
    likely: int
    has_media: bool
    writes_cache: bool
    searches: int


@dataclass(frozen=True, slots=True)
class _Part:
    at_most: int
    likely: int
    # Bytes of the body that this part accounts for, already counted as text.
    text: str = ""


def text_tokens(text: bytes) -> int:
    """Bound the tokens of a text."""
    others = len(text.translate(None, delete=_LETTERS_AND_SPACES))
    return others + -(-(len(text) - others) // _LETTERS_PER_TOKEN)


def likely_tokens(count: int) -> int:
    """Estimate the tokens of so many bytes of text."""
    return -(-count // LIKELY_BYTES_PER_TOKEN)


def input_bound(body: bytes, parsed: Mapping[str, Any], model: str) -> InputBound:
    """Bound the input of a JSON request: all its text, the caller's tools and instructions included, and its media.

    Raises: InvalidInput for more parts than can be looked at.
    """
    at_most, likely_bytes, likely = text_tokens(body) + _WRAPPING, len(body), 0
    at_most += _WRAPPING_OF_TOOLS if parsed.get("tools") else 0
    has_media, writes_cache = False, b"cache" in body
    media = 0
    for block in _blocks(parsed):
        part = _media(block, model)
        if part is None:
            continue
        media += 1
        if media > _MOST_MEDIA:
            raise InvalidInput(f"The request has more than {_MOST_MEDIA} pictures, recordings and files.")
        has_media = True
        counted = part.text.encode("utf-8", "surrogatepass")
        at_most += part.at_most - text_tokens(counted)
        likely += part.likely
        likely_bytes -= len(counted)
    hosted, searches = _hosted_tools(parsed, model)
    at_most += hosted * _HOSTED_TOOL
    likely += hosted * _HOSTED_TOOL_LIKELY + likely_tokens(max(0, likely_bytes))
    return InputBound(max(at_most, likely), likely, has_media, writes_cache, searches)


def unread_bound(body: bytes) -> InputBound:
    """Bound a body that is no JSON (a form with a recording, say)."""
    return InputBound(
        max(text_tokens(body[:_RECORDING_AT_LEAST]), len(body) // _RECORDING_BYTES_PER_TOKEN) + _WRAPPING,
        -(-len(body) // _RECORDING_LIKELY_BYTES_PER_TOKEN),
        has_media=True,
        writes_cache=False,
        searches=0,
    )


def _blocks(parsed: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Walk the places where a provider looks for media; the same shape elsewhere is text and counted as such."""
    system = parsed.get("systemInstruction") or parsed.get("system_instruction") or parsed.get("system")
    waiting: list[Any] = [
        parsed.get("messages"), parsed.get("input"), parsed.get("contents"), parsed.get("content"), system,
        parsed.get("requests"),
    ]  # fmt: skip
    seen = 0
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting.extend(node)
        elif isinstance(node, dict):
            seen += 1
            if seen > _MOST_PARTS:
                raise InvalidInput(f"The request has more than {_MOST_PARTS} parts.")
            yield node
            waiting.extend(node[name] for name in _NESTED_PARTS if name in node)


def _media(block: Mapping[str, Any], model: str) -> _Part | None:
    kind = _word(block, "type")
    if kind in {"image_url", "input_image", "image"}:
        return _image(_text_at(block, "image_url", "url") or _text_at(block, "source", "data"), model)
    if kind == "input_audio":
        return _recording(_text_at(block, "input_audio", "data") or "")
    if kind in {"file", "input_file", "document"}:
        return _document(block)
    for name in ("inlineData", "inline_data"):
        if name in block:
            return _inline(block[name], model)
    if "fileData" in block or "file_data" in block:
        return _Part(_ELSEWHERE, _ELSEWHERE_LIKELY)
    return None


def _document(block: Mapping[str, Any]) -> _Part | None:
    source = block.get("source")
    if isinstance(source, dict) and _word(source, "type") in {"text", "content"}:
        return None
    content = (
        _text_at(block, "source", "data")
        or _text_at(block, "file", "file_data")
        or _text_at(block, "file_data", "")
    )
    if content is None:
        return _Part(_ELSEWHERE, _ELSEWHERE_LIKELY)
    return _pages(content)


def _inline(inline: Any, model: str) -> _Part | None:
    if not isinstance(inline, dict):
        return None
    content, mime = inline.get("data"), inline.get("mimeType", inline.get("mime_type"))
    if not isinstance(content, str) or not isinstance(mime, str):
        return None
    if mime.startswith("image/"):
        return _image(content, model)
    if mime.startswith(("audio/", "video/")):
        return _recording(content)
    return _pages(content)


def _image(content: str | None, model: str) -> _Part:
    inline = "" if content is None or content.startswith("http") else content
    return _Part(_IMAGE_OF_MINI if "4o-mini" in model else _IMAGE, _IMAGE_LIKELY, inline)


def _recording(content: str) -> _Part:
    at_most = max(_RECORDING_AT_LEAST, len(content) // _RECORDING_BYTES_PER_TOKEN)
    return _Part(at_most, -(-len(content) // _RECORDING_LIKELY_BYTES_PER_TOKEN), content)


def _pages(content: str) -> _Part:
    at_most = min(max(_DOCUMENT_AT_LEAST, len(content)), _DOCUMENT_AT_MOST)
    return _Part(at_most, min(at_most, len(content) // _DOCUMENT_LIKELY_BYTES_PER_TOKEN), content)


def _text_at(block: Mapping[str, Any], name: str, inner: str) -> str | None:
    found = block.get(name)
    if isinstance(found, dict):
        found = found.get(inner)
    return found if isinstance(found, str) else None


def _word(block: Mapping[str, Any], name: str) -> str | None:
    # Anything may stand there; a list would not even be asked whether it is one of these words.
    value = block.get(name)
    return value if isinstance(value, str) else None


def _hosted_tools(parsed: Mapping[str, Any], model: str) -> tuple[int, int]:
    """Count the tools that run at the provider, and the searches that they may bill."""
    hosted = searches = 0
    tools = parsed.get("tools")
    for tool in tools if isinstance(tools, list) else []:
        if isinstance(tool, dict) and _is_hosted(tool):
            hosted += 1
            most = tool.get("max_uses")
            searches += (
                most
                if isinstance(most, int) and not isinstance(most, bool) and most > 0
                else SEARCHES_PER_TOOL
            )
    plugins = parsed.get("plugins")
    extra = len(plugins) if isinstance(plugins, list) else 0
    extra += "web_search_options" in parsed
    extra += model.endswith(":online") or "-search" in model
    return hosted + extra, min(searches + extra * SEARCHES_PER_TOOL, 1_000)


def _is_hosted(tool: Mapping[str, Any]) -> bool:
    kind = _word(tool, "type")
    if kind in {"function", "custom"}:
        return False
    # Gemini's tools have no type: their one field is their name.
    names = (
        [kind] if isinstance(kind, str) else [name for name in tool if name not in {"name", "description"}]
    )
    return any(word in name.lower() for name in names for word in _HOSTED) and "input_schema" not in tool
