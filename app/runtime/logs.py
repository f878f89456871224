"""Configure logging to standard error."""

from __future__ import annotations

import logging

from app.config import Settings

QUIET = ("alembic", "procrastinate", "httpx")  # libraries that log every step


def configure(settings: Settings) -> None:
    """Log at the level of the settings; libraries only from warnings up, unless debugging."""
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if settings.log_level != "debug":
        for name in QUIET:
            logging.getLogger(name).setLevel(logging.WARNING)
