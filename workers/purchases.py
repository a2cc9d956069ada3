"""`python -m workers.purchases`: the worker of purchases, one at a time. Start one for each free core.

It serves its own queue in its own process. The browser runs in another one, which has no secret of the service.
"""

import sys

import structlog
from sqlalchemy.exc import SQLAlchemyError

from app.db import leases
from app.db.leases import ProcessKind
from app.jobs import QueueName
from app.shopping import purchase_runner
from app.state import app_state
from app.wallets.core import custody
from workers.context import application, job
from workers.job_worker import serve

_log = structlog.get_logger(__name__)


@job
def buy(purchase_id: str) -> None:
    """Run a purchase, unless it was started before."""
    purchase_runner.run_purchase(purchase_id)


def record_heartbeat() -> None:
    """Record the heartbeat of the shopping worker."""
    with application().app_context():
        try:
            leases.record(ProcessKind.SHOPPER)
        except SQLAlchemyError as error:
            _log.warning("shopper_heartbeat_failed", error=type(error).__name__)


def main() -> None:
    """Serve the shopping queue until a signal stops it."""
    app = application()
    with app.app_context():
        if app_state().ports.shopper is None:
            sys.exit("No browser: install chromium-headless-shell or Chromium, or set BROWSER_EXECUTABLE.")
        custody.assert_network()
    serve([QueueName.SHOPPING], on_heartbeat=record_heartbeat)


if __name__ == "__main__":
    main()
