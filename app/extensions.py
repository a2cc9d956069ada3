"""Unbound extension objects. No logic: `app.factory` binds them, `app.core.unit_of_work` owns the session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flask_limiter import Limiter
from flask_limiter.util import get_remote_address
from flask_migrate import Migrate
from flask_smorest import Api
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.orm import DeclarativeBase


class Base(DeclarativeBase):
    """The declarative base of every table."""


# Objects stay readable after commit: stories return snapshots, and nothing reloads behind a reader's back.
db = SQLAlchemy(model_class=Base, session_options={"expire_on_commit": False})
if TYPE_CHECKING:
    Model = Base
else:
    Model = db.Model
migrate = Migrate()
api = Api()
limiter = Limiter(key_func=get_remote_address)
