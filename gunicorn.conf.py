"""gunicorn's settings, for development and production; read by `gunicorn wsgi:app` in the working directory.

Threads, not gevent: gevent blocks the whole process while SQLite works. Threads start only when requests need them, so
their number is a limit for open streams and not a cost.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
from functools import partial
from pathlib import Path
from typing import Any

from app.core import host
from app.core.host import harden
from server.placement import allowed_processors, choose_processor, place

# First of all in the master; the workers are its forks.
harden()

_ALL_INTERFACES = "0.0.0.0"  # noqa: S104 - a host's router is on another machine
_is_public = os.environ.get("SANDBOX_PUBLIC", "").lower() in {"1", "true", "t", "yes", "y", "on"}
_is_local = (os.environ.get("NETWORK") or "sandbox") == "sandbox" and not _is_public
bind = f"{'127.0.0.1' if _is_local else _ALL_INTERFACES}:{os.environ.get('PORT') or '8000'}"
# Threads, with timeouts for slow clients and the API's errors for malformed requests.
worker_class = "server.worker.Worker"
_sizes = host.defaults(os.environ.get("HOST_MEMORY"))
workers = int(os.environ.get("WEB_CONCURRENCY") or _sizes["web_concurrency"])
threads = int(os.environ.get("WEB_THREADS") or _sizes["web_threads"])
# One connection per thread, and as many idle ones between two requests.
worker_connections = 2 * threads
# A stream holds two descriptors (the client's and the upstream's), and default limits are too low.
_soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
_needed_descriptors = 4 * threads + 512
if _soft != resource.RLIM_INFINITY and _soft < _needed_descriptors:
    _allowed = _needed_descriptors if _hard == resource.RLIM_INFINITY else min(_needed_descriptors, _hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(_soft, _allowed), _hard))

backlog = 1024
keepalive = 30

# The application is loaded once and shared by the forks: a third of the memory, and no delay of the first response.
preload_app = True
# Replacing a process cuts its streams, so none is replaced for its age.
max_requests = 0
# In gthread a liveness check of the process, not a limit for a request.
timeout = 60
# Platforms kill 30 seconds after SIGTERM; open streams have this long to end.
graceful_timeout = 25
control_socket_disable = True
worker_tmp_dir = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - the heartbeat must not wait for a disk
# <malloc.h>
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
# By default a client could set SCRIPT_NAME and PATH_INFO: routers pass such headers on.
forwarder_headers = ""
# sendfile(2) waits for a slow client without a timeout.
sendfile = False
forwarded_allow_ips = os.environ.get("FORWARDED_ALLOW_IPS") or "127.0.0.1"
# Its own lines as JSON, like those of the service, which writes one for each request, without secrets.
logger_class = "server.logger.Logger"
accesslog = None


def _return_freed_memory() -> None:
    """Make the C library return the memory of large bodies to the system as soon as they are freed.

    By default it keeps freed memory in an arena per thread, and blocks of up to 32 MiB after the first of them.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # in glibc, not in musl
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 2)
        mallopt(_M_MMAP_THRESHOLD, 128 * 1024)


def on_starting(server: Any) -> None:
    """Refuse to serve a sandbox to other machines without SANDBOX_PUBLIC. Raises: SystemExit."""
    _return_freed_memory()
    # Imported here: gunicorn reads this file before it validates its own settings.
    from app.config import PUBLIC_SANDBOX_MESSAGE  # noqa: PLC0415
    from app.core.ip_ranges import is_loopback  # noqa: PLC0415

    # Other addresses are paths and descriptors of sockets.
    hosts = [address[0] for address in server.cfg.address if isinstance(address, tuple)]
    if _is_local and (public := [host for host in hosts if not is_loopback(host)]):
        what = f"gunicorn would listen on {public[0] or _ALL_INTERFACES}"
        raise SystemExit(PUBLIC_SANDBOX_MESSAGE.format(what=what) + ".")


def when_ready(server: Any) -> None:
    """Create the bootstrap master key, then exempt loaded objects from garbage collection: forks share them."""
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415

    from app.extensions import db  # noqa: PLC0415
    from app.platform import keys as platform_keys  # noqa: PLC0415
    from wsgi import app  # noqa: PLC0415

    # Without Redis, each process grants its part of a rate limit.
    app.state.rate_limiter.processes = server.cfg.workers
    # Before any worker accepts requests, so that the key works from the first one.
    with app.app_context():
        try:
            platform_keys.create_bootstrap_master_key()
        except (SQLAlchemyError, ValueError) as error:
            # The scheduler retries, and reports a malformed key.
            app.logger.warning("bootstrap_master_key_not_created: %s", type(error).__name__)
        finally:
            db.engine.dispose()
    gc.collect()
    gc.freeze()
    # A request leaves hardly any cycles: by default, collections take a twentieth of its processor time.
    gc.set_threshold(20_000)


def pre_fork(server: Any, worker: Any) -> None:
    """Choose the processor of a new worker, in the master, which knows those of the others."""
    taken = (sibling.processor for sibling in server.WORKERS.values())
    worker.processor = choose_processor(allowed_processors(), server.num_workers, taken)


def post_fork(_server: object, worker: Any) -> None:
    """Discard the parent's database connections, which must not be shared; start flushing counters."""
    place(worker)
    # Imported here: gunicorn reads this file before it validates its own settings.
    from app.extensions import db  # noqa: PLC0415
    from app.observability import counters  # noqa: PLC0415
    from app.state import app_state  # noqa: PLC0415
    from wsgi import app  # noqa: PLC0415

    with app.app_context():
        db.engine.dispose(close=False)
        counters.start(app_state().ports.counters, partial(app.server_hooks.measure, db.engine))
