"""The names of unique jobs: how they are made of arguments, and where ``slots`` has them.

A name is ``TASK/KEY=VALUE,KEY=VALUE``, its values percent-encoded, or ``TASK/DIGEST`` where it is made of all
arguments, or would be too long.

    >>> unique_name("send", {"tenant": '"a b"'})
    'send/tenant=a%20b'
    >>> unique_name("send", None, digest="70c5")
    'send/70c5'
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from rq_core.errors import InvalidOption

NAME_MAX: Final = 200
"""Characters of a name; a longer one becomes its digest."""
_FIELD: Final = "unique|"
"""What stands before a name in the field of ``slots`` that has the job which holds it."""
_SAFE: Final = ".:~-_"
_NAME: Final = re.compile(r"[A-Za-z0-9_.:-]+/[A-Za-z0-9_.:~%/=,-]*")


def name_field(name: str) -> str:
    """The field of ``slots`` that says who holds a name."""
    return f"{_FIELD}{name}"


def is_name_field(field: str) -> bool:
    """Whether a field of ``slots`` is one of those. Names have a slash, the names of slots have none."""
    return field.startswith(_FIELD) and "/" in field


def name_in(field: str) -> str:
    """The name that such a field is about."""
    return field.removeprefix(_FIELD)


def check_unique_name(name: str) -> str:
    """Return a name, if it can be one of a unique job. Raises InvalidOption."""
    if not _NAME.fullmatch(name):
        must = "must be the name of a unique job, like TASK/KEY=VALUE: `rq-core unique QUEUE` lists them"
        raise InvalidOption(option="name", value=name, must=must)
    return name


def digest_of(text: str) -> str:
    """32 hex digits for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def unique_name(task: str, keys: Mapping[str, str] | None, *, digest: str = "") -> str:
    """Return the name of a job by the ``keys`` that it is unique per, each with its value as canonical JSON; None: it
    is unique per all its arguments, of which ``digest`` is made."""
    if keys is None:
        return f"{task}/{digest}"
    said = ",".join(f"{quote(name)}={_said(value)}" for name, value in keys.items())
    name = f"{task}/{said}"
    return name if len(name) <= NAME_MAX else f"{task}/{digest_of(said)}"


def _said(value: str) -> str:
    """A value as it stands in a name: text without its quotes."""
    plain = value[1:-1] if value.startswith('"') and "\\" not in value else value
    return quote(plain, safe=_SAFE)
