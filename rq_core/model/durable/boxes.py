"""Boxes. The box of a durable job has the steps that the job has saved; scripts write it into the key ``boxes``.

    LIFE        job=ID entries=2 bytes=812
    LIFE|1      charge saved at=1795226390000 fence=1795225746504-88 digest=70c5…
                {"id":"ch_1"}
    LIFE|2      receipt begun at=1795226390007 fence=1795225746504-88

>>> read_entry("receipt begun at=5 fence=1-2").is_saved
False
"""

from __future__ import annotations

import re
import secrets
from typing import Final, NamedTuple

LIFE_PATTERN: Final = r"[0-9a-f]{16}"
NAME_PATTERN: Final = r"[A-Za-z0-9_.:=#%-]{1,64}"
"""The pattern of an entry's name. The name is the step's own name, ``NAME#2``, or ``NAME=KEY`` with a percent-encoded
key."""
ENTRIES_MAX: Final = 10_000
"""Maximum number of entries of a job."""

_HEADER: Final = re.compile(r"job=(\S+) entries=(\d+) bytes=(\d+)")
_ENTRY: Final = re.compile(r"(\S+) (begun|saved) at=(\d+) fence=(\d+-\d+)(?: digest=(\S*))?")


class BoxHeader(NamedTuple):
    """The header of a box, parsed."""

    job_id: str
    entries: int
    size: int
    """Total bytes of the values of all entries."""


class StepEntry(NamedTuple):
    """One entry of a box, parsed: a step that was begun or saved."""

    name: str
    is_saved: bool
    at_ms: int
    fence: str
    """Fence of the claim that wrote the entry."""
    note: str | None = None
    """The digest of the value or, if the value is not kept, the reason. None: the step was only begun."""
    value: str | None = None
    """The value that the step returned, as JSON. None: the value is not kept, or the step was only begun."""


def new_life() -> str:
    """Return a new life, which is the random id of a job's box."""
    return secrets.token_hex(8)


def read_header(text: str) -> BoxHeader:
    """Parse the header of a box. Raises ValueError for any other text."""
    found = _HEADER.fullmatch(text)
    if found is None:
        raise ValueError(f"the header of the box reads {text!r}")
    return BoxHeader(found[1], int(found[2]), int(found[3]))


def header_in(text: str | None) -> BoxHeader | None:
    """Parse the header of a box; None for any other text."""
    try:
        return read_header(text or "")
    except ValueError:
        return None


def write_header(job_id: str, entries: int, size: int) -> str:
    """Return the text of a box's header, as scripts write it."""
    return f"job={job_id} entries={entries} bytes={size}"


def entry_text(entry: StepEntry) -> str:
    """Return the text of an entry, as scripts write it.

    >>> entry_text(StepEntry("charge", True, 5, "1-2", "too_large"))
    'charge saved at=5 fence=1-2 digest=too_large'
    """
    line = f"{entry.name} {'saved' if entry.is_saved else 'begun'} at={entry.at_ms} fence={entry.fence}"
    if entry.is_saved:
        line += f" digest={entry.note}"
    return line if entry.value is None else f"{line}\n{entry.value}"


def read_entry(text: str) -> StepEntry:
    """Parse an entry of a box. Raises ValueError for any other text."""
    line, is_there, value = text.partition("\n")
    found = _ENTRY.fullmatch(line)
    if found is None or (found[2] == "begun") is (found[5] is not None):
        raise ValueError(f"the entry reads {line!r}")
    is_saved = found[2] == "saved"
    kept = value if is_there and is_saved else None
    return StepEntry(found[1], is_saved, int(found[3]), found[4], found[5], kept)
