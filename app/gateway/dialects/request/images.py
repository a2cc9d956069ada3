"""Upper bounds on the tokens of images: generated ones, by size and quality, and those in the input.

Sources: OpenAI's guides "Image generation" and "Images and vision", Anthropic's "Vision" and Google's "Media
resolution", all of November 2026.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

# Output tokens by quality: of a square of 1024 pixels, and of 1024x1536 either way.
_GPT_IMAGE_1_TOKENS = {"low": (272, 408), "medium": (1_056, 1_584), "high": (4_160, 6_240)}
# The small model's list price per image equals that of so many more tokens.
_MINI_SURCHARGE_TOKENS = 400
# The longer side in later models' formula; half a percent more covers the examples in the guide.
_DIVISIONS = {"low": 16, "medium": 48, "high": 96}
_DEFAULT_SIZES = ((1024, 1024), (1024, 1536))
_MAX_PIXELS = 2_880 * 2_880
_GEMINI_IMAGE_TOKENS = 2_520
_PARTIAL_IMAGE_TOKENS, _PARTIAL_IMAGE_COUNTS = 100, (0, 1, 2, 3, "0", "1", "2", "3")
# An image to be edited: four tiles, and 6 240 for the details that are kept.
_EDIT_TOKENS, _EDIT_HIGH_FIDELITY_TOKENS = 600, 6_840
# An image in the input, by prefix of the model's name: the maximum after scaling down.
_INPUT_IMAGE_TOKENS = (
    # 2 833 tokens and 5 667 for each of eight tiles, to cost as much as with the larger model.
    (re.compile(r"gpt-4o-mini"), 48_169),
    # Eight tiles of 170 and 85 more, or 1 536 patches that cost up to 2.46 tokens each.
    (re.compile(r"gpt-4(o|\.1|-turbo)|(^|/)o[134]|(^|/)gpt-5(-mini|-nano|-chat-latest)?(-20..-..-..)?$"), 3_779),
    (re.compile(r"claude"), 4_784),
    (re.compile(r"gemini-[3-9]"), 2_240),
)  # fmt: skip
_INPUT_IMAGE_LOW_TOKENS, _INPUT_IMAGE_LOW_MINI_TOKENS = 700, 2_833
_OPENAI_MODEL = re.compile(r"(^|/)(gpt-|o[1-9]|chatgpt-)")
# Other models: patches of 32 pixels at 1.2 tokens or, with small models, up to 2.5. A photo of twelve megapixels has
# 14 364 tokens; the limit of every known model is at least three thousand patches.
_PATCH, _MIN_IMAGE_TOKENS, _UNKNOWN_SIZE_TOKENS = 32, 3_000, 15_000
_SMALL_MODEL = re.compile(r"mini|nano|small|lite")
_MAX_HEADER_CHARS = 256 * 1024
_SIZE = re.compile(r"([1-9][0-9]{1,4})x([1-9][0-9]{1,4})", re.ASCII)


def generated_image_tokens(model: str, request: Mapping[str, Any]) -> int:
    """Return the maximum output tokens of one image, by `size`, `quality` and `partial_images` of a request."""
    quality = request.get("quality")
    quality = quality if isinstance(quality, str) and quality in _DIVISIONS else "high"
    size = request.get("size")
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    sizes = ((int(found[1]), int(found[2])),) if found else _DEFAULT_SIZES
    # The text of a form, or a number.
    partial = request.get("partial_images", 0)
    partial_count = _PARTIAL_IMAGE_COUNTS.index(partial) % 4 if partial in _PARTIAL_IMAGE_COUNTS else 3
    extra = _PARTIAL_IMAGE_TOKENS * partial_count
    if model.startswith(("gpt-image-1", "chatgpt-image")):
        square, oblong = _GPT_IMAGE_1_TOKENS[quality]
        extra += _MINI_SURCHARGE_TOKENS if "mini" in model else 0
        return extra + (square if sizes == _DEFAULT_SIZES[:1] else oblong)
    if model.startswith("gemini-"):
        return extra + _GEMINI_IMAGE_TOKENS
    return extra + max(_tokens_by_division(_DIVISIONS[quality], *each) for each in sizes)


def _tokens_by_division(longer: int, width: int, height: int) -> int:
    shorter = (2 * longer * min(width, height) + max(width, height)) // (2 * max(width, height))
    tokens = longer * shorter * (2_000_000 + min(width * height, _MAX_PIXELS))
    return -(-tokens * 201 // (4_000_000 * 200))


def edited_image_tokens(model: str, request: Mapping[str, Any]) -> int:
    """Return the maximum input tokens of an image to be edited."""
    is_plain = model.startswith("gpt-image-1") and request.get("input_fidelity") in (None, "low")
    return _EDIT_TOKENS if is_plain else _EDIT_HIGH_FIDELITY_TOKENS


def input_image_tokens(model: str, content: str, detail: str | None) -> int:
    """Return the maximum tokens of an input image; `content` is its base64, possibly in a data URL, or empty."""
    known = next((most for pattern, most in _INPUT_IMAGE_TOKENS if pattern.search(model)), None)
    if detail == "low" and _OPENAI_MODEL.search(model):
        return _INPUT_IMAGE_LOW_MINI_TOKENS if "4o-mini" in model else _INPUT_IMAGE_LOW_TOKENS
    if known is not None:
        return known
    size = _pixels(content)
    if size is None:
        return _UNKNOWN_SIZE_TOKENS
    patches = -(-size[0] // _PATCH) * -(-size[1] // _PATCH)
    return max(_MIN_IMAGE_TOKENS, -(-patches * (10 if _SMALL_MODEL.search(model) else 5) // 4))


def _pixels(content: str) -> tuple[int, int] | None:
    """Read the width and height of a PNG, GIF or JPEG; None for another format or if its beginning lacks them."""
    encoded = content[content.find(",") + 1 :][:_MAX_HEADER_CHARS]
    try:
        head = base64.b64decode(encoded[: len(encoded) // 4 * 4], validate=True)
    except (binascii.Error, ValueError):
        return None
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return int.from_bytes(head[16:20]), int.from_bytes(head[20:24])
    if head.startswith(b"GIF8"):
        return int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")
    return _jpeg_pixels(head) if head.startswith(b"\xff\xd8") else None


def _jpeg_pixels(head: bytes) -> tuple[int, int] | None:
    """Walk the segments up to the frame header (ITU-T T.81, B.2.2)."""
    at = 2
    while head[at : at + 1] == b"\xff" and at + 9 <= len(head):
        marker, size = head[at + 1], int.from_bytes(head[at + 2 : at + 4])
        if marker in _FRAME_MARKERS:
            return int.from_bytes(head[at + 7 : at + 9]), int.from_bytes(head[at + 5 : at + 7])
        at += 2 + size
    return None


_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
