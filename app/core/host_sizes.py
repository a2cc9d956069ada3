"""Sizes of the service by the memory of its host: the defaults of settings, and `web_body_memory_mb`.

Each row was measured: docs/performance.md, "Small hosts". Read by gunicorn's settings, too, so it imports nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

DEFAULTS: Mapping[str, int] = {
    "web_concurrency": 2,
    "web_threads": 1100,
    "web_body_memory_mb": 96,
    "database_pool_size": 15,
}
"""For a host of unknown size."""
_BY_SIZE: Mapping[str, Mapping[str, int]] = {
    "512MB": {"web_concurrency": 1, "web_threads": 400, "web_body_memory_mb": 48, "database_pool_size": 8},
    "1GB": {**DEFAULTS, "web_threads": 600, "web_body_memory_mb": 64, "database_pool_size": 10},
    "4GB": {**DEFAULTS, "web_concurrency": 4},
}


def defaults(host_memory: str | None) -> Mapping[str, int]:
    """Return the sizes for a host with this much memory ("512MB", "1GB", "4GB"), by setting."""
    return _BY_SIZE.get(host_memory or "", DEFAULTS)
