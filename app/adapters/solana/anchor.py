"""Discriminators of Anchor, the framework of the programs that we call."""

from __future__ import annotations

import hashlib


def discriminator(name: str) -> bytes:
    """Return the first bytes of an instruction ("global:<name>") or account ("account:<Name>")."""
    return hashlib.sha256(name.encode()).digest()[:8]
