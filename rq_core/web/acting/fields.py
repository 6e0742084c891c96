"""The fields of the forms of actions, and their conversion to options of jobs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from rq_core.app.options import EditOptions
from rq_core.errors import InvalidOption
from rq_core.model.table.machine import PRIORITIES

Form = Mapping[str, str]

FIELD_MAX: Final = 500
"""Maximum number of characters of a field."""


class FormField(NamedTuple):
    """A field of a form on the web page."""

    name: str
    label: str
    kind: str = "text"
    """The type of the HTML input: ``text``, ``number`` or ``checkbox``; or ``choice``, a list of options."""
    choices: tuple[str, ...] = ()
    hint: str = ""
    required: bool = False


EDITED: Final = (
    FormField("priority", "priority", "choice", tuple(map(str, PRIORITIES))),
    FormField("delay", "ready in (seconds)", "number", hint="0: at once"),
    FormField("expires", "expires in (seconds)", "number"),
    FormField("no_deadline", "no deadline", "checkbox"),
)

COPIED_WITH: Final = (
    FormField("args", "changed arguments", hint='{"provider": "b"}: the others stay'),
    FormField("name", "name", hint="its id is ID.rNAME; a job has one copy of a name"),
)


def edit_options(form: Form) -> EditOptions:
    """Return the job options that the form of an edit changes. Raises InvalidOption."""
    options: EditOptions = {"priority": form.get("priority") or None}  # type: ignore[typeddict-item]
    delay = _seconds(form, "delay")
    if delay == 0:
        options["now"] = True
    else:
        options["delay"] = delay
    expires = _seconds(form, "expires")
    if form.get("no_deadline"):
        if expires is not None:
            raise InvalidOption.of("expires", form["expires"], "must be empty for no deadline")
        options["expires"] = None
    elif expires is not None:
        options["expires"] = expires
    return options


def _seconds(form: Form, name: str) -> float | None:
    text = form.get(name, "")
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise InvalidOption.of(name, text[:50], "must be a number of seconds") from None


def copy_args(form: Form) -> dict[str, Any]:
    """Return the arguments that a form of a copy changes; the copies keep all others. Raises InvalidOption."""
    text = form.get("args", "")
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        must = 'must be a JSON object, like {"provider": "b"}'
        raise InvalidOption.of("args", text[:50], must)
    return found
