"""Checks the answer to an unpaid POST with PyPI's `x402-conformance`, whose command sends GET only.

Arguments: the URL, the body.
"""

import json
import sys
from urllib.request import Request, urlopen

from x402conf.harness import run_resource

url, body = sys.argv[1:]


def post(request: Request, timeout: float) -> object:
    request.method, request.data = "POST", body.encode()
    request.add_header("Content-Type", "application/json")
    return urlopen(request, timeout=timeout)  # noqa: S310 - the service of the test


sys.stdout.write(json.dumps(run_resource(url, opener=post)["checks"]))
