"""`python -m workers`: an RQ worker for all queues except shopping. Several may run."""

from app.jobs import QueueName
from app.wallets.core import custody
from workers.context import application
from workers.job_worker import serve


def main() -> None:
    """Serve the queues until a signal stops it."""
    with application().app_context():
        custody.assert_network()
    serve(name for name in QueueName if name is not QueueName.SHOPPING)


if __name__ == "__main__":
    main()
