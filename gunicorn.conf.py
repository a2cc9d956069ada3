"""gunicorn's settings, the same on a laptop and on a host; read by `gunicorn wsgi:app` from the work tree.

Threads, not gevent: gevent freezes the whole process while SQLite works. Threads start only when requests
need them, so their number is a ceiling for open streams and not a cost.
"""

from __future__ import annotations

import gc
import os
import resource
from pathlib import Path

bind = f"0.0.0.0:{os.environ.get('PORT') or '8000'}"
# Threads, with patience for slow callers and our words for malformed ones.
worker_class = "app.web.server.Worker"
workers = int(os.environ.get("WEB_CONCURRENCY") or 2)
threads = int(os.environ.get("WEB_THREADS") or 1100)
# Every thread may hold a connection, and as many again may wait between two requests of theirs.
worker_connections = 2 * threads
# A stream holds two descriptors (the caller's and the upstream's), and usual limits were set for less.
_soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
_wanted = 4 * threads + 512
if _soft != resource.RLIM_INFINITY and _soft < _wanted:
    _allowed = _wanted if _hard == resource.RLIM_INFINITY else min(_wanted, _hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(_soft, _allowed), _hard))

backlog = 1024
keepalive = 30

# The application is loaded once and shared by the forks: a third of the memory, and a first answer at once.
preload_app = True
# Replacing a process cuts the streams that it serves, so none is replaced for its age.
max_requests = 0
# In gthread this is a sign of life of the process, not a limit for a request.
timeout = 60
# Hosts kill 30 seconds after they ask; open streams have this long to end.
graceful_timeout = 25
control_socket_disable = True
worker_tmp_dir = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - the heartbeat must not wait for a disk
# By default a proxy's caller could name the path that it is served under: routers pass such headers on.
forwarder_headers = ""
# What sends files in the kernel waits for a slow reader without end.
sendfile = False
forwarded_allow_ips = os.environ.get("FORWARDED_ALLOW_IPS") or "127.0.0.1"
# The service writes its own log line for each request, without secrets.
accesslog = None


def when_ready(_server: object) -> None:
    """Take what was loaded out of the garbage collector's sight: it is for good, and stays shared by the forks."""
    gc.collect()
    gc.freeze()


def post_fork(_server: object, _worker: object) -> None:
    """Forget the parent's database connections: two processes must not talk on one socket. Begin to tally."""
    # Imported here, because gunicorn reads this file before it is sure of its own settings.
    from app.extensions import db  # noqa: PLC0415
    from app.ports import provider  # noqa: PLC0415
    from app.status import handover  # noqa: PLC0415
    from wsgi import app  # noqa: PLC0415

    with app.app_context():
        db.engine.dispose(close=False)
        handover.begin(provider.current().tallies)
