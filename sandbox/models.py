"""A stand-in for a provider of language models in OpenAI's formats: chat completions, responses, embeddings, models.

It understands nothing and always gives the same answer: it calls the tool that shares the most words with the user's
message, repeats what the tool returned, and otherwise repeats the message. Arguments of the tool are the JSON object in
the message, so a tool with required arguments is called only if the message contains them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote, urlsplit

from solana_node.loopback_server import LoopbackHandler, LoopbackServer

_MODELS = ("gpt-5", "gpt-5-mini", "gpt-4o", "gpt-4o-mini", "text-embedding-3-small")
_MAX_BODY_BYTES = 2**25
_CREATED = 1_735_689_600
_BYTES_PER_TOKEN = 4
_DIMENSIONS = 1536
_NAME_WEIGHT = 3
_WORD = re.compile(r"[a-z]{4,}")
_COMMON_WORDS = frozenset({"have", "which", "what", "that", "this", "with", "from", "your", "there"})
_FORCED = ("required", "any")


@dataclass(frozen=True, slots=True)
class _Answer:
    """A text, or the call of a tool with its arguments as JSON text."""

    text: str = ""
    tool: str = ""
    arguments: str = ""


class ModelServer(LoopbackServer):
    """The provider on a loopback port (0: a free one)."""

    def __init__(self, *, port: int = 0) -> None:
        super().__init__(_Handler, port=port)


class _Handler(LoopbackHandler):
    timeout = 30

    def do_GET(self) -> None:
        """Answer GET /v1/models and /v1/models/{model}."""
        path = urlsplit(self.path).path
        if path == "/v1/models":
            self._json({"object": "list", "data": [_model(name) for name in _MODELS]})
        elif path.startswith("/v1/models/"):
            self._json(_model(unquote(path.removeprefix("/v1/models/"))))
        else:
            self._refuse(HTTPStatus.NOT_FOUND, f"Invalid URL (GET {path})")

    def do_POST(self) -> None:
        """Answer a chat completion, a response or embeddings; the first two as a stream on request."""
        text, path = self.read_limited_body(_MAX_BODY_BYTES), urlsplit(self.path).path
        try:
            body = json.loads(text or b"")
            if path == "/v1/embeddings":
                self._json(_embeddings(body))
            elif path == "/v1/chat/completions":
                self._generate(_Chat(body), is_stream=bool(body.get("stream")))
            elif path == "/v1/responses":
                self._generate(_Response(body), is_stream=bool(body.get("stream")))
            else:
                self._refuse(HTTPStatus.NOT_FOUND, f"Invalid URL (POST {path})")
        except (ValueError, TypeError, KeyError, AttributeError, IndexError):
            self._refuse(HTTPStatus.BAD_REQUEST, "The body does not have the documented form.")

    def _generate(self, generated: _Chat | _Response, *, is_stream: bool) -> None:
        if is_stream:
            self._stream(generated.events())
        else:
            self._json(generated.document())

    def _json(self, document: Mapping[str, Any]) -> None:
        self.reply(HTTPStatus.OK, json.dumps(document).encode())

    def _refuse(self, status: int, message: str) -> None:
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
        self.reply(status, json.dumps({"error": error}).encode())

    def _stream(self, events: Iterator[str]) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in events:
            data = event.encode()
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")


class _Chat:
    """A chat completion."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        tools = [tool["function"] for tool in body.get("tools") or () if tool.get("type") == "function"]
        last = body["messages"][-1]
        returned = [_plain(last.get("content"))] if last["role"] == "tool" else []
        asked = [_plain(each.get("content")) for each in body["messages"] if each["role"] == "user"]
        choice = body.get("tool_choice")
        forced = choice["function"]["name"] if isinstance(choice, dict) else choice
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        self._answer, self._is_cut = _cut(_answer(asked, returned, tools, forced), limit)
        self._usage = _usage(body["messages"], self._answer, names=("prompt_tokens", "completion_tokens"))
        self._has_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        self._head = {"id": f"chatcmpl-{_digest(body)}", "created": _CREATED, "model": body["model"]}

    def document(self) -> dict[str, Any]:
        """Return the body of the response."""
        message = {"role": "assistant", "refusal": None, **self._content()}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self._reason()}
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": self._usage}

    def events(self) -> Iterator[str]:
        """Yield the events of the stream: one for each word."""
        if self._answer.tool:
            calls = [{"index": 0, **call} for call in self._content()["tool_calls"]]
            pieces: list[dict[str, Any]] = [{"tool_calls": calls}]
        else:
            pieces = [{"content": word} for word in re.findall(r"\s*\S+|\s+", self._answer.text)]
        for delta in ({"role": "assistant", "content": None if self._answer.tool else ""}, *pieces):
            yield self._chunk([{"index": 0, "delta": delta, "finish_reason": None}])
        yield self._chunk([{"index": 0, "delta": {}, "finish_reason": self._reason()}])
        if self._has_usage:
            yield self._chunk([], usage=self._usage)
        yield "data: [DONE]\n\n"

    def _chunk(self, choices: list[Any], **members: Any) -> str:
        return (
            f"data: {json.dumps({**self._head, 'object': 'chat.completion.chunk', 'choices': choices, **members})}\n\n"
        )

    def _content(self) -> dict[str, Any]:
        if not self._answer.tool:
            return {"content": self._answer.text}
        function = {"name": self._answer.tool, "arguments": self._answer.arguments}
        return {
            "content": None,
            "tool_calls": [{"id": _call_id(self._answer), "type": "function", "function": function}],
        }

    def _reason(self) -> str:
        return "tool_calls" if self._answer.tool else "length" if self._is_cut else "stop"


