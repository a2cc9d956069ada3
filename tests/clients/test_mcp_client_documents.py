"""A released client whose id is the address of a document, which a host with TLS serves."""

from __future__ import annotations

import ipaddress
import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509

from tests.clients.test_mcp import check
from tests.support.certificates import certificate
from tests.support.published import run_python
from tests.support.services import web_service

# The packages are installed first where they are missing.
pytestmark = pytest.mark.timeout(1200)


class DocumentHost(ThreadingHTTPServer):
    """A host that serves the document of one application."""

    def __init__(self, trusted: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(trusted)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.address = f"https://127.0.0.1:{self.server_port}/oauth/client.json"
        self.asked: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    server: DocumentHost

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        described = {
            "client_id": self.server.address, "client_name": "Example", "token_endpoint_auth_method": "none",
            "redirect_uris": ["http://127.0.0.1:1/callback"], "grant_types": ["authorization_code", "refresh_token"],
        }  # fmt: skip
        body = json.dumps(described).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Print nothing."""


@pytest.fixture
def trusted(tmp_path: Path) -> Path:
    """A certificate, with a package of authorities that are trusted that has this one only."""
    path = certificate(tmp_path, name=x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    (tmp_path / "certifi.py").write_text(f"def where():\n    return {str(path)!r}\n")
    return path


@pytest.fixture
def host(trusted: Path) -> Iterator[DocumentHost]:
    """The host, until the test ends."""
    with DocumentHost(trusted) as host:
        thread = threading.Thread(target=host.serve_forever)
        thread.start()
        yield host
        host.shutdown()
        thread.join()


def test_the_python_client_is_known_by_its_document(
    own_sqlite_url: str, trusted: Path, host: DocumentHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLIENT_DOCUMENT", host.address)
    settings = {"allow_private_upstreams": "1", "pythonpath": trusted.parent}
    with web_service(own_sqlite_url, settings, workers=1, threads=20) as service:
        key = service.register()["apiKey"]
        ran = run_python("examples.py", service.url, key, "mcp_document_examples", requirements="mcp.txt")
        check(ran, [" with a client metadata document"])
    assert set(host.asked) == {"/oauth/client.json"}
