"""Images, speech, recordings and searches: a hold of at most 1.3 times the cost, and full charges."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from app.errors import InvalidInput
from app.gateway.dialects.request import audio_duration, images
from app.gateway.dialects.request.cost_params import CostParams, Dialect
from app.gateway.pricing.quotes import PricedRequest, ReportedPrice, TokenPrices
from tests.support.provider_rows import FORM, form_of, place, read_request
from tests.support.recordings import MP3_FRAME, MP3_SMALL_FRAME, OPUS_20_MS, OPUS_60_MS, OPUS_120_MS, flac, ogg, wav
from tests.support.response_readers import reader_of

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
USD = 10**9
ID3 = b"ID3\x04\0\0\0\0\x02\0" + bytes(256)


def seconds_in(recording: bytes) -> int | None:
    return audio_duration.duration_seconds(memoryview(recording))


@pytest.mark.parametrize(
    ("recording", "seconds"),
    [
        (wav(100), 100),
        (wav(100, hertz=8_000), 100),
        # Decoders read on after the stated size.
        (wav(100, claimed=2), 100),
        (wav(100, claimed=0xFFFFFFFF), 100),
        (wav(1, more=b"LIST\x04\0\0\0INFO"), 1),
        # Two format chunks: a decoder may use either. Then none, and ADPCM, with samples of no fixed size.
        (wav(1, more=wav(0)[12:36]), None),
        (wav(1).replace(b"fmt ", b"fact"), None),
        (wav(1).replace(b"\x10\0\0\0\1\0", b"\x10\0\0\0\x11\0"), None),
        (b"RIFF\0\0\0\0WAVE", None),
        (MP3_FRAME * 1_000, 27),
        (ID3 + MP3_FRAME * 1_000, 27),
        (MP3_FRAME * 1_000 + b"TAG" + bytes(125), 28),
        (MP3_SMALL_FRAME * 1_000, 24),
        # A header that claims ten frames is a frame without audio.
        (MP3_FRAME.replace(bytes(8), b"Xing\0\0\0\x0a", 1) + MP3_FRAME * 999, 27),
        # Audio of another format after a tag or a frame.
        (ID3 + b"\xff\xf1" * 3_000, None),
        (MP3_FRAME + b"\xff\xf1" * 3_000, None),
        ((MP3_FRAME + b"x") * 20, None),
        (ogg(*[OPUS_20_MS + bytes(79)] * 5_000), 100),
        (ogg(*[OPUS_60_MS + bytes(44)] * 5_000), 300),
        (ogg(*[OPUS_120_MS] * 5_000), 600),
        (ogg(*[OPUS_20_MS + bytes(400)] * 50), 1),
        # The position that a page states is a claim.
        (ogg(*[OPUS_20_MS] * 5_000, granule=960), 100),
        # A second stream may be of another codec; so may the only one.
        (ogg(*[OPUS_20_MS] * 500, serials=(b"abcd", b"efgh")), None),
        (ogg(OPUS_20_MS).replace(b"OpusHead", b"\1vorbis\0"), None),
        (ogg(OPUS_20_MS) + b"more", None),
        (b"fLaC" + bytes(1_000), None),
        (flac(25), 7),
        # A frame counts at any position; data that only resembles one has another checksum.
        (flac(25) + b"junk" + flac(25)[42:], 13),
        (flac(25) + b"\xff\xf8\xc5\x08\0\0" * 50, 7),
        (b"\0\0\0\x20ftypM4A " + bytes(1_000), None),
        (b"\x1aE\xdf\xa3" + bytes(1_000), None),
        (b"", None),
    ],
)
def test_the_duration_of_a_recording_is_measured_not_claimed(recording: bytes, seconds: int | None) -> None:
    assert seconds_in(recording) == seconds


@pytest.mark.parametrize(
    "make",
    # Made in the test: each process collects it.
    [
        lambda: MP3_SMALL_FRAME * 1_300_000,
        lambda: ogg(*[b"\x1b\x3f"] * 200) * 50_000,
        lambda: b"RIFF\0\0\0\0WAVE" + bytes(32 * 2**20),
    ],
    ids=["mp3", "ogg", "wav"],
)  # fmt: skip
def test_a_hostile_recording_takes_bounded_processor_time(make: Callable[[], bytes]) -> None:
    recording = make()
    began = time.process_time()
    try:
        seconds_in(recording)
    except InvalidInput as refused:
        assert "too long" in refused.message  # noqa: PT017 - a refusal and an answer are both right
    assert time.process_time() - began < 5


def test_no_bytes_make_measuring_fail() -> None:
    for recording in (wav(1), flac(3), ID3 + MP3_FRAME * 3, ogg(OPUS_20_MS, OPUS_120_MS)):
        for size in range(300):
            seconds_in(recording[:size])


def read(
    slug: str, path: str, asked: Any, *, file: bytes | None = None
) -> tuple[CostParams, TokenPrices | ReportedPrice]:
    dialect = Dialect.GEMINI if slug == "gemini" else Dialect(slug)
    if file is None:
        params = read_request(dialect, "POST", path, body=json.dumps(asked).encode())
    else:
        parts = [(name, str(value).encode()) for name, value in asked.items()]
        body = form_of(*parts, ('file; filename="a"', file))
        params = read_request(dialect, "POST", path, body=body, content_type=FORM)
    rule: Any = place(slug, "POST", path).match.route.rule
    return params, rule


def held(slug: str, path: str, asked: Any, *, file: bytes | None = None) -> int:
    params, rule = read(slug, path, asked, file=file)
    return rule.quote(PricedRequest(AT, path, params=params)).worst_case.cost_nanos


def charged(slug: str, path: str, asked: Any, answer: Any, *, file: bytes | None = None, status: int = 200) -> int:
    params, rule = read(slug, path, asked, file=file)
    is_text = isinstance(answer, str)
    opened = reader_of(params, status=status, content_type="text/plain" if is_text else "application/json")
    opened.feed(answer.encode() if is_text else json.dumps(answer).encode())
    opened.flush()
    return rule.settle(params, opened.finish(), AT).cost_nanos


# developers.openai.com, "Image generation", prices of an image by quality, in thousandths of a dollar.
PICTURES = [
    *[("gpt-image-1", "1024x1024", quality, n) for quality, n in (("low", 11), ("medium", 42), ("high", 167))],
    *[("gpt-image-1", "1024x1536", quality, n) for quality, n in (("low", 16), ("medium", 63), ("high", 250))],
    *[("gpt-image-1", "1536x1024", quality, n) for quality, n in (("low", 16), ("medium", 63), ("high", 250))],
    *[("gpt-image-1.5", "1024x1024", quality, n) for quality, n in (("low", 9), ("medium", 34), ("high", 133))],
    *[("gpt-image-1.5", "1536x1024", quality, n) for quality, n in (("low", 13), ("medium", 50), ("high", 200))],
    *[("gpt-image-1-mini", "1024x1024", quality, n) for quality, n in (("low", 5), ("medium", 11), ("high", 36))],
    *[("gpt-image-1-mini", "1024x1536", quality, n) for quality, n in (("low", 6), ("medium", 15), ("high", 52))],
    *[("gpt-image-2", "1024x1024", quality, n) for quality, n in (("low", 6), ("medium", 53), ("high", 211))],
    *[("gpt-image-2", "1024x1536", quality, n) for quality, n in (("low", 5), ("medium", 41), ("high", 165))],
    # The most expensive one that an unspecific request allows.
    ("gpt-image-1", "auto", "auto", 250), ("gpt-image-1", "1024x1024", None, 167), ("gpt-image-2", None, None, 211),
    # 13 367 tokens at 30 USD per million.
    ("gpt-image-2.5-sunburst", "3840x2160", "high", 401), ("dall-e-3", "1792x1024", "hd", 120),
]  # fmt: skip


@pytest.mark.parametrize(("model", "size", "quality", "thousandths"), PICTURES)
@pytest.mark.parametrize("n", [1, 10])
def test_an_image_is_held_at_its_price(
    model: str, size: str | None, quality: str | None, thousandths: int, n: int
) -> None:
    asked = {"model": model, "prompt": "A red fox on a snowy hill at dawn", "size": size, "quality": quality, "n": n}
    # The page rounds to thousandths.
    rounded = n * USD // 2_000
    nanos = held("openai", "images/generations", asked)
    assert n * thousandths * 1_000_000 - rounded <= nanos <= 1.3 * n * thousandths * 1_000_000


def test_ten_images_of_17_cents_each_are_not_refused() -> None:
    asked = {"model": "gpt-image-1", "prompt": "x", "size": "1024x1024", "quality": "high", "n": 10}
    assert held("openai", "images/generations", asked) < 1.7 * USD


@pytest.mark.parametrize(
    ("model", "fidelity", "nanos"),
    [
        # 6 240 tokens at 40 USD; an image of 581 tokens at 10, with 6 240 more at high fidelity.
        ("gpt-image-1", "low", 6_240 * 40_000 + 581 * 10_000),
        ("gpt-image-1", "high", 6_240 * 40_000 + 6_821 * 10_000),
    ],
)
def test_an_image_to_be_edited_is_included_in_the_hold(model: str, fidelity: str, nanos: int) -> None:
    asked = {"model": model, "prompt": "x", "input_fidelity": fidelity}
    for worst in (
        held("openai", "images/edits", asked, file=b"\x89PNG"),
        held("openai", "images/edits", {**asked, "images": [{"image_url": "data:image/png;base64,aa"}]}),
    ):
        assert nanos <= worst <= 1.3 * nanos
    many = held("openai", "images/edits", {**asked, "n": 4}, file=b"\x89PNG")
    assert many >= 4 * nanos


# Imagen: ai.google.dev, "Gemini API pricing".
@pytest.mark.parametrize(
    ("model", "cents"),
    [("imagen-4.0-fast-generate-001", 2), ("imagen-4.0-generate-001", 4), ("imagen-4.0-ultra-generate-001", 6)],
)
def test_imagen_is_held_and_charged_per_image(model: str, cents: int) -> None:
    path = f"v1beta/models/{model}:predict"
    asked = {"instances": [{"prompt": "x" * 500}], "parameters": {"sampleCount": 3}}
    nanos = 3 * cents * USD // 100
    assert held("gemini", path, asked) == nanos
    assert charged("gemini", path, asked, {"predictions": [{"bytesBase64Encoded": "AA"}] * 3}) == nanos


MINUTES = {1: wav(60), 10: MP3_FRAME * 22_969, 25: ogg(*[OPUS_60_MS + bytes(44)] * 25_000)}


@pytest.mark.parametrize("minutes", MINUTES)
@pytest.mark.parametrize(
    ("slug", "model", "response_format", "nanos_of_minute", "nanos_at_least"),
    [
        # developers.openai.com, "Pricing", "Transcription": by the minute, estimated where tokens are billed; these
        # models write at most 2 000 tokens, in addition to 10 input tokens a second.
        ("openai", "whisper-1", "text", 6_000_000, 0),
        ("openai", "whisper-1", "verbose_json", 6_000_000, 0),
        ("openai", "gpt-4o-transcribe", "json", 6_000_000, 3_600_000 + 2_000 * 10_000),
        ("openai", "gpt-4o-mini-transcribe", "json", 3_000_000, 1_800_000 + 2_000 * 5_000),
        ("openai", "gpt-transcribe", "json", 4_500_000, 0),
        # groq.com, "Pricing": by the hour.
        ("groq", "whisper-large-v3", "srt", 111_000_000 // 60, 0),
        ("groq", "whisper-large-v3-turbo", "json", 40_000_000 // 60, 0),
    ],
)
def test_a_recording_is_held_at_its_price(
    slug: str, model: str, response_format: str, nanos_of_minute: int, nanos_at_least: int, minutes: int
) -> None:
    asked = {"model": model, "response_format": response_format}
    worst = held(slug, "audio/transcriptions", asked, file=MINUTES[minutes])
    dearest = max(minutes * nanos_of_minute, nanos_at_least)
    assert dearest <= worst <= 1.3 * dearest


# The same for each format without a report, from the file; else as reported, whatever was measured.
@pytest.mark.parametrize("response_format", ["text", "srt", "vtt"])
def test_a_transcript_without_usage_costs_the_duration_of_its_file(response_format: str) -> None:
    asked = {"model": "whisper-1", "response_format": response_format}
    for path in ("audio/transcriptions", "audio/translations"):
        assert charged("openai", path, asked, "A sentence.", file=wav(600)) == 60_000_000
        # Six kbit/s: 20 minutes in 900 KB.
        low = ogg(*[OPUS_60_MS + bytes(44)] * 20_000)
        assert charged("openai", path, asked, "A sentence.", file=low) == 120_000_000


def test_a_transcript_of_groq_without_usage_costs_the_duration_of_its_file() -> None:
    asked = {"model": "whisper-large-v3"}
    path = "audio/transcriptions"
    assert charged("groq", path, asked, {"text": "A."}, file=wav(3_600, hertz=1_000)) == 111_000_000
    # At least ten seconds.
    assert charged("groq", path, asked, {"text": "A."}, file=wav(1)) == 308_334


def test_a_plain_transcript_costs_its_text_and_the_recording() -> None:
    asked = {"model": "gpt-4o-transcribe", "response_format": "text"}
    nanos = charged("openai", "audio/transcriptions", asked, "a" * 400, file=wav(60))
    # 100 tokens or so at 10 USD, 600 at 6.
    assert nanos == 600 * 6_000 + 200 * 10_000


@pytest.mark.parametrize("duration", [90, 89.3, "89.30"])
def test_a_verbose_transcript_costs_the_duration_that_it_reports(duration: Any) -> None:
    asked = {"model": "whisper-1", "response_format": "verbose_json"}
    answer = {"text": "A.", "duration": duration, "language": "english"}
    for path in ("audio/transcriptions", "audio/translations"):
        assert charged("openai", path, asked, answer, file=b"fLaC") == 9_000_000


@pytest.mark.parametrize(
    ("slug", "path", "response_format"),
    [
        *[("openai", "audio/transcriptions", each) for each in ("text", "srt", "vtt")],
        ("openai", "audio/translations", "json"),
        ("groq", "audio/transcriptions", "json"),
        ("groq", "audio/transcriptions", "text"),
    ],
)
def test_a_recording_of_unknown_duration_is_refused_if_the_response_does_not_report_it(
    slug: str, path: str, response_format: str
) -> None:
    with pytest.raises(InvalidInput, match="json") as refused:
        held(slug, path, {"model": "whisper-1", "response_format": response_format}, file=b"fLaC")
    assert "response_format" in refused.value.details["fields"]


def test_a_recording_of_unknown_duration_is_held_at_six_kilobits_a_second() -> None:
    assert held("openai", "audio/transcriptions", {"model": "whisper-1"}, file=b"fLaC" + bytes(749_996)) == 10**8


def test_a_transcription_without_a_file_is_refused() -> None:
    for body in (form_of(("url", b"https://a.example/a.mp3")), form_of(("file", b"text"))):
        with pytest.raises(InvalidInput, match="file"):
            read_request(Dialect.GROQ, "POST", "audio/transcriptions", body=body, content_type=FORM)


@pytest.mark.parametrize(
    ("model", "text", "nanos"),
    [
        ("tts-1", "a" * 4_096, 61_440_000),
        ("tts-1-hd", "é" * 1_000, 30_000_000),
        # A measured call: 4 096 characters, 877 tokens at 0.6 USD, 256 seconds of 1 250 tokens a minute at 12 USD.
        ("gpt-4o-mini-tts", "some words " * 372 + "end.", 877 * 600 + 5_333 * 12_000),
    ],
)  # fmt: skip
def test_speech_is_held_and_charged_by_its_characters(model: str, text: str, nanos: int) -> None:
    asked = {"model": model, "input": text, "voice": "coral"}
    assert nanos <= held("openai", "audio/speech", asked) <= 1.3 * nanos
    assert nanos <= charged("openai", "audio/speech", asked, "sound") <= 1.3 * nanos
    slow = {**asked, "instructions": "Very slowly", "speed": 0.25}
    assert held("openai", "audio/speech", slow) >= held("openai", "audio/speech", asked)


# exa.ai/docs/reference/pricing, docs.tavily.com "Credits & Pricing", in thousandths of a dollar.
SEARCHES = [
    ("exa", "search", {}, 7), ("exa", "search", {"type": "instant"}, 4), ("exa", "search", {"type": "neural"}, 7),
    ("exa", "search", {"type": "deep"}, 12), ("exa", "search", {"type": "deep-reasoning"}, 15),
    ("exa", "search", {"type": "new"}, 15), ("exa", "search", {"type": ["instant"]}, 15),
    ("exa", "search", {"numResults": 25}, 22), ("exa", "search", {"contents": {"text": True}}, 7),
    ("exa", "search", {"numResults": 12, "contents": {"summary": True}}, 21), ("exa", "findSimilar", {}, 7),
    ("exa", "contents", {"urls": ["a", "b"]}, 2), ("exa", "contents", {"ids": ["a"], "text": True, "summary": {}}, 1),
    ("exa", "contents", {"urls": ["a"], "text": True, "summary": True}, 2), ("exa", "answer", {}, 5),
    ("tavily", "search", {}, 8), ("tavily", "search", {"search_depth": "fast"}, 8),
    ("tavily", "search", {"search_depth": "advanced"}, 16), ("tavily", "search", {"auto_parameters": True}, 16),
    ("tavily", "search", {"search_depth": 7}, 16), ("tavily", "extract", {"urls": "a"}, 8),
    ("tavily", "extract", {"urls": ["a"] * 6}, 16),
    ("tavily", "extract", {"urls": ["a"] * 6, "extract_depth": "advanced"}, 32),
]  # fmt: skip


@pytest.mark.parametrize(("slug", "path", "asked", "thousandths"), SEARCHES)
def test_a_search_without_a_reported_cost_costs_its_list_price(
    slug: str, path: str, asked: Any, thousandths: int
) -> None:
    assert held(slug, path, asked) == thousandths * 1_000_000
    assert charged(slug, path, asked, {"results": []}) == thousandths * 1_000_000
    assert charged(slug, path, asked, {"error": "bad"}, status=400) == 0


@pytest.mark.parametrize(
    ("slug", "answer", "nanos"),
    [
        ("exa", {"results": [], "costDollars": {"total": 0.007, "search": {"neural": 0.007}}}, 7_000_000),
        ("exa", {"costDollars": {"total": 0}}, 0),
        ("exa", {"costDollars": {"total": -1}}, 15_000_000),
        ("exa", {"results": [{"text": "x" * 9_000_000}], "costDollars": {"total": 0.007}}, 7_000_000),
        ("tavily", {"results": [], "usage": {"credits": 1}}, 8_000_000),
        ("tavily", {"usage": {"credits": "1"}}, 16_000_000),
    ],
)
def test_a_search_costs_what_the_response_reports(slug: str, answer: Any, nanos: int) -> None:
    asked = {"type": "deep-reasoning", "search_depth": "advanced"}
    assert charged(slug, "search", asked, answer) == nanos


@pytest.mark.parametrize(
    ("path", "asked", "fields"),
    [
        ("images/generations", {"model": "gpt-image-1", "n": 40}, {"n": "must be at most 20"}),
        ("chat/completions", {"model": "gpt-5", "max_tokens": 10**6}, {"max_tokens": "must be at most"}),
        (
            "chat/completions",
            {"model": "gpt-5", "n": 128, "max_tokens": 16_000},
            {"n": "must be at most", "max_tokens": "must be"},
        ),
        ("audio/speech", {"model": "tts-1-hd", "input": "a" * 200_000}, {"input": "shorter"}),
    ],
)
def test_a_call_above_the_maximum_is_refused_with_hints(path: str, asked: Any, fields: dict[str, str]) -> None:
    params, rule = read("openai", path, asked)
    quote = rule.quote(PricedRequest(AT, path, params=params))
    with pytest.raises(InvalidInput) as refused:
        quote.check(5 * USD)
    for name, change in fields.items():
        assert change in refused.value.details["fields"][name][0]
        assert f"{name} {refused.value.details['fields'][name][0]}" in refused.value.message
    assert refused.value.details["worst_case_usd"] > refused.value.details["limit_usd"]


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + width.to_bytes(4) + height.to_bytes(4) + b"\x08\2\0\0\0"


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + width.to_bytes(2, "little") + height.to_bytes(2, "little")


def jpeg(width: int, height: int) -> bytes:
    exif = b"\xff\xe1" + (50_002).to_bytes(2) + bytes(50_000)
    return b"\xff\xd8" + exif + b"\xff\xc2\0\x11\x08" + height.to_bytes(2) + width.to_bytes(2) + b"\3"


# Tokens of an image by size: the formulas of the providers' pages, measured for a photo of twelve megapixels.
@pytest.mark.parametrize(
    ("model", "picture", "detail", "tokens"),
    [
        ("gpt-6-astra", png(4_032, 3_024), None, 14_364),
        ("gpt-6-astra", jpeg(4_032, 3_024), None, 14_364),
        ("gpt-6-astra", gif(3_840, 2_160), None, 9_792),
        ("gpt-4o", png(2_048, 768), "high", 85 + 170 * 8),
        ("gpt-4o-mini", png(2_048, 768), None, 2_833 + 5_667 * 8),
        ("gpt-4o-mini", png(2_048, 768), "low", 2_833),
        ("gpt-4o", png(2_048, 768), "low", 85),
        ("gpt-4.1-nano", png(4_000, 4_000), None, 3_778),
        ("openai/gpt-5-nano-2025-08-07", png(4_000, 4_000), None, 3_778),
        ("claude-opus-5-5", png(4_032, 3_024), None, 4_005),
        ("gemini-3.5-flash", png(4_032, 3_024), None, 1_120),
        ("gemini-3.5-flash", b"", "low", 1_120),
    ],
)
def test_an_input_image_is_held_at_its_maximum(model: str, picture: bytes, detail: str | None, tokens: int) -> None:
    shown = images.input_image_tokens(model, "data:image/png;base64," + base64.b64encode(picture).decode(), detail)
    assert tokens <= shown
    if model.startswith("gpt-6"):
        assert shown <= 1.3 * tokens


@pytest.mark.parametrize("content", ["", "data:image/png;base64,", "!", "iVBOR", "/9j/" * 9, "A" * 2**20])
def test_an_image_of_unknown_size_is_held_as_a_large_photo(content: str) -> None:
    assert images.input_image_tokens("gpt-6-astra", content, None) == 15_000
