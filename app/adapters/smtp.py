"""E-mail over SMTP: `smtp://` with STARTTLS, `smtps://` with TLS from the start."""

import smtplib
import ssl
from email.message import EmailMessage
from email.utils import formatdate
from urllib.parse import unquote, urlsplit

from app.core.ip_ranges import is_loopback
from app.db.unit_of_work import assert_no_unit
from app.ports.errors import OutcomeUnknown, PortError, Rejected, Unreachable

_PORTS = {"smtp": 587, "smtps": 465}
_SECONDS = 15


class SmtpMailer:
    """Opens a connection for each message: notices are few. A server on this host needs no encryption."""

    def __init__(self, url: str, *, sender: str) -> None:
        """Store `smtp[s]://[user:password@]host[:port]` and the address that messages come from."""
        parts = urlsplit(url)
        self._is_encrypted = parts.scheme == "smtps"
        self._host, self._port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
        self._user, self._password = unquote(parts.username or ""), unquote(parts.password or "")
        self._sender = sender

    def send(self, recipient: str, *, subject: str, text: str, message_id: str) -> None:
        assert_no_unit()
        message = EmailMessage()
        message["From"], message["To"], message["Subject"] = self._sender, recipient, subject
        message["Message-ID"] = f"<{message_id}@{self._sender.rpartition('@')[2]}>"
        message["Date"] = formatdate()
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(text)
        is_sending = False
        try:
            with self._connect() as server:
                if not self._is_encrypted and not is_loopback(self._host):
                    server.starttls(context=ssl.create_default_context())
                if self._user:
                    server.login(self._user, self._password)
                is_sending = True
                server.send_message(message)
        except (OSError, smtplib.SMTPException) as error:
            raise _outcome(error, is_sending=is_sending) from None

    def _connect(self) -> smtplib.SMTP:
        if self._is_encrypted:
            context = ssl.create_default_context()
            return smtplib.SMTP_SSL(self._host, self._port, timeout=_SECONDS, context=context)
        return smtplib.SMTP(self._host, self._port, timeout=_SECONDS)


def _outcome(error: Exception, *, is_sending: bool) -> PortError:
    """Return what an error of the exchange means. Texts of the server are not kept: they may quote the message."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return Rejected("recipient_refused")
    if isinstance(error, smtplib.SMTPAuthenticationError):
        return Unreachable("login_refused")
    if isinstance(error, smtplib.SMTPResponseException):
        return Rejected(f"smtp_{error.smtp_code}")
    return OutcomeUnknown("broken") if is_sending else Unreachable("no_connection")
