"""Snapshot of a chain with all contracts: created once per cache and loaded by every fresh node."""

import gzip
import hashlib
import time
from collections.abc import Callable
from pathlib import Path

from app.adapters.bridges import deployments as bridge_deployments
from app.adapters.evm.contracts import deployments
from sandbox.cache import Cache, write_atomically

_RETENTION_SECONDS = 30 * 24 * 3600


def snapshot_file(cache: Cache, *, chain: str, chain_id: int, binary: Path, make: Callable[[], bytes]) -> Path:
    """Return the snapshot file, calling `make` for a compressed dump if there is none.

    The name is a digest of everything that determines the chain, these sources included: it is never stale.
    """
    path = cache.root / "snapshots" / f"{chain}-{chain_id}-{_fingerprint(binary)}.json"
    if not path.exists():
        with cache.locked("snapshots"):  # nodes of both chains may wait
            if not path.exists():
                write_atomically(path, gzip.decompress(make()))
                _remove_old(path.parent)
    return path


def _fingerprint(binary: Path) -> str:
    digest = hashlib.sha256(f"{binary}:{binary.stat().st_size}".encode())
    here = Path(__file__).parent
    for source in [*sorted(here.glob("*.py")), *sorted(here.glob("stand_ins/*.json"))]:
        digest.update(source.read_bytes())
    for source in (Path(str(deployments.__file__)), deployments.TABLE, Path(str(bridge_deployments.__file__))):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _remove_old(folder: Path) -> None:
    limit = time.time() - _RETENTION_SECONDS
    for path in folder.glob("*.json"):
        if path.stat().st_mtime < limit:
            path.unlink(missing_ok=True)
