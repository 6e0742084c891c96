r"""Keeps secrets out of the log: the texts of a handler's error pass through the app's redactor.

No log line has a job's arguments. Events and SQL have the arguments, unredacted, only if a producer asks for that
(``audit_payload="full"``). The text of an exception is up to the code that raised it, so an app may have a function
through which each message and traceback passes before a worker sends it to Redis or logs it. Passwords in URLs are
always masked (:mod:`rq_core.masking`).

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
"""Maximum number of characters of an error's type, message and traceback in the log, so that one error does not fill
a job's history."""

_PACKAGE: Final = str(Path(__file__).parents[2]) + os.sep
_MUST: Final = "must be a function of a text, or its import path, like settings:redact"


def redactor_of(said: Redact | str | None) -> Redact | None:
    """Return the redactor for an option's value. The value is a function, or a function's import path; None means no
    redactor.

    Raises InvalidOption if there is no such function."""
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
    """Return ``text`` after redaction. Never raises: if the redactor fails, a note replaces the whole text."""
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
    """Return an exception as the JSON object that events carry. It is ASCII: lone surrogates and NUL are escaped.

    Message and traceback pass through ``redact`` before they are shortened: in a shortened text, ``redact`` might not
    recognize a secret that was cut.
    """
    lines = traceback_of(error) if with_traceback else None
    return describe_words(type(error).__name__, message_of(error), lines, redact=redact)


def describe_words(
    kind: str, message: str, lines: str | None, *, redact: Redact | None = None
) -> str:
    """Return the same JSON object as describe_error, for an exception that is passed as texts. ``kind`` is the name of
    its class, and ``lines`` is its traceback."""
    kind = shorten(printable(kind), TYPE_MAX)
    facts = {"type": kind, "message": excerpt(redacted(redact, message), MESSAGE_MAX)}
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
    """Return the traceback of an exception, with the exception's causes. The frames of rq-core that called the handler
    are left out.

    Never raises."""
    try:
        begins = error.__traceback__
        while begins is not None and begins.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            begins = begins.tb_next
        trace = begins or error.__traceback__
        return "".join(traceback.format_exception(type(error), error, trace))
    except BaseException as unsaid:  # noqa: BLE001 - a property of the user's exception; also SystemExit
        return f"<no traceback: asking for it raised {type(unsaid).__name__}>"
