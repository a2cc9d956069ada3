"""Upper bounds on the usage of calls for images, speech and transcription."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.errors import InvalidInput
from app.gateway.dialects.request import audio_duration, images, input_bounds
from app.gateway.dialects.request.cost_params import Dialect, Surface

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


@dataclass(frozen=True, slots=True)
class MediaBound:
    """Maximum tokens, characters and seconds of one call; tokens are per image if there are several."""

    tokens_in: int
    tokens_out: int
    characters: int = 0
    audio_seconds: int = 0


def media_bound(
    dialect: Dialect, surface: Surface, model: str, parsed: Mapping[str, Any], files: Sequence[memoryview]
) -> MediaBound:
    """Return the bound of a call of one of `MEDIA_SURFACES`. Raises: InvalidInput if its cost cannot be known."""
    if surface is Surface.IMAGES:
        return _image_bound(model, parsed, files)
    if surface is Surface.SPEECH:
        return _speech_bound(parsed)
    return _transcription_bound(dialect, surface, parsed, files)


def _image_bound(model: str, parsed: Mapping[str, Any], files: Sequence[memoryview]) -> MediaBound:
    if parsed.get("output_format") not in _IMAGE_FORMATS:
        raise InvalidInput.field("output_format", "must be png, webp, jpeg or gif")
    listed = [parsed.get(name) for name in ("images", "image", "mask")]
    shown = len(files) + sum(len(each) if isinstance(each, list) else each is not None for each in listed)
    tokens_in = _text_tokens(parsed, "prompt") + shown * images.edited_image_tokens(model, parsed)
    return MediaBound(tokens_in, images.generated_image_tokens(model, parsed))


def _speech_bound(parsed: Mapping[str, Any]) -> MediaBound:
    spoken = parsed.get("input")
    text = spoken.encode("utf-8", "surrogatepass") if isinstance(spoken, str) else b""
    signs = sum(text.count(each) for each in _SPOKEN_SYMBOLS)
    tokens = (
        _SPEECH_TOKENS_PER_SYMBOL * signs
        - (-(len(text) - signs) * _SPEECH_TOKENS_PER_20_BYTES // 20)
        + _MIN_SPEECH_TOKENS
    )
    tokens *= _INSTRUCTIONS_SLOWDOWN if parsed.get("instructions") else 1
    tokens *= 1 if parsed.get("speed", 1) == 1 else _SPEED_SLOWDOWN
    return MediaBound(
        _text_tokens(parsed, "input") + _text_tokens(parsed, "instructions"),
        tokens,
        characters=len(spoken) if isinstance(spoken, str) else 0,
    )


def _transcription_bound(
    dialect: Dialect, surface: Surface, parsed: Mapping[str, Any], files: Sequence[memoryview]
) -> MediaBound:
    if len(files) != 1:
        raise InvalidInput.field("file", "must be one recording in the form: its duration is billed")
    (file,) = files
    measured = audio_duration.duration_seconds(file)
    if measured is None and not _reports_duration(dialect, surface, parsed.get("response_format")):
        formats = "verbose_json" if dialect is Dialect.GROQ or surface is Surface.TRANSLATION else "json"
        raise InvalidInput.field(
            "response_format",
            f"must be {formats} or another format with the duration, which cannot be measured in this file; "
            "or send WAV (PCM), MP3, FLAC or Ogg Opus",
        )
    seconds = -(-len(file) // _MIN_BYTES_PER_SECOND) if measured is None else measured
    seconds = max(seconds, _MIN_SECONDS.get(dialect, 1))
    return MediaBound(
        seconds * _AUDIO_TOKENS_PER_SECOND + _text_tokens(parsed, "prompt"),
        max(_MIN_TEXT_TOKENS, seconds * _TEXT_TOKENS_PER_SECOND),
        audio_seconds=seconds,
    )


def _reports_duration(dialect: Dialect, surface: Surface, response_format: Any) -> bool:
    """Return whether the response has `usage`, or a `duration` next to its text."""
    if response_format == "verbose_json":
        return True
    return (
        dialect is Dialect.OPENAI
        and surface is Surface.TRANSCRIPTION
        and response_format in (None, "json", "diarized_json")
    )


def _text_tokens(parsed: Mapping[str, Any], name: str) -> int:
    text = parsed.get(name)
    return input_bounds.max_text_tokens(text.encode("utf-8", "surrogatepass")) if isinstance(text, str) else 0
