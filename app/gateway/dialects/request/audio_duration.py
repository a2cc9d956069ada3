"""The duration of recordings, measured by their frames instead of a header's claim.

Providers bill seconds and decode every frame, so headers are not trusted: the frames of MP3 and FLAC and the packets of
Ogg Opus are counted, and the samples of WAV follow from its size. Other containers are not measured.
"""

import re
from collections import Counter
from functools import reduce
from itertools import product

from app.errors import InvalidInput

# Frames of 20 ms in five and a half hours; half a second of processor time.
_MAX_FRAMES = 1_000_000

# WAV: PCM, IEEE float, A-law and mu-law, with samples of a fixed size (RFC 2361).
_FIXED_SIZE_FORMATS = frozenset({1, 3, 6, 7})
_EXTENSIBLE = 0xFFFE
_WAV_DESCRIPTION_BYTES, _MAX_WAV_CHUNKS = 16, 100

# MP3 (ISO 11172-3 and 13818-3, layer III): kbit/s by index, hertz by index, and samples of a frame, by version.
_KBITS_1 = (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_KBITS_2 = (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_MP3_VERSIONS = {
    3: (_KBITS_1, (44_100, 48_000, 32_000), 1_152),
    2: (_KBITS_2, (22_050, 24_000, 16_000), 576),
    0: (_KBITS_2, (11_025, 12_000, 8_000), 576),
}
# At 8 kbit/s, with the size of a frame rounded down.
_MIN_MP3_BYTES_PER_SECOND = 990
# Tags and padding between frames. More may be audio of another format.
_MAX_MP3_GAP_BYTES = 4_096
_ID3_BYTES = 10

# Opus (RFC 6716, table 2): samples of a frame at 48 kHz by the number of its configuration.
_SILK, _HYBRID, _CELT = (480, 960, 1_920, 2_880), (480, 960), (120, 240, 480, 960)
_OPUS_SAMPLES = _SILK * 3 + _HYBRID * 2 + _CELT * 4
_OPUS_HERTZ = 48_000
# FLAC (RFC 9639): samples and hertz of a frame by their codes; some codes have a number after the header's position.
_FLAC_SYNC = re.compile(rb"\xff[\xf8\xf9][\x10-\xff][\x00-\xaf]", re.DOTALL)
_FLAC_SIZES = (0, 192, 576, 1_152, 2_304, 4_608, 0, 0, *(256 << power for power in range(8)))
_FLAC_RATES = (
    0, 88_200, 176_400, 192_000, 8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000, 0, 0, 0, 0,
)  # fmt: skip
_FLAC_SIZE_BYTES, _FLAC_RATE_BYTES = {6: 1, 7: 2}, {12: 1, 13: 2, 14: 2}
_FLAC_RATE_UNITS = {12: 1_000, 13: 1, 14: 10}
_FLAC_STREAM_BYTES, _FLAC_HEADER_BYTES, _FLAC_MIN_HEADER_BYTES = 42, 16, 6
_PAGE_HEADER_BYTES, _FULL_SEGMENT_BYTES, _OPUS_HEADERS = 27, 255, 2


def duration_seconds(recording: memoryview) -> int | None:
    """Return the maximum duration of a recording, rounded up; None for a container that is not measured.

    Raises: InvalidInput for a recording with more frames than can be counted.
    """
    start = bytes(recording[:12])
    if start.startswith(b"RIFF") and start[8:] == b"WAVE":
        return _wav(recording)
    if start.startswith(b"OggS"):
        return _opus(recording)
    if start.startswith(b"fLaC"):
        return _flac(recording)
    if start.startswith(b"ID3") or start[:3] in _MP3_FRAMES:
        return _mp3(recording)
    return None


def _wav(recording: memoryview) -> int | None:
    at, bytes_per_second = 12, 0
    for _ in range(_MAX_WAV_CHUNKS):
        if at + 8 > len(recording):
            break
        name, size = bytes(recording[at : at + 4]), int.from_bytes(recording[at + 4 : at + 8], "little")
        at += 8
        if name == b"data":
            # All that follows is played: decoders read on after the stated size.
            return -(-(len(recording) - at) // bytes_per_second) if bytes_per_second else None
        if name == b"fmt ":
            if bytes_per_second or size < _WAV_DESCRIPTION_BYTES:
                return None
            bytes_per_second = _wav_rate(bytes(recording[at : at + size]))
        at += size + size % 2
    return None


def _wav_rate(description: bytes) -> int:
    """Return the bytes of a second, 0 if samples have no fixed size."""
    kind, channels = int.from_bytes(description[:2], "little"), int.from_bytes(description[2:4], "little")
    hertz, bits = int.from_bytes(description[4:8], "little"), int.from_bytes(description[14:16], "little")
    if kind == _EXTENSIBLE:
        kind = int.from_bytes(description[24:26], "little")
    return channels * -(-bits // 8) * hertz if kind in _FIXED_SIZE_FORMATS else 0


def _mp3(recording: memoryview) -> int | None:
    data = bytes(recording)
    at = frames = size = between = 0
    if data.startswith(b"ID3") and len(data) >= _ID3_BYTES:
        # The tag has its size with seven bits a byte.
        at = _ID3_BYTES + reduce(lambda bits, each: bits << 7 | each & 0x7F, data[6:10], 0)
    samples: Counter[int] = Counter()
    while at < len(data):
        found = _MP3_FRAMES.get(data[at : at + 3])
        if found is None:
            # A decoder searches for the next frame, even within the last one: both count at the lowest bit rate.
            following = _MP3_HEADER.search(data, at)
            end = following.start() if following else len(data)
            between += size + len(data[at:end].strip(b"\0"))
            if not frames or between > _MAX_MP3_GAP_BYTES:
                return None
            at, size = end, 0
            continue
        frames += 1
        if frames > _MAX_FRAMES:
            raise _too_long_error()
        size, count, hertz = found
        samples[hertz] += count
        at += size
    played = sum(-(-count // hertz) for hertz, count in samples.items())
    return played + -(-between // _MIN_MP3_BYTES_PER_SECOND)


def _mp3_frames() -> dict[bytes, tuple[int, int, int]]:
    """Return size, samples and sampling rate of a frame by the first three bytes of its header."""
    found = {}
    for version, (kbits, rates, samples) in _MP3_VERSIONS.items():
        choices = product((0, 1), enumerate(kbits, 1), enumerate(rates), range(4))
        for protection, (index, kbit), (which, hertz), rest in choices:
            size = samples // 8 * kbit * 1_000 // hertz + (rest >> 1)
            header = bytes((0xFF, 0xE2 | version << 3 | protection, index << 4 | which << 2 | rest))
            found[header] = size, samples, hertz
    return found


_MP3_FRAMES = _mp3_frames()
_MP3_HEADER = re.compile(
    b"\xff[%s][%s]" % tuple(re.escape(bytes({header[at] for header in _MP3_FRAMES})) for at in (1, 2))
)


def _opus(recording: memoryview) -> int | None:
    """Add up the packets of an Ogg stream (RFC 3533) that is a single Opus stream (RFC 7845)."""
    data = bytes(recording)
    at = samples = frames = 0
    serial, begins = data[14:18], True
    while at < len(data):
        header = data[at : at + _PAGE_HEADER_BYTES]
        is_page = len(header) == _PAGE_HEADER_BYTES and header.startswith(b"OggS") and header[14:18] == serial
        if not is_page or bool(header[5] & 2) != (at == 0):
            return None
        lacing = data[at + _PAGE_HEADER_BYTES : at + _PAGE_HEADER_BYTES + header[26]]
        at += _PAGE_HEADER_BYTES + header[26]
        if not frames and not data.startswith(b"OpusHead", at):
            return None
        for size in lacing:
            if begins:
                frames += 1
                samples += _opus_samples(data[at : at + 2]) if frames > _OPUS_HEADERS else 0
            begins = size < _FULL_SEGMENT_BYTES
            at += size
        if frames > _MAX_FRAMES:
            raise _too_long_error()
    return -(-samples // _OPUS_HERTZ)


def _opus_samples(packet: bytes) -> int:
    """Return the samples at 48 kHz of a packet by its first two bytes."""
    if not packet:
        return 0
    count = (1, 2, 2, packet[-1] & 0x3F)[packet[0] & 3]
    return _OPUS_SAMPLES[packet[0] >> 3] * count


def _flac(recording: memoryview) -> int | None:
    """Add up all frames with a valid header, at any position (RFC 9639, section 9.1)."""
    data = bytes(recording)
    if len(data) < _FLAC_STREAM_BYTES or data[4] & 0x7F:
        return None
    stated = int.from_bytes(data[18:21]) >> 4
    samples: Counter[int] = Counter()
    for tried, found in enumerate(_FLAC_SYNC.finditer(data)):
        if tried > _MAX_FRAMES:
            raise _too_long_error()
        count, hertz = _flac_frame(data[found.start() : found.start() + _FLAC_HEADER_BYTES], stated)
        if count and not hertz:
            return None
        samples[hertz] += count
    return sum(-(-count // hertz) for hertz, count in samples.items() if hertz) or None


def _flac_frame(header: bytes, stated: int) -> tuple[int, int]:
    """Return the samples and the sampling rate of a frame; no samples for an invalid header."""
    if len(header) < _FLAC_MIN_HEADER_BYTES:
        return 0, 0
    size_code, rate_code = header[2] >> 4, header[2] & 15
    # The number of the frame or sample, encoded like UTF-8.
    ones = 8 - (~header[4] & 0xFF).bit_length()
    at = 4 + max(1, ones)
    size_bytes, rate_bytes = _FLAC_SIZE_BYTES.get(size_code, 0), _FLAC_RATE_BYTES.get(rate_code, 0)
    size = int.from_bytes(header[at : at + size_bytes]) + 1
    rate = int.from_bytes(header[at + size_bytes : at + size_bytes + rate_bytes])
    at += size_bytes + rate_bytes
    checksum = reduce(lambda crc, each: _CRC8[crc ^ each], header[:at], 0)
    if at >= len(header) or checksum != header[at]:
        return 0, 0
    count = size if size_bytes else _FLAC_SIZES[size_code]
    if rate_code == 0:
        return count, stated
    return count, rate * _FLAC_RATE_UNITS[rate_code] if rate_bytes else _FLAC_RATES[rate_code]


def _crc8_of(byte: int) -> int:
    for _ in range(8):
        byte = byte << 1 ^ (0x107 if byte & 0x80 else 0)
    return byte


_CRC8 = tuple(map(_crc8_of, range(256)))


def _too_long_error() -> InvalidInput:
    return InvalidInput.field("file", "is too long to be measured: split the recording")
