"""Messages to owners: no text of an agent adds a header or a recipient."""

from __future__ import annotations

import pytest
from marshmallow import ValidationError

from app.adapters.smtp import SmtpMailer
from app.web.fields import Email


@pytest.mark.parametrize("text", ["a\r\nBcc: eve@example.com", "a\nBcc: eve@example.com", "a\rBcc: eve@example.com"])
def test_a_line_break_adds_no_header_to_a_message(text: str) -> None:
    mailer = SmtpMailer("smtp://127.0.0.1:1", sender="purser@example.com")
    with pytest.raises(ValueError, match="linefeed or carriage return"):
        mailer.send("ada@example.com", subject=text, text="", message_id="1")
    with pytest.raises(ValueError, match="linefeed or carriage return"):
        mailer.send(f"{text}@example.com", subject="", text="", message_id="1")
    with pytest.raises(ValidationError):
        Email().deserialize(f"ada@example.com{text[1:]}")
