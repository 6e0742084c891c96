r"""Keeping secrets out of the log: the texts of a handler's error pass through the app's redactor.

Arguments are in no log line, and in events and SQL only where a producer asks for that
(``audit_payload="full"``), as they are. What an exception says is up to the code that
raised it, so an app may have a function that every such text goes through, message and traceback,
before it is sent to Redis or logged. Passwords in URLs are masked in any case (:mod:`rq_core.masking`).

    def redact(text: str) -> str:
        return re.sub(r"token=\w+", "token=…", text)

    app = App(redact=redact)            # or redact="settings:redact", or worker --redact settings:redact
"""

from __future__ import annotations

import importlib
import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rq_core.errors import InvalidOption
from rq_core.model.lib.text import excerpt, printable, shorten

Redact = Callable[[str], str]
"""A function that takes the text of an exception, and returns the text that may be kept."""

TYPE_MAX: Final = 200
MESSAGE_MAX: Final = 2_000
TRACEBACK_MAX: Final = 8_000
"""Characters of an error that go into the log; a job's history is not the place for a core dump."""

_PACKAGE: Final = str(Path(__file__).parents[2]) + os.sep
_MUST: Final = "must be a function of a text, or its import path, like settings:redact"


def redactor_of(said: Redact | str | None) -> Redact | None:
    """Return the redactor that an option names. Raises InvalidOption if there is no such function."""
    if said is None or callable(said):
        return said
    if not isinstance(said, str):
        raise InvalidOption.of("redact", said, _MUST)
    module_name, _, attribute = said.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute, None)
    except (ModuleNotFoundError, ValueError, TypeError):
        found = None
    if not attribute or not callable(found):
        raise InvalidOption.of("redact", said, _MUST)
    redact: Redact = found
    return redact


def redacted(redact: Redact | None, text: str) -> str:
    """Return the part of ``text`` that may be kept. Never raises: a text that breaks the redactor is left out whole."""
    if redact is None:
        return text
    try:
        kept: object = redact(text)
    except BaseException as error:  # noqa: BLE001 - it is the user's code; also SystemExit
        return f"<left out: the redactor raised {type(error).__name__}>"
    if not isinstance(kept, str):
        return f"<left out: the redactor returned {type(kept).__name__}>"
    return kept


def describe_error(
    error: BaseException, *, with_traceback: bool = True, redact: Redact | None = None
) -> str:
    """Return an exception as the JSON object that events carry. ASCII only: lone surrogates and NUL are escaped.

    Its texts pass through ``redact`` before they are shortened: half a secret is a secret, too.
    """
    lines = traceback_of(error) if with_traceback else None
    return describe_words(type(error).__name__, message_of(error), lines, redact=redact)


def describe_words(
    kind: str, message: str, lines: str | None, *, redact: Redact | None = None
) -> str:
    """Return the same object for an exception that is known by its texts only. ``lines`` is its traceback."""
    kind = shorten(printable(kind), TYPE_MAX)
    facts = {"type": kind, "message": excerpt(redacted(redact, message), MESSAGE_MAX)}
    if lines is not None:
        facts["traceback"] = excerpt(redacted(redact, lines), TRACEBACK_MAX)
    return json.dumps(facts)


def traceback_in(said: str) -> str | None:
    """Return the traceback in an error's JSON, as ``describe_error`` writes it; None if it has no traceback."""
    lines: str | None = json.loads(said).get("traceback")
    return lines and lines.rstrip("\n")


def message_of(error: BaseException) -> str:
    """Return an exception's own text. Never raises, whatever the ``__str__`` of its class does."""
    try:
        return str(error)
    except BaseException as unsaid:  # noqa: BLE001 - it is the user's code; also SystemExit
        return f"<no words: str() raised {type(unsaid).__name__}>"


def traceback_of(error: BaseException) -> str:
    """The traceback of an exception, with its causes, from the handler on; never raises either."""
    try:
        begins = error.__traceback__
        while begins is not None and begins.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            begins = begins.tb_next
        trace = begins or error.__traceback__
        return "".join(traceback.format_exception(type(error), error, trace))
    except BaseException as unsaid:  # noqa: BLE001 - a property of the user's exception; also SystemExit
        return f"<no traceback: asking for it raised {type(unsaid).__name__}>"
