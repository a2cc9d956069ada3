"""Pays for a request by MPP with PyPI's `pympp`, as its documentation shows.

Arguments: the URL, the payer's key.
"""

import asyncio
import base64
import json
import sys
from importlib.metadata import version

from eth_account import Account
from mpp.client import Mpp
from mpp.methods.evm import BASE_USDC
from mpp.methods.evm import client as evm

url, key = sys.argv[1:]


async def main() -> None:
    method = evm.charge(currency=BASE_USDC, account=Account.from_key(key), max_amount="0.05")
    async with Mpp(methods=[method]) as mpp:
        answer = await mpp.fetch(url)
    receipt = answer.headers["Payment-Receipt"]
    settled = json.loads(base64.urlsafe_b64decode(receipt + "=" * (-len(receipt) % 4)))
    found = {"status": answer.status_code, "body": answer.json(), "settled": settled, "version": version("pympp")}
    sys.stdout.write(json.dumps(found))


asyncio.run(main())
