"""The table of price lists, without the prices, which take a tenth of a second to load."""

from datetime import datetime

from sqlalchemy import String, Text
from sqlalchemy.orm import Mapped, mapped_column

from app.db.tables import UtcDateTime
from app.extensions import Model


class PriceList(Model):
    """The last list that was accepted, and the reason why the last one was refused, if that came later."""

    __tablename__ = "price_lists"

    kind: Mapped[str] = mapped_column(String(10), primary_key=True)
    digest: Mapped[str] = mapped_column(String(64))
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    content: Mapped[str] = mapped_column(Text)
