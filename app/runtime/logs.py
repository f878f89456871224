"""Configure logging to standard error, as text or as one JSON object a line."""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime

import msgspec

from app.config import Settings

QUIET = ("alembic", "procrastinate", "httpx")  # libraries that log every step
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# X-Request-ID of the request that this task or thread works for.
REQUEST_ID: ContextVar[bytes] = ContextVar("request_id", default=b"")


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger and message; `request_id` and `exception` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := REQUEST_ID.get():
            line["request_id"] = request_id.decode()
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def configure(settings: Settings) -> None:
    """Log at the level and in the form of the settings; libraries only from warnings up, unless debugging."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if settings.log_format == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler])
    if settings.log_format == "json":
        for name in ("uvicorn", "uvicorn.error"):  # which have handlers of their own
            logging.getLogger(name).handlers.clear()
            logging.getLogger(name).propagate = True
    if settings.log_level != "debug":
        for name in QUIET:
            logging.getLogger(name).setLevel(logging.WARNING)
