"""Formatters of log lines, as text for people or as JSON for programs.

Each line is one event, with its details as fields.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from rq_core.errors import InvalidOption
from rq_core.model.lib.text import excerpt, printable

TEXT_MAX: Final = 20_000
"""Maximum number of characters of a message with its traceback in a log line. The same limit holds for each extra field
of the line."""
FORMATS: Final = ("text", "json")
_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {
    "message",
    "asctime",
    "taskName",
}


configured: tuple[str, str] | None = None
"""The format and level of the last call of ``configure``; child processes are configured in the same way."""


class TextFormatter(logging.Formatter):
    """Formats a log record as ``2026-11-21T10:00:00.123Z INFO message name=value …``. Further lines of the record are
    indented."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        facts = "".join(
            f" {name}={printable(_kept(str(value)))}"
            for name, value in record.__dict__.items()
            if name not in _STANDARD
        )
        text = record.getMessage()
        if record.exc_info:
            text += f"{facts}\n{self.formatException(record.exc_info)}"
            facts = ""
        elif record.exc_text:
            text += f"{facts}\n{record.exc_text}"
            facts = ""
        # A job may log any text: only a record's first line begins in the first column, so no job can forge a record.
        lines = [printable(line) for line in _kept(text).split("\n")]
        return f"{at[:-6]}Z {record.levelname} " + "\n    ".join(lines) + facts


def warn_with_traceback(
    log: logging.Logger,
    message: str,
    args: tuple[object, ...],
    lines: str | None,
    facts: dict[str, Any],
) -> None:
    """Log a warning with a traceback. The traceback is the text ``lines``; every formatter of the standard library
    prints it."""
    if not log.isEnabledFor(logging.WARNING):
        return
    where = log.findCaller(stacklevel=2)
    record = log.makeRecord(
        log.name, logging.WARNING, *where[:2], message, args, None, where[2], facts
    )
    record.exc_text = lines
    log.handle(record)


def _kept(text: str) -> str:
    """Return a text with its passwords masked, then shortened to about TEXT_MAX characters."""
    return excerpt(text, TEXT_MAX)


def configure(
    form: str = "text", level: str = "INFO", *, filters: Iterable[logging.Filter] = ()
) -> None:
    """Send the logs of the whole process to standard error. Raises InvalidOption for an unknown format or level."""
    if form not in FORMATS:
        raise InvalidOption.of("log_format", form, f"must be {' or '.join(FORMATS)}")
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise InvalidOption.of("log_level", level, "must be debug, info, warning or error")
    global configured  # noqa: PLW0603 - logging is the process' own, too
    configured = (form, level)
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        from pythonjsonlogger.json import JsonFormatter

        class Formatter(JsonFormatter):
            def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
                kept = {n: _kept(v) if isinstance(v, str) else v for n, v in log_data.items()}
                return super().process_log_record(kept)

        handler.setFormatter(
            Formatter(
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
