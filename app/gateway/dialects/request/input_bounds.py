"""Input tokens of a request: an upper bound for its text and media, and a likely count.

A byte-level tokenizer never makes more tokens than bytes. In meaningful text a token has at least two ASCII letters or
spaces; every other byte is counted as one token. English text is over-counted by a factor of about two.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from app.errors import InvalidInput
from app.gateway.dialects.request import audio_duration, images
from app.gateway.dialects.request.cost_params import CostParams, Dialect, HostedTools, Surface

_LETTERS_AND_SPACES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz \t\r\n"
BYTES_PER_TOKEN = 2
LIKELY_BYTES_PER_TOKEN = 4

# Added by providers: the template of a conversation, and a prompt that explains tools.
_OVERHEAD_TOKENS, _TOOLS_OVERHEAD_TOKENS = 100, 1_000

# Maximum and likely tokens per part. Sources: the providers' pages on vision, audio and documents.
_IMAGE_LIKELY = 1_500
_MIN_DOCUMENT_TOKENS, _MAX_DOCUMENT_TOKENS, _DOCUMENT_LIKELY_BYTES_PER_TOKEN = 5_000, 1_000_000, 20
# 32 tokens a second of audio at no less than 2 KB a second; video is 290 tokens a second at 12 KB.
_RECORDING_BYTES_PER_TOKEN, _RECORDING_LIKELY_BYTES_PER_TOKEN, _MIN_RECORDING_TOKENS = 32, 128, 500
# A file at a URL may have any size: only the context window of the model limits it.
_REMOTE_FILE_LIKELY = 10_000

# A tool that runs at the provider adds its results to the prompt.
HOSTED_TOOL_TOKENS, HOSTED_TOOL_LIKELY_TOKENS = 100_000, 5_000

_CONTENT_FIELDS = ("messages", "input", "contents", "content", "requests")
_SYSTEM_FIELDS = ("systemInstruction", "system_instruction", "system")
_NESTED_PARTS = ("content", "parts", "output")
# Blocks of a conversation, and images and files in it: no provider accepts as many.
_MAX_PARTS = 50_000
_MAX_MEDIA = 4_000
MEDIA_SURFACES = frozenset({Surface.IMAGES, Surface.SPEECH, Surface.TRANSCRIPTION, Surface.TRANSLATION})
TRANSCRIPT_SURFACES = frozenset({Surface.TRANSCRIPTION, Surface.TRANSLATION})
# OpenAI's "Realtime costs" guide: a token for 100 ms of a recording. Its price page has four tokens of transcript a
# second; the page on gpt-4o-transcribe has 2 000 tokens of output at most.
_AUDIO_TOKENS_PER_SECOND, _TEXT_TOKENS_PER_SECOND, _MIN_TEXT_TOKENS = 10, 6, 2_000
# The lowest bit rate of codecs for speech, 6 kbit/s (RFC 6716, section 2.1.1), if the duration is not measured.
_MIN_BYTES_PER_SECOND = 750
# Groq bills at least ten seconds.
_MIN_SECONDS = {Dialect.GROQ: 10}
# gpt-4o-mini-tts: 0.015 USD a minute at 12 USD per million tokens, so 21 tokens a second. A second has at least
# twelve characters; a digit or a sign may be read as a word; characters beyond ASCII have two bytes or more.
_SPEECH_TOKENS_PER_20_BYTES, _SPEECH_TOKENS_PER_SYMBOL, _MIN_SPEECH_TOKENS = 33, 10, 20
# Spoken as words; punctuation is not.
_SPOKEN_SYMBOLS = b"0123456789#$%&*+/<=>@^~"
# Not "svg": another model writes it, without a limit, and its tokens are reported apart (`svg_usage`).
_IMAGE_FORMATS = (None, "png", "webp", "jpeg", "gif")
# Instructions may ask for slow speech; the lowest `speed` is a quarter.
_INSTRUCTIONS_SLOWDOWN, _SPEED_SLOWDOWN = 2, 4


class _MediaPart(NamedTuple):
    at_most: int
    likely: int
    is_unbounded: bool = False
    has_audio: bool = False
    # Bytes of the body that this part accounts for, already counted as text.
    text: str = ""


_REMOTE_FILE = _MediaPart(_MIN_DOCUMENT_TOKENS, _REMOTE_FILE_LIKELY, is_unbounded=True, has_audio=True)


def max_text_tokens(text: bytes) -> int:
    others = len(text.translate(None, delete=_LETTERS_AND_SPACES))
    return others + -(-(len(text) - others) // BYTES_PER_TOKEN)


def likely_tokens(count: int) -> int:
    """Estimate the tokens of so many bytes of text."""
    return -(-count // LIKELY_BYTES_PER_TOKEN)


def with_input_bound(params: CostParams, parsed: Mapping[str, Any], tools: HostedTools) -> CostParams:
    """Return the parameters with the bound of a JSON input: its text, tools and instructions, media, and tool results.

    Raises: InvalidInput for too many parts.
    """
    body = params.body
    at_most, likely_bytes, likely = max_text_tokens(body) + _OVERHEAD_TOKENS, len(body), 0
    at_most += _TOOLS_OVERHEAD_TOKENS if parsed.get("tools") else 0
    # A name can be written with escapes.
    writes_cache = b"cache" in body or b"\\u00" in body
    # A file at a URL, or tools that return anything.
    media, is_unbounded, has_audio = 0, tools.is_unbounded, False
    for block in _content_blocks(parsed):
        part = _media_part(block, params.model)
        if part is None:
            continue
        media += 1
        if media > _MAX_MEDIA:
            raise InvalidInput(f"The request has more than {_MAX_MEDIA} images, recordings and files: send fewer.")
        is_unbounded, has_audio = is_unbounded or part.is_unbounded, has_audio or part.has_audio
        counted = part.text.encode("utf-8", "surrogatepass")
        at_most += part.at_most - max_text_tokens(counted)
        likely += part.likely
        likely_bytes -= len(counted)
    at_most += tools.readers * HOSTED_TOOL_TOKENS
    likely += tools.readers * HOSTED_TOOL_LIKELY_TOKENS + likely_tokens(max(0, likely_bytes))
    return params._replace(
        tokens_in=max(at_most, likely), tokens_in_likely=likely, has_media=media > 0, writes_cache=writes_cache,
        is_input_unbounded=is_unbounded, has_audio=has_audio,
    )  # fmt: skip


def with_opaque_input_bound(params: CostParams) -> CostParams:
    """Return the parameters with the bound of an input that is not JSON, such as a form with a recording."""
    body = params.body
    at_most = max(max_text_tokens(body[:_MIN_RECORDING_TOKENS]), len(body) // _RECORDING_BYTES_PER_TOKEN)
    likely = -(-len(body) // _RECORDING_LIKELY_BYTES_PER_TOKEN)
    return params._replace(tokens_in=at_most + _OVERHEAD_TOKENS, tokens_in_likely=likely, has_media=True)


def _content_blocks(parsed: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Walk the places where providers read media; the same shape elsewhere is counted as text."""
    stack = [parsed[name] for name in _CONTENT_FIELDS if name in parsed]
    stack += next(([parsed[name]] for name in _SYSTEM_FIELDS if parsed.get(name)), [])
    part_count = 0
    while stack:
        node = stack.pop()
        if isinstance(node, list):
            stack.extend(node)
        elif isinstance(node, dict):
            part_count += 1
            if part_count > _MAX_PARTS:
                raise InvalidInput(f"The request has more than {_MAX_PARTS} parts: shorten it.")
            yield node
            for name in _NESTED_PARTS:
                if name in node:
                    stack.append(node[name])


