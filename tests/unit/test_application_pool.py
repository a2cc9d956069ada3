"""Applications of the pool are shared by tests: those of other settings only where they were not made of these."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from app.config import Settings
from app.factory import build_state, create_app
from tests.support.applications import READ_ANEW, READ_ONCE, ports_for, settings_for

read: set[str] = set()


class NotedSettings(Settings):
    """Settings that note which of them are read while an application is made, except for its state."""

    def __getattribute__(self, name: str) -> Any:
        if name in Settings.model_fields and not _builds_state(sys._getframe(1)):
            read.add(name)
        return super().__getattribute__(name)


def _builds_state(frame: FrameType | None) -> bool:
    return frame is not None and (frame.f_code is build_state.__code__ or _builds_state(frame.f_back))


def test_each_setting_that_an_application_is_made_of_decides_which_one_is_shared() -> None:
    for url in ("sqlite:////dev/null", "postgresql://localhost/none"):
        settings = settings_for(url)
        ports = ports_for(settings)
        settings.__class__ = NotedSettings
        create_app(settings, ports=ports)
    assert read - READ_ANEW <= set(READ_ONCE)
