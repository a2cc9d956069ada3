"""`GET /v1/health`."""

from __future__ import annotations

from typing import Any

import structlog
from marshmallow import fields
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from app.core import heartbeats
from app.core.unit_of_work import reading
from app.ports import provider
from app.version import VERSION
from app.web.blueprint import OPEN, Blueprint
from app.web.schemas import Schema

_log = structlog.get_logger(__name__)
blp = Blueprint("status", __name__, guard=OPEN, url_prefix="/v1", description="Whether the service is well.")


class Checks(Schema):
    """What was looked at."""

    database = fields.String(required=True, metadata={"enum": ["ok", "unreachable"]})
    redis = fields.String(required=True, metadata={"enum": ["ok", "unreachable"]})
    worker = fields.String(required=True, metadata={"enum": ["ok", "silent"]})


class Health(Schema):
    """Whether the service is well; 503 and `degraded` without the database."""

    status = fields.String(required=True, metadata={"enum": ["ok", "degraded"]})
    version = fields.String(required=True)
    checks = fields.Nested(Checks, required=True)


@blp.get("/health")
@blp.response(200, Health)
@blp.alt_response(503, schema=Health, description="The database cannot be reached.")
def get_health() -> tuple[dict[str, Any], int]:
    """Tell whether the service is well. Redis or workers away only delay what is pending."""
    try:
        with reading() as session:
            session.execute(text("SELECT 1"))
            worker = "ok" if heartbeats.is_fresh() else "silent"
        database = "ok"
    except SQLAlchemyError:
        database, worker = "unreachable", "silent"
    except Exception:
        # Whoever asks wants to know whether it works, and it does not.
        _log.exception("health_unreadable")
        database, worker = "unreachable", "silent"
    redis = "ok" if provider.current().queue.ping() else "unreachable"
    healthy = database == "ok"
    return {
        "status": "ok" if healthy else "degraded",
        "version": VERSION,
        "checks": {"database": database, "redis": redis, "worker": worker},
    }, 200 if healthy else 503