def _media_part(block: Mapping[str, Any], model: str) -> _MediaPart | None:
    kind = _string(block, "type")
    if kind in {"image_url", "input_image", "image"}:
        content = _text_at(block, "image_url", "url") or _text_at(block, "source", "data")
        return _image_part(content, model, _text_at(block, "image_url", "detail") or _string(block, "detail"))
    if kind == "input_audio":
        return _recording_part(_text_at(block, "input_audio", "data") or "")
    if kind in {"file", "input_file", "document"}:
        return _document_or_none(block)
    for name in ("inlineData", "inline_data"):
        if name in block:
            return _inline_part(block[name], model)
    if "fileData" in block or "file_data" in block:
        return _REMOTE_FILE
    return None


def _document_or_none(block: Mapping[str, Any]) -> _MediaPart | None:
    source = block.get("source")
    if isinstance(source, dict) and _string(source, "type") in {"text", "content"}:
        return None
    content = (
        _text_at(block, "source", "data") or _text_at(block, "file", "file_data") or _text_at(block, "file_data", "")
    )
    addresses = (_text_at(block, "source", "url"), _text_at(block, "file_url", "url"))
    # OpenRouter also accepts a URL as `file_data`.
    if content is None or any(addresses) or content.lstrip()[:4].lower() == "http":
        return _REMOTE_FILE
    return _document_part(content)


def _inline_part(inline: Any, model: str) -> _MediaPart | None:
    if not isinstance(inline, dict):
        return None
    content, mime = inline.get("data"), inline.get("mimeType", inline.get("mime_type"))
    if not isinstance(content, str) or not isinstance(mime, str):
        return None
    if mime.startswith("image/"):
        return _image_part(content, model)
    if mime.startswith(("audio/", "video/")):
        return _recording_part(content)
    return _document_part(content)


def _image_part(content: str | None, model: str, detail: str | None = None) -> _MediaPart:
    inline = "" if content is None or content.startswith("http") else content
    at_most = images.input_image_tokens(model, inline, detail)
    return _MediaPart(at_most, min(at_most, _IMAGE_LIKELY), text=inline)


