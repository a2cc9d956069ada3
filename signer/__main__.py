"""`python -m signer`: the only process that opens wallets' keys. It has settings and a user of its own."""

from app.core.host import harden

harden()

import base64  # noqa: E402
import gc  # noqa: E402
import secrets  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

from app.config import Settings  # noqa: E402
from app.db.unit_of_work import read_only_unit  # noqa: E402
from app.factory import create_app  # noqa: E402
from app.wallets.core import custody  # noqa: E402
from signer.journal import Journal  # noqa: E402
from signer.server import SignerServer  # noqa: E402
from signer.service import SignerService  # noqa: E402


def main() -> None:
    """Serve `SIGNER_SOCKET` until a signal stops the process."""
    # It signs no session and checks no code, so any secrets do for them.
    pepper = base64.b64encode(secrets.token_bytes(32)).decode()
    settings = Settings.load(secret_key=secrets.token_hex(32), code_peppers=f"unused:{pepper}")
    url = settings.signer_database_url.get_secret_value()
    if not settings.signer_socket or not url:
        sys.exit("The signer process needs SIGNER_SOCKET and SIGNER_DATABASE_URL.")
    app = create_app(settings.model_copy(update={"signer_socket": ""}), serves=False)
    with app.app_context(), read_only_unit() as session:
        stored, network = custody.stored_network(session), settings.network.value
    if stored not in (None, network):
        sys.exit(f"The keys in this database are of {stored}, and NETWORK is {network}.")
    uids = [int(uid) for uid in settings.signer_client_uids.split(",") if uid]
    server = SignerServer(app, SignerService(Journal(url)), settings.signer_socket, uids)
    # Whoever can write to the socket's folder can put another socket there.
    Path(settings.signer_socket).parent.mkdir(mode=0o750, exist_ok=True)
    listener = server.listen()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: listener.close())
    gc.collect()
    gc.freeze()  # what lives as long as the process is not looked through again
    server.serve(listener)


if __name__ == "__main__":
    main()
