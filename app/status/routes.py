"""`GET /v1/health`, whether the service can serve, and `GET /v1/health/live`, whether this process responds."""

from typing import Any

import structlog
from marshmallow import fields
from sqlalchemy.exc import SQLAlchemyError

from app.db import leases
from app.db.unit_of_work import read_only_unit
from app.identity import guards
from app.state import app_state
from app.status.doctor import Severity, run_checks
from app.version import VERSION
from app.web.blueprint import PUBLIC, Blueprint
from app.web.schemas import Schema

_log = structlog.get_logger(__name__)
blp = Blueprint("status", guard=PUBLIC, url_prefix="/v1", cacheable=True)
platform_status = Blueprint("platform_status", guard=guards.MASTER_KEY, url_prefix="/v1/platform")


class HealthChecks(Schema):
    """The state of each dependency."""

    database = fields.String(required=True, metadata={"enum": ["ok", "unreachable"]})
    redis = fields.String(required=True, metadata={"enum": ["ok", "unreachable"]})
    worker = fields.String(required=True, metadata={"enum": ["ok", "silent"]})


class Health(Schema):
    """Health of the service; 503 and `degraded` without the database."""

    status = fields.String(required=True, metadata={"enum": ["ok", "degraded"]})
    version = fields.String(required=True)
    checks = fields.Nested(HealthChecks, required=True)


class Liveness(Schema):
    """The process that received the request responds."""

    status = fields.String(required=True, metadata={"enum": ["ok"]})


@blp.get("/health")
@blp.response(200, Health)
@blp.alt_response(503, schema=Health, description="The database cannot be reached.")
def get_health() -> tuple[dict[str, Any], int]:
    """Return the health of the service. Without Redis or workers, what is pending is only delayed."""
    database, worker = "unreachable", "silent"
    try:
        with read_only_unit() as session:
            is_alive = leases.is_alive(session)
        database, worker = "ok", "ok" if is_alive else "silent"
    except Exception as error:
        # Any other failure of the database is also unhealthy.
        if not isinstance(error, SQLAlchemyError):
            _log.exception("health_check_failed")
    redis = "ok" if app_state().ports.queue.ping() else "unreachable"
    status, answer = ("ok", 200) if database == "ok" else ("degraded", 503)
    checks = {"database": database, "redis": redis, "worker": worker}
    return {"status": status, "version": VERSION, "checks": checks}, answer


@blp.get("/health/live")
@blp.response(200, Liveness)
def get_liveness() -> dict[str, str]:
    """Return that the process responds, without the database and Redis."""
    return {"status": "ok"}


class FindingShape(Schema):
    """The state of a component, and how to fix it."""

    component = fields.String(required=True)
    severity = fields.String(required=True, metadata={"enum": [*Severity]})
    message = fields.String(required=True)
    fix = fields.String(required=True)


class Diagnosis(Schema):
    """What `flask doctor` finds; `ok` if nothing fails."""

    ok = fields.Boolean(required=True)
    findings = fields.List(fields.Nested(FindingShape), required=True)


@platform_status.get("/doctor")
@platform_status.response(200, Diagnosis)
def run_doctor() -> dict[str, Any]:
    """Check settings, database, Redis, workers, chains, prices and providers; takes some seconds."""
    found = list(run_checks())
    return {"ok": all(each.severity is not Severity.FAIL for each in found), "findings": found}
