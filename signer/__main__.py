"""`python -m signer`: the only process that opens wallets' keys. It has settings and a user of its own."""

from app.core.host import harden

harden()

import signal  # noqa: E402
import sys  # noqa: E402

from app.config import Settings  # noqa: E402
from app.factory import create_app  # noqa: E402
from app.wallets.core import custody  # noqa: E402
from signer.journal import Journal  # noqa: E402
from signer.server import SignerServer  # noqa: E402
from signer.service import SignerService  # noqa: E402


def main() -> None:
    """Serve `SIGNER_SOCKET` until a signal stops the process."""
    settings = Settings.load()
    url = settings.signer_database_url.get_secret_value()
    if not settings.signer_socket or not url:
        sys.exit("The signer process needs SIGNER_SOCKET and SIGNER_DATABASE_URL.")
    app = create_app(settings.model_copy(update={"signer_socket": ""}))
    with app.app_context():
        custody.assert_network()
    uids = [int(uid) for uid in settings.signer_client_uids.split(",") if uid]
    server = SignerServer(app, SignerService(Journal(url)), settings.signer_socket, uids)
    listener = server.listen()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: listener.close())
    server.serve(listener)


if __name__ == "__main__":
    main()
