"""gunicorn's own lines, such as that it listens, in the application's log."""

from __future__ import annotations

from typing import Any

from gunicorn import glogging


class Logger(glogging.Logger):  # type: ignore[misc, unused-ignore]
    """Leaves lines to the handlers of the root logger, which the application configures while it is loaded."""

    def setup(self, cfg: Any) -> None:
        """Configure the loggers; also after a reload of the settings."""
        super().setup(cfg)
        # A file that the operator named keeps gunicorn's format.
        if cfg.errorlog == "-":
            self.error_log.handlers.clear()
            self.error_log.propagate = True