def _recording_part(content: str) -> _MediaPart:
    at_most = max(_MIN_RECORDING_TOKENS, len(content) // _RECORDING_BYTES_PER_TOKEN)
    return _MediaPart(at_most, -(-len(content) // _RECORDING_LIKELY_BYTES_PER_TOKEN), has_audio=True, text=content)


def _document_part(content: str) -> _MediaPart:
    at_most = min(max(_MIN_DOCUMENT_TOKENS, len(content)), _MAX_DOCUMENT_TOKENS)
    return _MediaPart(at_most, min(at_most, len(content) // _DOCUMENT_LIKELY_BYTES_PER_TOKEN), text=content)


def _text_at(block: Mapping[str, Any], name: str, inner: str) -> str | None:
    found = block.get(name)
    if isinstance(found, dict):
        found = found.get(inner)
    return found if isinstance(found, str) else None


def _string(block: Mapping[str, Any], name: str) -> str | None:
    # The value may be anything, even unhashable.
    value = block.get(name)
    return value if isinstance(value, str) else None


def with_media_bound(params: CostParams, parsed: Mapping[str, Any], files: Sequence[memoryview]) -> CostParams:
    """Return the parameters with the maximum tokens, characters and seconds of a call of one of `MEDIA_SURFACES`.

    Tokens are per image if there are several. Raises: InvalidInput if its cost cannot be known.
    """
    if params.surface is Surface.IMAGES:
        return _with_image_bound(params, parsed, files)
    if params.surface is Surface.SPEECH:
        return _with_speech_bound(params, parsed)
    return _with_transcription_bound(params, parsed, files)


def _with_image_bound(params: CostParams, parsed: Mapping[str, Any], files: Sequence[memoryview]) -> CostParams:
    if parsed.get("output_format") not in _IMAGE_FORMATS:
        raise InvalidInput.field("output_format", "must be png, webp, jpeg or gif")
    listed = [parsed.get(name) for name in ("images", "image", "mask")]
    shown = len(files) + sum(len(each) if isinstance(each, list) else each is not None for each in listed)
    tokens_in = _text_tokens(parsed, "prompt") + shown * images.edited_image_tokens(params.model, parsed)
    return params._replace(tokens_in=tokens_in, tokens_out=images.generated_image_tokens(params.model, parsed))


def _with_speech_bound(params: CostParams, parsed: Mapping[str, Any]) -> CostParams:
    spoken = parsed.get("input")
    text = spoken.encode("utf-8", "surrogatepass") if isinstance(spoken, str) else b""
    signs = sum(text.count(each) for each in _SPOKEN_SYMBOLS)
    letters = -(-(len(text) - signs) * _SPEECH_TOKENS_PER_20_BYTES // 20)
    tokens = _SPEECH_TOKENS_PER_SYMBOL * signs + letters + _MIN_SPEECH_TOKENS
    tokens *= _INSTRUCTIONS_SLOWDOWN if parsed.get("instructions") else 1
    tokens *= 1 if parsed.get("speed", 1) == 1 else _SPEED_SLOWDOWN
    tokens_in = _text_tokens(parsed, "input") + _text_tokens(parsed, "instructions")
    characters = len(spoken) if isinstance(spoken, str) else 0
    return params._replace(tokens_in=tokens_in, tokens_out=tokens, characters=characters)


def _with_transcription_bound(params: CostParams, parsed: Mapping[str, Any], files: Sequence[memoryview]) -> CostParams:
    dialect, surface = params.dialect, params.surface
    if len(files) != 1:
        raise InvalidInput.field("file", "must be one recording in the form: its duration is billed")
    (file,) = files
    measured = audio_duration.duration_seconds(file)
    # The response has `usage`, or a `duration` next to its text.
    reporting_formats: list[str | None] = ["verbose_json"]
    if dialect is Dialect.OPENAI and surface is Surface.TRANSCRIPTION:
        reporting_formats += [None, "json", "diarized_json"]
    if measured is None and parsed.get("response_format") not in reporting_formats:
        formats = "verbose_json" if dialect is Dialect.GROQ or surface is Surface.TRANSLATION else "json"
        raise InvalidInput.field(
            "response_format",
            f"must be {formats} or another format with the duration, which cannot be measured in this file; "
            "or send WAV (PCM), MP3, FLAC or Ogg Opus",
        )
    seconds = -(-len(file) // _MIN_BYTES_PER_SECOND) if measured is None else measured
    seconds = max(seconds, _MIN_SECONDS.get(dialect, 1))
    tokens_in = seconds * _AUDIO_TOKENS_PER_SECOND + _text_tokens(parsed, "prompt")
    tokens_out = max(_MIN_TEXT_TOKENS, seconds * _TEXT_TOKENS_PER_SECOND)
    return params._replace(tokens_in=tokens_in, tokens_out=tokens_out, audio_seconds=seconds)


def _text_tokens(parsed: Mapping[str, Any], name: str) -> int:
    text = parsed.get(name)
    return max_text_tokens(text.encode("utf-8", "surrogatepass")) if isinstance(text, str) else 0
