"""The form in which workers send the values of handlers to Redis: JSON after its digest, or the reason of a missing
value.

>>> pack_result('"12.50"')
'=44d697bfcd73f22ef9f1ec35d77f860f"12.50"'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from rq_core.errors import InvalidOption
from rq_core.model.unique_names import digest_of

VALUE_MAX: Final = 64 * 1024
"""Maximum number of bytes of a value as JSON; a longer value is not kept."""
NO_VALUE: Final = "!"
"""The character before the reason why a value is not kept. JSON does not begin with it."""
AuditResult = Literal["digest", "full"]
"""The part of a kept value that the log keeps: its digest, or also the value."""
DIGEST: Final = "digest"
FULL: Final = "full"
_MARKS: Final[Mapping[str, str]] = {DIGEST: "=", FULL: "+"}
"""The character before the digest, by the part of the value that the log keeps. JSON begins with neither character."""
_NOTE_LENGTH: Final = 33


def check_audit_result(value: str) -> str:
    """Return ``value`` if it is ``digest`` or ``full``. Raises InvalidOption."""
    if value not in _MARKS:
        raise InvalidOption.of("audit_result", value, f"must be {' or '.join(map(repr, _MARKS))}")
    return value


def pack_result(value_json: str, kept: str = DIGEST) -> str:
    """Return a packed value: a mark, the digest, the value. ``kept`` is the part that the log keeps: digest or full."""
    return f"{_MARKS[kept]}{digest_of(value_json)}{value_json}"


def is_logged(packed: str) -> bool:
    """Return whether the log keeps the whole of a packed value, too."""
    return packed.startswith(_MARKS[FULL])


def unpack_result(packed: str) -> tuple[str, str]:
    """Return the note and the value of a packed value. The note is the digest, after ``+`` if the log keeps the value,
    too; it is empty, and the text unchanged, if the text has no digest."""
    if packed.startswith(("=", "+")):
        return packed[:_NOTE_LENGTH].removeprefix("="), packed[_NOTE_LENGTH:]
    return "", packed
