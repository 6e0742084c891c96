"""The names of unique jobs: how they are made from arguments, and how the key ``slots`` stores them.

A name is ``TASK/KEY=VALUE,KEY=VALUE``. The values are JSON, percent-encoded. A string has quotes only if it has a
backslash or could be mistaken for another JSON value. If all arguments count, or if the name would be too long, the
name is ``TASK/DIGEST``.

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
"""Maximum number of characters of a name. In place of a longer name, a digest is used."""
_FIELD: Final = "unique|"
"""The prefix of the fields of ``slots`` that are about unique names. The unique name follows; the field's value is the
job that holds the name."""
_SAFE: Final = ".:~-_"
_OTHER: Final = re.compile(
    r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|null|true|false|NaN|-?Infinity|[\[{].*",
    re.DOTALL,
)
"""Matches JSON values that are not strings."""
_NAME: Final = re.compile(r"[A-Za-z0-9_.:-]+/[A-Za-z0-9_.:~%/=,-]*")


def name_field(name: str) -> str:
    """Return the name of the field of ``slots`` whose value is the job that holds a unique name."""
    return f"{_FIELD}{name}"


def is_name_field(field: str) -> bool:
    """Return whether a field of ``slots`` is about a unique name. Other fields are about call slots, whose names have
    no slash."""
    return field.startswith(_FIELD) and "/" in field


def name_in(field: str) -> str:
    """Return the unique name that the name of a field of ``slots`` contains."""
    return field.removeprefix(_FIELD)


def check_unique_name(name: str) -> str:
    """Return ``name`` if it is a valid unique name. Raises InvalidOption otherwise."""
    if not _NAME.fullmatch(name):
        must = "must be the name of a unique job, like TASK/KEY=VALUE: `rq-core unique QUEUE` lists them"
        raise InvalidOption.of("name", name, must)
    return name


class Stands(NamedTuple):
    """The time for which a job holds its unique name: the parsed field ``name_stands`` of a state line or an event."""

    how: str
    """``done``: until the job ends; ``claim``: until the job's first claim; ``until``: until an instant, even if the
    job has ended."""
    at_ms: int | None = None
    """For ``claim``: the latest time at which the job becomes ready. For ``until``: the instant until which the name is
    held. Both are Unix ms."""

    def holds(self, *, dead: bool, claims: int) -> bool:
        """Return whether a job in Redis holds its name: the job must not be dead and, with ``claim``, must not have
        been claimed yet. ``claims`` is the number of the job's claims.

        Returns False for a name that is held until an instant, because the job's state does not matter then.
        """
        return not dead and (self.how == "done" or (self.how == "claim" and not claims))


HELD_TO_THE_END: Final = Stands("done")
"""The value for a name that is held until its job ends."""


def read_stands(text: str | None) -> Stands:
    """Parse the field ``name_stands``; None means that the job holds its name until it ends. Raises ValueError for an
    invalid text.

    >>> read_stands("until:1795225806504").at_ms
    1795225806504
    """
    if text is None:
        return HELD_TO_THE_END
    how, _, at_ms = text.partition(":")
    if how not in ("claim", "until"):
        raise ValueError(f"the field name_stands reads {text!r}, which no script writes")
    return Stands(how, int(at_ms))


class Holder(NamedTuple):
    """The job that holds a unique name, parsed from a field of ``slots``."""

    job_id: str
    until_ms: int | None = None
    """The instant (Unix ms) until which the name is held, even if the job has ended; None: the job's state line says
    how long the name is held."""


def read_holder(value: str) -> Holder:
    """Parse the value of a field of ``slots`` that is about a unique name."""
    job_id, _, until = value.partition(" ")
    return Holder(job_id, number_in(until))


def until_instants(slots: Mapping[str, str]) -> dict[str, Holder]:
    """Return the holders of the names that are held until an instant, by field of ``slots``."""
    holders = {field: read_holder(value) for field, value in slots.items() if is_name_field(field)}
    return {field: holder for field, holder in holders.items() if holder.until_ms is not None}


def name_mark(name: str) -> str:
    """Return the member of the key ``expiring`` for a name that is held until an instant."""
    return f"name|{name}"


def digest_of(text: str) -> str:
    """Return the digest of a text: the first 32 hex digits of its SHA-256."""
    import hashlib  # To declare a task needs no OpenSSL.

    return hashlib.sha256(bytes_of(text)).hexdigest()[:32]


def unique_name(task: str, keys: Mapping[str, str] | None, *, digest: str = "") -> str:
    """Return a job's unique name. ``keys`` has the values of the arguments in the name, as canonical JSON.

    If ``keys`` is missing (None), all arguments count, and ``digest`` is their digest.
    """
    if keys is None:
        return f"{task}/{digest}"
    said = ",".join(f"{quote(name)}={_said(value)}" for name, value in keys.items())
    name = f"{task}/{said}"
    return name if len(name) <= NAME_MAX else f"{task}/{digest_of(said)}"


def _said(value: str) -> str:
    """Return a JSON value as a unique name contains it. A string has quotes only if it has a backslash or could be
    mistaken for another JSON value."""
    plain = value[1:-1] if value.startswith('"') and "\\" not in value else value
    is_text = plain is not value and not _OTHER.fullmatch(plain)
    return quote(plain if is_text else value, safe=_SAFE)
