"""The form in which workers send results to Redis: ``=`` or ``+``, a digest and JSON; or ``!`` and the reason why no
result is kept.

>>> pack_result('"12.50"')
'=44d697bfcd73f22ef9f1ec35d77f860f"12.50"'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from rq_core.errors import InvalidOption
from rq_core.model.unique_names import digest_of

VALUE_MAX: Final = 64 * 1024
"""Maximum number of bytes of a result as JSON; a longer result is not kept."""
NO_VALUE: Final = "!"
"""The character before the reason why a result is not kept. No JSON text begins with this character."""
AuditResult = Literal["digest", "full"]
"""The part of a kept result that the audit log keeps: only the digest, or also the result itself (full)."""
DIGEST: Final = "digest"
FULL: Final = "full"
_MARKS: Final[Mapping[str, str]] = {DIGEST: "=", FULL: "+"}
"""The character before the digest, by the part of the result that the log keeps. JSON begins with neither character."""
_NOTE_LENGTH: Final = 33


def check_audit_result(value: str) -> str:
    """Return ``value`` if it is ``digest`` or ``full``. Raises InvalidOption otherwise."""
    if value not in _MARKS:
        raise InvalidOption.of("audit_result", value, f"must be {' or '.join(map(repr, _MARKS))}")
    return value


def pack_result(value_json: str, kept: str = DIGEST) -> str:
    """Return a result in the form for Redis: ``=`` or ``+``, the digest, and the JSON. ``kept`` says what the log
    keeps: ``digest``, or ``full`` for the JSON, too."""
    return f"{_MARKS[kept]}{digest_of(value_json)}{value_json}"


def is_logged(packed: str) -> bool:
    """Return whether the log also keeps the JSON of a packed result."""
    return packed.startswith(_MARKS[FULL])


def unpack_result(packed: str) -> tuple[str, str]:
    """Return the note and the JSON of a packed result. The note is the digest, after a ``+`` if the log also keeps the
    JSON.

    If there is no digest, the note is empty, and the text is returned unchanged.
    """
    if packed.startswith(("=", "+")):
        return packed[:_NOTE_LENGTH].removeprefix("="), packed[_NOTE_LENGTH:]
    return "", packed
