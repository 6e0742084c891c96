"""The names of unique jobs: how they are made of arguments, and where ``slots`` has them.

A name is ``TASK/KEY=VALUE,KEY=VALUE``, its values percent-encoded JSON. Text has no quotes there, unless it could
then be read as a value of another type. A name is ``TASK/DIGEST`` where it is made of all arguments, or would be too
long.

    >>> unique_name("send", {"tenant": '"a b"'})
    'send/tenant=a%20b'
    >>> unique_name("send", {"ref": "7"}), unique_name("send", {"ref": '"7"'})
    ('send/ref=7', 'send/ref=%227%22')
    >>> unique_name("send", None, digest="70c5")
    'send/70c5'
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote

from rq_core.errors import InvalidOption
from rq_core.model.lib.text import bytes_of, number_in

NAME_MAX: Final = 200
"""Characters of a name; a longer one becomes its digest."""
_FIELD: Final = "unique|"
"""What stands before a name in the field of ``slots`` that has the job which holds it."""
_SAFE: Final = ".:~-_"
_OTHER: Final = re.compile(
    r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|null|true|false|NaN|-?Infinity|[\[{].*",
    re.DOTALL,
)
"""JSON that is no text."""
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
        raise InvalidOption.of("name", name, must)
    return name


class Stands(NamedTuple):
    """Until when a job holds its name, as its line and its events say it (``name_stands``)."""

    how: str
    """``done``: until it ends; ``claim``: until its first claim; ``until``: an instant, whatever becomes of it."""
    at_ms: int | None = None
    """``claim``: when it is ready at the latest; ``until``: that instant (Unix ms)."""

    def holds(self, *, dead: bool, claims: int) -> bool:
        """Whether a job in Redis holds its name by how it stands alone."""
        return not dead and (self.how == "done" or (self.how == "claim" and not claims))


HELD_TO_THE_END: Final = Stands("done")
"""Of a name that stands until its job ends."""


def read_stands(text: str | None) -> Stands:
    """Read ``name_stands``. Raises ValueError for what no script wrote.

    >>> read_stands("until:1795225806504")
    Stands(how='until', at_ms=1795225806504)
    """
    if text is None:
        return HELD_TO_THE_END
    how, _, at_ms = text.partition(":")
    if how not in ("claim", "until"):
        raise ValueError(f"a name stands until {text!r}, which is unknown")
    return Stands(how, int(at_ms))


class Holder(NamedTuple):
    """What the field of a name says."""

    job_id: str
    until_ms: int | None = None
    """Until when the name stands, whatever becomes of the job (Unix ms); None: as the job's line says."""


def read_holder(value: str) -> Holder:
    """Read the field of ``slots`` that says who holds a name."""
    job_id, _, until = value.partition(" ")
    return Holder(job_id, number_in(until))


def until_instants(slots: Mapping[str, str]) -> dict[str, Holder]:
    """The names in ``slots`` that stand until an instant, by field."""
    holders = {field: read_holder(value) for field, value in slots.items() if is_name_field(field)}
    return {field: holder for field, holder in holders.items() if holder.until_ms is not None}


def name_mark(name: str) -> str:
    """The member of ``expiring`` at the instant until which a name stands."""
    return f"name|{name}"


def digest_of(text: str) -> str:
    """32 hex digits for a text."""
    import hashlib  # To declare a task needs no OpenSSL.

    return hashlib.sha256(bytes_of(text)).hexdigest()[:32]


def unique_name(task: str, keys: Mapping[str, str] | None, *, digest: str = "") -> str:
    """Return the name of a job by the ``keys`` that it is unique per, each with its value as canonical JSON; None: it
    is unique per all its arguments, of which ``digest`` is made."""
    if keys is None:
        return f"{task}/{digest}"
    said = ",".join(f"{quote(name)}={_said(value)}" for name, value in keys.items())
    name = f"{task}/{said}"
    return name if len(name) <= NAME_MAX else f"{task}/{digest_of(said)}"


def _said(value: str) -> str:
    """A value as it stands in a name: text without its quotes, unless another type's value would stand there so."""
    plain = value[1:-1] if value.startswith('"') and "\\" not in value else value
    is_text = plain is not value and not _OTHER.fullmatch(plain)
    return quote(plain if is_text else value, safe=_SAFE)
