"""Values that handlers return, on their way from a worker to Redis: JSON after its digest, or why there is no value.

>>> pack_result('"12.50"')
'=44d697bfcd73f22ef9f1ec35d77f860f"12.50"'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from rq_core.errors import InvalidOption
from rq_core.model.unique_names import digest_of

VALUE_MAX: Final = 64 * 1024
"""Bytes of a value as JSON; a longer one is not kept."""
NO_VALUE: Final = "!"
"""The character before the reason why a value is not kept. JSON does not begin with it."""
AuditResult = Literal["digest", "full"]
"""The part of a kept value that the log keeps: its digest, or also the value."""
DIGEST: Final = "digest"
FULL: Final = "full"
_MARKS: Final[Mapping[str, str]] = {DIGEST: "=", FULL: "+"}
"""The character before the digest, by what the log keeps. JSON begins with neither."""
_NOTE_LENGTH: Final = 33


def check_audit_result(value: str) -> str:
    """Return ``value`` if it is ``digest`` or ``full``. Raises InvalidOption."""
    if value not in _MARKS:
        raise InvalidOption.of("audit_result", value, f"must be {' or '.join(map(repr, _MARKS))}")
    return value


def pack_result(value_json: str, kept: str = DIGEST) -> str:
    """Return a value after its digest. ``kept`` is the part of it that the log keeps: digest or full."""
    return f"{_MARKS[kept]}{digest_of(value_json)}{value_json}"


def is_logged(packed: str) -> bool:
    """Whether a value goes into the log as well."""
    return packed.startswith(_MARKS[FULL])


def unpack_result(packed: str) -> tuple[str, str]:
    """Return the note on a value, and the value. The note is the digest, after ``+`` if the log keeps the value, too;
    it is empty if there is no value, or no digest of it."""
    if packed.startswith(("=", "+")):
        return packed[:_NOTE_LENGTH].removeprefix("="), packed[_NOTE_LENGTH:]
    return "", packed
