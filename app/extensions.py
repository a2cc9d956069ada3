"""Unbound extension objects: `app.factory` binds them, `app.db.unit_of_work` manages the session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flask_smorest import Api
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import DeclarativeBase


class Base(DeclarativeBase):
    """The declarative base of all tables."""


# Objects stay readable after commit, without being reloaded.
db = SQLAlchemy(model_class=Base, session_options={"expire_on_commit": False})
if TYPE_CHECKING:
    Model = Base
else:
    Model = db.Model
api = Api()
