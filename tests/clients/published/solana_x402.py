"""Pays on Solana with PyPI's x402 2. Arguments: the URL, the payer's keypair in base58, the address of a node."""

import base64
import json
import sys
from importlib.metadata import version

from solders.keypair import Keypair
from x402 import x402ClientSync
from x402.http.clients.requests import x402_requests
from x402.mechanisms.svm import KeypairSigner
from x402.mechanisms.svm.exact import register_exact_svm_client

_, url, key, node = sys.argv
client = x402ClientSync()
register_exact_svm_client(client, KeypairSigner(Keypair.from_base58_string(key)), rpc_url=node)
with x402_requests(client) as session:
    answer = session.get(url, timeout=60)
settled = json.loads(base64.b64decode(answer.headers["PAYMENT-RESPONSE"]))
paid = {"status": answer.status_code, "body": answer.json(), "settled": settled}
sys.stdout.write(json.dumps({**paid, "version": version("x402")}))
