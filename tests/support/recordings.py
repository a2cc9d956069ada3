"""Recordings of silence with known durations, in the containers that the gateway measures."""

from __future__ import annotations

# MPEG-1 layer III, 128 kbit/s, 44.1 kHz; MPEG-2 layer III, 8 kbit/s, 24 kHz.
MP3_FRAME = b"\xff\xfb\x90\x00" + bytes(413)
MP3_SMALL_FRAME = b"\xff\xf3\x14\x00" + bytes(20)
# The first bytes of packets of Opus: one frame of 20 ms, one of 60 ms, and 48 of 2.5 ms.
OPUS_20_MS, OPUS_60_MS, OPUS_120_MS = b"\x08", b"\x18", b"\xe3\x30"


def wav(seconds: int, *, hertz: int = 16_000, more: bytes = b"", claimed: int | None = None) -> bytes:
    """Return 16-bit PCM of one channel; `more` precedes the sound, and `claimed` is the size in the header."""
    size = seconds * hertz * 2
    description = b"".join(
        number.to_bytes(length, "little")
        for number, length in ((1, 2), (1, 2), (hertz, 4), (hertz * 2, 4), (2, 2), (16, 2))
    )
    head = b"WAVE" + _chunk(b"fmt ", description) + more + b"data"
    stated = size if claimed is None else claimed
    return b"RIFF" + (len(head) + 4 + size).to_bytes(4, "little") + head + stated.to_bytes(4, "little") + bytes(size)


def flac(frames: int) -> bytes:
    """Return frames of 4 096 samples at 16 kHz, with a header without a length (RFC 9639)."""
    header = b"\xff\xf8\xc5\x08\0"
    return b"fLaC\x80\0\0\x22" + bytes(34) + (header + b"\x6f" + bytes(20)) * frames


def ogg(*packets: bytes, serials: tuple[bytes, ...] = (b"abcd",), granule: int = 0) -> bytes:
    """Return Ogg pages with the two headers of Opus and packets, `granule` in all of them."""
    pages = [(2, serials[0], [b"OpusHead" + bytes(11)]), (0, serials[0], [b"OpusTags"])]
    pages += [(0, serials[-1], list(packets[at : at + 200])) for at in range(0, len(packets), 200)]
    return b"".join(_page(flags, serial, packed, granule) for flags, serial, packed in pages)


def _page(flags: int, serial: bytes, packets: list[bytes], granule: int) -> bytes:
    lacing = b"".join(b"\xff" * (len(packet) // 255) + bytes([len(packet) % 255]) for packet in packets)
    head = b"OggS\0" + bytes([flags]) + granule.to_bytes(8, "little") + serial + bytes(8)
    return head + bytes([len(lacing)]) + lacing + b"".join(packets)


def _chunk(name: bytes, content: bytes) -> bytes:
    return name + len(content).to_bytes(4, "little") + content
