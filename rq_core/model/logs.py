"""Log lines: one event each, its facts as fields. Text for people, JSON for programs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from rq_core.errors import InvalidOption

FORMATS: Final = ("text", "json")
_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {
    "message",
    "asctime",
    "taskName",
}


configured: tuple[str, str] | None = None
"""What configure was last called with, for processes that are started from here."""


class TextFormatter(logging.Formatter):
    """``2026-11-21T10:00:00.123Z INFO message name=value …``"""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        facts = "".join(
            f" {name}={value}" for name, value in record.__dict__.items() if name not in _STANDARD
        )
        line = f"{at[:-6]}Z {record.levelname} {record.getMessage()}{facts}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def configure(
    form: str = "text", level: str = "INFO", *, filters: Iterable[logging.Filter] = ()
) -> None:
    """Send all logs to standard error. Raises InvalidOption for an unknown format or level."""
    if form not in FORMATS:
        raise InvalidOption(option="log_format", value=form, must=f"must be {' or '.join(FORMATS)}")
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise InvalidOption(
            option="log_level", value=level, must="must be debug, info, warning or error"
        )
    global configured  # noqa: PLW0603 - logging is the process' own, too
    configured = (form, level)
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        from pythonjsonlogger.json import JsonFormatter

        handler.setFormatter(
            JsonFormatter(
                "{levelname}{name}{message}",
                style="{",
                timestamp="at",
                rename_fields={"levelname": "level", "name": "logger"},
            )
        )
    else:
        handler.setFormatter(TextFormatter())
    for each in filters:
        handler.addFilter(each)
    logging.basicConfig(handlers=[handler], level=number, force=True)
