r"""Keeping secrets out of the log: what a handler's error says passes through the app's redactor.

Arguments are in no log line, and in events and SQL only where a producer asks for that
(``audit_payload="full"``), as they are. What an exception says is up to the code that
raised it, so an app may have a function that every such text goes through, message and traceback,
before it is sent to Redis or logged.

    def redact(text: str) -> str:
        return re.sub(r"token=\w+", "token=…", text)

    app = App(redact=redact)            # or redact="settings:redact", or worker --redact settings:redact
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Final

from rq_core.errors import InvalidOption

Redact = Callable[[str], str]
"""Takes what an exception says, and returns what may be kept of it."""

_MUST: Final = "must be a function of a text, or its import path, like settings:redact"


def redactor_of(said: Redact | str | None) -> Redact | None:
    """The redactor that an option means. Raises InvalidOption if there is no such function."""
    if said is None or callable(said):
        return said
    if not isinstance(said, str):
        raise InvalidOption(option="redact", value=said, must=_MUST)
    module_name, _, attribute = said.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute, None)
    except (ModuleNotFoundError, ValueError, TypeError):
        found = None
    if not attribute or not callable(found):
        raise InvalidOption(option="redact", value=said, must=_MUST)
    redact: Redact = found
    return redact


def redacted(redact: Redact | None, text: str) -> str:
    """What may be kept of ``text``. Never raises: what a broken redactor was given is left out whole."""
    if redact is None:
        return text
    try:
        kept: object = redact(text)
    except BaseException as error:  # noqa: BLE001 - it is the user's code; also SystemExit
        return f"<left out: the redactor raised {type(error).__name__}>"
    if not isinstance(kept, str):
        return f"<left out: the redactor returned {type(kept).__name__}>"
    return kept
