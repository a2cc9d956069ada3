"""Why a host cannot be connected to, in words for its operator and without what its URL may hide."""

import re
import socket
import ssl
from urllib.parse import parse_qs, urlsplit

from app.db.unit_of_work import assert_no_unit

_PORTS = {"http": 80, "https": 443, "redis": 6379, "rediss": 6379}
_TIMEOUT_SECONDS = 3.0


def host_of(url: str) -> str:
    """Return host and port, without user, path and query, which may contain keys."""
    return re.split("[/?#]", url.partition("://")[2])[0].rpartition("@")[2]


def connection_problem(url: str) -> str | None:
    """Connect to the host of a URL, with TLS where its scheme demands it; return what prevents that."""
    assert_no_unit()
    problem = None
    try:
        parts = urlsplit(url)
        with socket.create_connection((parts.hostname, parts.port or _PORTS[parts.scheme]), _TIMEOUT_SECONDS) as plain:
            if parts.scheme in {"https", "rediss"}:
                _tls_context(parts.query).wrap_socket(plain, server_hostname=parts.hostname).close()
    except socket.gaierror:
        problem = "its name is not resolved"
    except ssl.SSLCertVerificationError as error:
        problem = f"its certificate is not accepted ({error.verify_message})"
    except ssl.SSLError:
        problem = "it does not speak TLS"
    except TimeoutError:
        problem = f"it does not answer within {_TIMEOUT_SECONDS:.0f} seconds"
    except OSError as error:
        problem = f"it cannot be connected to ({error.strerror})"
    except (ValueError, KeyError):
        problem = "its address is malformed"
    return problem


def _tls_context(query: str) -> ssl.SSLContext:
    """Return a context as redis-py makes it from the query of its URL."""
    options = parse_qs(query)
    context = ssl.create_default_context(cafile=options.get("ssl_ca_certs", [None])[0])
    if options.get("ssl_cert_reqs") == ["none"]:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
