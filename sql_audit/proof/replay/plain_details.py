"""Recognizes the details that most events have, so that the rules about a detail are not applied to each of them.

:mod:`sql_audit.proof.replay.contradictions` has rules about the JSON in an event's detail: its fields, the types of
their values, and the text itself. It parses the detail, checks each value, and encodes the fields again. That would
take a tenth of the time of ``audit verify``. Here, one regular expression for each type of event matches only details
without a fault. A detail that it does not match may be right: only the rules show that.

    >>> is_plain = plain_details(["fence", "value"], ["fence"]).fullmatch
    >>> bool(is_plain('{"fence":"7-1"}')), bool(is_plain('{"value":"1"}')), bool(is_plain('{"fence": "7-1"}'))
    (True, False, False)
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from sql_audit.mirror.field_types import KINDS, PLAIN_JSON

_END: Final = r"(?:,(?!\})|(?=\}))"
"""Matches after a field that may be the last: the comma before another field, or nothing before the object's end."""


def plain_details(names: Iterable[str], always: Collection[str]) -> re.Pattern[str]:
    """Return a regular expression for details without a fault. It matches only whole details (``fullmatch``).

    ``names`` are the fields that a detail may have, in the order in which the mirror writes them. ``always`` are those
    that it must have. A matching detail has each field at most once, and no null, blank or escape. So it is the only
    JSON text of its fields that the mirror writes. A field whose values have no plain form is left out: a detail with
    it does not match.
    """
    plain = [name for name in names if KINDS.get(name) in PLAIN_JSON]
    if not set(always).issubset(plain):
        return _NONE
    last = max(map(plain.index, always), default=-1)
    fields = []
    for place, name in enumerate(plain):
        field = f'"{name}":{PLAIN_JSON[KINDS[name]]}{"," if place < last else _END}'
        # "(?:…|)" is tried in less time than "(?:…)?".
        fields.append(field if name in always else f"(?:{field}|)")
    return re.compile(rf"\{{{''.join(fields)}\}}")


_NONE: Final = re.compile(r"(?!)")
"""Matches no text."""
