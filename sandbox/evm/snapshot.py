"""A furnished chain, made once per cache and loaded by every fresh node after that."""

from __future__ import annotations

import gzip
import hashlib
import time
from collections.abc import Callable
from pathlib import Path

from app.adapters.cctp import deployments as cctp_deployments
from app.adapters.evm import deployments
from app.adapters.portal import deployments as portal_deployments
from app.adapters.relay import deployments as relay_deployments
from sandbox.cache import Cache, write_atomically

_KEEP_SECONDS = 30 * 24 * 3600


def snapshot_file(
    cache: Cache, *, chain: str, chain_id: int, binary: Path, make: Callable[[], bytes]
) -> Path:
    """Return the file of a furnished chain, calling `make` for a compressed dump when there is none yet.

    The name follows from everything that shapes the chain, our own sources included: it is never stale.
    """
    path = cache.root / "snapshots" / f"{chain}-{chain_id}-{_fingerprint(binary)}.json"
    if not path.exists():
        with cache.locked("snapshots"):  # nodes of both chains wait in turn
            if not path.exists():
                write_atomically(path, gzip.decompress(make()))
                _forget_old(path.parent)
    return path


def _fingerprint(binary: Path) -> str:
    digest = hashlib.sha256(f"{binary}:{binary.stat().st_size}".encode())
    here = Path(__file__).parent
    for source in [*sorted(here.glob("*.py")), *sorted(here.glob("stand_ins/*.json"))]:
        digest.update(source.read_bytes())
    facts = (deployments, cctp_deployments, portal_deployments, relay_deployments)
    for module in facts:
        digest.update(Path(str(module.__file__)).read_bytes())
    return digest.hexdigest()[:16]


def _forget_old(folder: Path) -> None:
    limit = time.time() - _KEEP_SECONDS
    for path in folder.glob("*.json"):
        if path.stat().st_mtime < limit:
            path.unlink(missing_ok=True)
