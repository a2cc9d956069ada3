"""Sells `/report` for a cent with the FastAPI middleware of `x402`, as its documentation shows.

Arguments: the facilitator's URL, the network, the payee.
"""

import json
import socket
import sys
from importlib.metadata import version

import uvicorn
from fastapi import FastAPI
from x402 import x402ResourceServer
from x402.http import FacilitatorConfig, HTTPFacilitatorClient, PaymentOption
from x402.http.middleware.fastapi import PaymentMiddlewareASGI
from x402.http.types import RouteConfig
from x402.mechanisms.evm.exact import ExactEvmServerScheme

facilitator, network, payee = sys.argv[1:]
server = x402ResourceServer(HTTPFacilitatorClient(FacilitatorConfig(url=facilitator)))
server.register(network, ExactEvmServerScheme())
app = FastAPI()


@app.get("/report")
async def report() -> dict[str, str]:
    return {"report": "sunny"}


option = PaymentOption(scheme="exact", pay_to=payee, price="$0.01", network=network)
app.add_middleware(PaymentMiddlewareASGI, routes={"GET /report": RouteConfig(accepts=[option])}, server=server)
with socket.create_server(("127.0.0.1", 0)) as listening:
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    sys.stdout.write(json.dumps({"url": url, "version": version("x402")}) + "\n")
    sys.stdout.flush()
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])
