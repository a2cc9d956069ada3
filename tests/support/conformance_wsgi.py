"""The service with what the conformance suite of a version needs; `MCP_OFFER` names the version."""

from __future__ import annotations

import os

from app.mcp.messages import STATELESS
from tests.support.mcp_offer import offer_conformance
from wsgi import app

offer_conformance(app, is_stateless=os.environ["MCP_OFFER"] == STATELESS)
