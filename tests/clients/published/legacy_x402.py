"""Pays with PyPI's x402 0.2, as its users write it. Arguments: the URL and the payer's private key."""

import base64
import json
import sys
from importlib.metadata import version

from eth_account import Account
from x402.clients.requests import x402_requests

_, url, key = sys.argv
with x402_requests(Account.from_key(key)) as session:
    answer = session.get(url, timeout=60)
settled = json.loads(base64.b64decode(answer.headers["X-PAYMENT-RESPONSE"]))
paid = {"status": answer.status_code, "body": answer.json(), "settled": settled}
sys.stdout.write(json.dumps({**paid, "version": version("x402")}))