class _Response:
    """A response of the Responses API."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        given = body["input"]
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        returned = [_plain(items[-1]["output"])] if items[-1].get("type") == "function_call_output" else []
        asked = [_plain(each.get("content")) for each in items if each.get("role") == "user"]
        tools = [tool for tool in body.get("tools") or () if tool.get("type") == "function"]
        choice = body.get("tool_choice")
        forced = choice["name"] if isinstance(choice, dict) else choice
        answer, is_cut = _cut(_answer(asked, returned, tools, forced), body.get("max_output_tokens"))
        digest = _digest(body)
        self._item: dict[str, Any]
        if answer.tool:
            self._item = {
                "id": f"fc_{digest}", "type": "function_call", "status": "completed", "call_id": _call_id(answer),
                "name": answer.tool, "arguments": answer.arguments,
            }  # fmt: skip
        else:
            part = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
            self._item = {
                "id": f"msg_{digest}", "type": "message", "role": "assistant", "status": "completed", "content": [part]
            }  # fmt: skip
        usage = _usage(items, answer, names=("input_tokens", "output_tokens"))
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        self._document = {
            "id": f"resp_{digest}", "object": "response", "created_at": _CREATED, "model": body["model"],
            "status": "incomplete" if is_cut else "completed", "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": body.get("instructions"), "metadata": body.get("metadata") or {}, "output": [self._item],
            "parallel_tool_calls": True, "temperature": 1, "top_p": 1, "tool_choice": choice or "auto",
            "tools": body.get("tools") or [], "usage": {**usage, **details},
        }  # fmt: skip

    def document(self) -> dict[str, Any]:
        """Return the body of the response."""
        return self._document

    def events(self) -> Iterator[str]:
        """Yield the events of the stream."""
        for number, (name, members) in enumerate(self._steps()):
            yield f"event: {name}\ndata: {json.dumps({'type': name, 'sequence_number': number, **members})}\n\n"

    def _steps(self) -> Iterator[tuple[str, dict[str, Any]]]:
        begun = {**self._document, "status": "in_progress", "output": [], "usage": None}
        item = self._item
        place: dict[str, Any] = {"output_index": 0, "item_id": item["id"]}
        yield "response.created", {"response": begun}
        yield "response.in_progress", {"response": begun}
        if item["type"] == "function_call":
            empty = {**item, "arguments": "", "status": "in_progress"}
            yield "response.output_item.added", {"output_index": 0, "item": empty}
            yield "response.function_call_arguments.delta", {**place, "delta": item["arguments"]}
            yield "response.function_call_arguments.done", {**place, "arguments": item["arguments"]}
        else:
            [part] = item["content"]
            place["content_index"] = 0
            yield "response.output_item.added", {"output_index": 0, "item": {**item, "content": []}}
            yield "response.content_part.added", {**place, "part": {**part, "text": ""}}
            for word in re.findall(r"\s*\S+|\s+", part["text"]):
                yield "response.output_text.delta", {**place, "delta": word, "logprobs": []}
            yield "response.output_text.done", {**place, "text": part["text"], "logprobs": []}
            yield "response.content_part.done", {**place, "part": part}
        yield "response.output_item.done", {"output_index": 0, "item": item}
        yield f"response.{self._document['status']}", {"response": self._document}


def _answer(asked: Sequence[str], returned: Sequence[str], tools: Sequence[Mapping[str, Any]], forced: Any) -> _Answer:
    """Return what the model says to the last message of the user, or to what a tool returned."""
    message = asked[-1] if asked else ""
    if returned:
        return _Answer(f"The tool returned: {returned[-1]}")
    given = _object_in(message)
    usable = [] if forced == "none" else [tool for tool in tools if forced in {None, "auto", *_FORCED, tool["name"]}]
    is_forced = forced in _FORCED or any(tool["name"] == forced for tool in usable)
    if not is_forced:
        usable = [tool for tool in usable if _required(tool) <= given.keys() and _likeness(tool, message)]
    if not usable:
        return _Answer(f"This is the sandbox's model. You said: {message}")
    chosen = max(usable, key=lambda tool: _likeness(tool, message))
    known = _schema(chosen).get("properties") or {}
    arguments = {name: _example(known.get(name) or {}) for name in sorted(_required(chosen) - given.keys())}
    arguments |= {name: value for name, value in given.items() if name in known}
    return _Answer(tool=chosen["name"], arguments=json.dumps(arguments))


def _likeness(tool: Mapping[str, Any], message: str) -> int:
    words = _words(message)
    by_name = len(_words(tool["name"].replace("_", " ")) & words)
    return by_name * _NAME_WEIGHT + len(_words(tool.get("description") or "") & words)


def _words(text: str) -> set[str]:
    return {word.removesuffix("s") for word in _WORD.findall(text.lower())} - _COMMON_WORDS


def _schema(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    return tool.get("parameters") or {}


def _required(tool: Mapping[str, Any]) -> set[str]:
    schema = _schema(tool)
    # In strict mode every argument is required, and may be null.
    return {
        name
        for name in schema.get("required") or ()
        if "null" not in ((schema.get("properties") or {}).get(name) or {}).get("type", ())
    }


def _example(schema: Mapping[str, Any]) -> Any:
    if schema.get("enum"):
        return schema["enum"][0]
    return {"integer": 1, "number": 1, "boolean": False, "array": [], "object": {}}.get(
        str(schema.get("type")), "example"
    )


def _object_in(message: str) -> dict[str, Any]:
    """Return the first JSON object in the message, {} if there is none."""
    start = message.find("{")
    try:
        found = json.JSONDecoder().raw_decode(message, start)[0] if start >= 0 else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _plain(content: Any) -> str:
    if isinstance(content, list):
        return " ".join(str(part.get("text") or "") for part in content).strip()
    return str(content or "")


def _cut(answer: _Answer, limit: int | None) -> tuple[_Answer, bool]:
    most = (limit or _MAX_BODY_BYTES) * _BYTES_PER_TOKEN
    return (_Answer(answer.text[:most]), True) if len(answer.text) > most else (answer, False)


def _usage(read: Any, answer: _Answer, *, names: tuple[str, str]) -> dict[str, int]:
    counts = [_tokens(json.dumps(read)), _tokens(answer.text + answer.tool + answer.arguments)]
    return {**dict(zip(names, counts, strict=True)), "total_tokens": sum(counts)}


def _tokens(text: str) -> int:
    return len(text) // _BYTES_PER_TOKEN + 1


def _digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:24]


def _call_id(answer: _Answer) -> str:
    return f"call_{_digest([answer.tool, answer.arguments])}"


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": _CREATED, "owned_by": "sandbox"}


def _embeddings(body: Mapping[str, Any]) -> dict[str, Any]:
    given = body["input"]
    texts = given if isinstance(given, list) and given and not isinstance(given[0], int) else [given]
    size = body.get("dimensions") or _DIMENSIONS
    data = [
        {"object": "embedding", "index": index, "embedding": _vector(text, size, body.get("encoding_format"))}
        for index, text in enumerate(texts)
    ]
    tokens = sum(_tokens(str(text)) for text in texts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "model": body["model"], "data": data, "usage": usage}


def _vector(text: Any, size: int, encoding: str | None) -> list[float] | str:
    """Return a vector of length 1: a constant in one dimension, chosen by the hash of the text."""
    place = int(hashlib.sha256(str(text).encode()).hexdigest(), 16) % size
    vector = [float(index == place) for index in range(size)]
    if encoding != "base64":
        return vector
    return base64.b64encode(struct.pack(f"<{size}f", *vector)).decode()
