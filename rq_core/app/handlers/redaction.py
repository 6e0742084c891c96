r"""Keeps secrets out of the log: the text of a handler's error passes through the app's redactor.

No log line has a job's arguments. Events and SQL have them only with ``audit_payload="full"``, and then without
redaction. The text of an exception may have secrets, so an app may have a redactor: a function that changes each
message and traceback before a worker logs it or sends it to Redis. Passwords in URLs are always masked
(:mod:`rq_core.masking`).

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
"""Maximum number of characters of an error's traceback in the log. TYPE_MAX and MESSAGE_MAX limit the error's type and
message. So one error does not fill a job's history."""

_PACKAGE: Final = str(Path(__file__).parents[2]) + os.sep
_MUST: Final = "must be a function of a text, or its import path, like settings:redact"


def redactor_of(said: Redact | str | None) -> Redact | None:
    """Return the redactor for the value of an option: a function, or a function's import path. None stays None.

    Raises InvalidOption for any other value, and if there is no function at the path.
    """
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
    """Return ``text`` after redaction. If the redactor fails, return a note in place of the text. Never raises."""
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
    error: BaseException,
    *,
    with_traceback: bool = True,
    redact: Redact | None = None,
    excepted: str = "",
) -> str:
    """Convert an exception to the JSON object that events carry. The JSON is ASCII: lone surrogates and NUL are
    escaped.

    The message and the traceback pass through ``redact`` before they are shortened, since ``redact`` might not
    recognize half of a secret. ``excepted`` has the names (families) of the job's breakers that do not count the error,
    joined by spaces.
    """
    lines = traceback_of(error) if with_traceback else None
    return describe_words(
        type(error).__name__, message_of(error), lines, redact=redact, excepted=excepted
    )


def describe_words(
    kind: str,
    message: str,
    lines: str | None,
    *,
    redact: Redact | None = None,
    excepted: str = "",
) -> str:
    """Convert an exception of another process, which is known only as texts, to the JSON object that events carry. See
    describe_error.

    ``kind`` is the name of the exception's class, and ``lines`` is its traceback.
    """
    kind = shorten(printable(kind), TYPE_MAX)
    facts = {"type": kind, "message": excerpt(redacted(redact, message), MESSAGE_MAX)}
    if excepted:
        facts["excepted"] = excepted
    if lines is not None:
        facts["traceback"] = excerpt(redacted(redact, lines), TRACEBACK_MAX)
    return json.dumps(facts)


def traceback_in(said: str) -> str | None:
    """Return the traceback in the JSON that describe_error returned; None if the JSON has no traceback."""
    lines: str | None = json.loads(said).get("traceback")
    return lines and lines.rstrip("\n")


def message_of(error: BaseException) -> str:
    """Return the message of an exception. Never raises, even if the exception's ``__str__`` does."""
    try:
        return str(error)
    except BaseException as unsaid:  # noqa: BLE001 - it is the user's code; also SystemExit
        return f"<no words: str() raised {type(unsaid).__name__}>"


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an exception and of its causes, without rq-core's own frames at the beginning. Never
    raises."""
    try:
        begins = error.__traceback__
        while begins is not None and begins.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            begins = begins.tb_next
        trace = begins or error.__traceback__
        return "".join(traceback.format_exception(type(error), error, trace))
    except BaseException as unsaid:  # noqa: BLE001 - a property of the user's exception; also SystemExit
        return f"<no traceback: asking for it raised {type(unsaid).__name__}>"
