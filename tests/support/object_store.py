"""A stand-in for S3 on loopback: signed requests store, read and list the objects of one bucket."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from urllib.parse import unquote, urlsplit
from xml.sax.saxutils import escape

from solana_node.loopback_server import LoopbackHandler, LoopbackServer

ACCESS_KEY, SECRET_KEY, BUCKET = "stand-in", "secret-of-the-stand-in", "backups"


class ObjectStore(LoopbackServer):
    """`objects` holds the bodies by key."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.objects: dict[str, bytes] = {}

    @property
    def settings(self) -> dict[str, str]:
        """The settings of rclone for `:s3:` paths."""
        return {
            "RCLONE_S3_PROVIDER": "Other", "RCLONE_S3_ENDPOINT": self.url, "RCLONE_S3_REGION": "us-east-1",
            "RCLONE_S3_ACCESS_KEY_ID": ACCESS_KEY, "RCLONE_S3_SECRET_ACCESS_KEY": SECRET_KEY,
        }  # fmt: skip


class _Handler(LoopbackHandler):
    server: ObjectStore

    def do_PUT(self) -> None:
        body = self.read_body()
        if key := self._authorized_key():
            self.server.objects[key] = body
            self._send(200)

    def do_HEAD(self) -> None:
        if key := self._authorized_key():
            body = self.server.objects.get(key)
            self._send(200 if body is not None else 404, head_of=body or b"")

    def do_GET(self) -> None:
        if (key := self._authorized_key()) is None:
            return
        if key:
            body = self.server.objects.get(key)
            self._send(200 if body is not None else 404, body or b"")
            return
        listed = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{len(body)}</Size>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for name, body in sorted(self.server.objects.items())
        )
        xml = f"<ListBucketResult><IsTruncated>false</IsTruncated>{listed}</ListBucketResult>"
        self._send(200, xml.encode())

    def _authorized_key(self) -> str | None:
        """Return the key in the bucket, "" for the bucket; send 403 to whoever has another access key."""
        signed = self.headers.get("Authorization", "")
        if not signed.startswith(f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/"):
            self._send(403)
            return None
        bucket, _, key = unquote(urlsplit(self.path).path).removeprefix("/").partition("/")
        return key if bucket == BUCKET else None

    def _send(self, status: int, body: bytes = b"", *, head_of: bytes = b"") -> None:
        self.send_response(status)
        shown = head_of or body
        self.send_header("Content-Length", str(len(shown)))
        self.send_header("ETag", f'"{hashlib.md5(shown, usedforsecurity=False).hexdigest()}"')
        self.send_header("Last-Modified", formatdate(usegmt=True))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Serve an empty bucket until the block ends."""
    store = ObjectStore()
    store.start()
    try:
        yield store
    finally:
        store.stop()
