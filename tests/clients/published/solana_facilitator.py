"""Verifies and settles a payment with the facilitator of PyPI's x402 2, as a seller's middleware does.

Each line of its input is a JSON list: the fee payer's keypair in base58, the address of a node, the value of the
payment header, the terms in JSON.
"""

import base64
import json
import sys
from importlib.metadata import version
from typing import Any

from solders.keypair import Keypair
from x402 import x402FacilitatorSync
from x402.mechanisms.svm import FacilitatorKeypairSigner
from x402.mechanisms.svm.exact import register_exact_svm_facilitator
from x402.schemas import PaymentPayload
from x402.schemas.v1 import PaymentPayloadV1, PaymentRequirementsV1


def answer(key: str, node: str, header: str, stated: str) -> dict[str, Any]:
    signer = FacilitatorKeypairSigner(Keypair.from_base58_string(key), rpc_url=node)
    document = json.loads(base64.b64decode(header))
    if document["x402Version"] == 1:
        payment = PaymentPayloadV1.model_validate(document)
        terms = PaymentRequirementsV1.model_validate(json.loads(stated))
    else:
        payment = PaymentPayload.model_validate(document)
        terms = payment.accepted
    facilitator = x402FacilitatorSync()
    register_exact_svm_facilitator(facilitator, signer, [str(terms.network)])
    verified = facilitator.verify(payment, terms)
    settled = facilitator.settle(payment, terms)
    result = {"verified": verified.is_valid, "settled": settled.success, "transaction": settled.transaction}
    reasons = {
        "reasons": [verified.invalid_reason, verified.invalid_message, settled.error_reason, settled.error_message]
    }
    return {**result, **reasons, "version": version("x402")}


for line in sys.stdin:
    sys.stdout.write(json.dumps(answer(*json.loads(line))) + "\n")
    sys.stdout.flush()
