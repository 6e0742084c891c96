"""Boxes. The box of a durable job has the steps that the job has saved. Scripts write it into the key ``boxes``, a
hash:

    LIFE        job=ID entries=3 bytes=812 mail=1
    LIFE|1      charge saved at=1795226390000 fence=1795225746504-88 digest=70c5…
                {"id":"ch_1"}
    LIFE|2      receipt begun at=1795226390007 fence=1795225746504-88
    LIFE|3      approval waits at=1795226390007 fence=1795225746504-88 until=1795312790007
    LIFE>1      approval at=1795226391000 digest=70c5… key=webhook-9
                {"ok":true}
    LIFE>approval    1
    LIFE=webhook-9   1

LIFE is the id of the box. Its members are:

- LIFE: the header.
- LIFE|N: the entry with the number N.
- LIFE>N: the signal with the number N.
- LIFE>NAME: the numbers of the signals of this name that no wait has taken.
- LIFE=KEY: the number of the signal with this key.

>>> read_entry("receipt begun at=5 fence=1-2").is_saved
False
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple

LIFE_PATTERN: Final = r"[0-9a-f]{16}"
NAME_PATTERN: Final = r"[A-Za-z0-9_.:=#%-]{1,64}"
"""The pattern of the name of an entry in a durable job's box. It is the name of the step, ``NAME#2`` for the second
step with this name, or ``NAME=KEY`` for a step with a key (percent-encoded)."""
ENTRIES_MAX: Final = 10_000
"""Maximum number of entries (steps, waits and sleeps) in the box of a durable job."""
OWN_PREFIX: Final = "rq_core."
"""The prefix of the names of entries that rq-core itself writes into a job's box. Users must not name a step so."""
LIFE_ENTRY: Final = f"{OWN_PREFIX}life"
"""The name of an entry that a worker writes if it needs the id of the job's box (its life) before the first step. The
entry is begun and never saved."""
MAP_PREFIX: Final = "map:"
"""The prefix of the name of the entry, in a parent's box, that records the enqueue of the children of a ``map`` or
``run``."""
UNDO_PREFIX: Final = "undo:"
"""The prefix of the name of the entry that records the undo of a step."""

SIGNAL_PATTERN: Final = r"(?![0-9]+\Z)[A-Za-z0-9_.:-]{1,58}"
"""The pattern of the name of a signal, a wait or a sleep. A name must not consist of digits only, because a box uses
these names for the numbers of signals. (A name may have 58 characters at most: if a wait is repeated, its entry gets
``#2``, ``#3``… at the end.)"""
KEY_PATTERN: Final = r"[A-Za-z0-9_.:-]{1,128}"
"""The pattern of the key by which Redis recognizes a signal that is sent again."""
SIGNALS_MAX: Final = 10_000
"""Maximum number of signals that a job may receive."""
WAITS_MAX: Final = 64
"""Maximum number of waits and sleeps at which a parked job may wait at the same time."""
OVER: Final = "over"
"""The text in the field ``note`` of a wait or a sleep that ended because its time was over before a signal came."""

_LIFE: Final = re.compile(r"[^|>=]*")
_HEADER: Final = re.compile(r"job=(\S+) entries=(\d+) bytes=(\d+)(?: mail=(\d+))?")
_ENTRY: Final = re.compile(
    r"(\S+) (begun|saved|waits|sleeps) at=(\d+) fence=(\d+-\d+)"
    r"(?: digest=(\S*)(?: from=(\d+))?| until=(\d+))?"
)
_SIGNAL: Final = re.compile(r"(\S+)(?: at=(\d+) digest=(\S*)(?: key=(\S+))?)?")


class BoxHeader(NamedTuple):
    """The parsed header of a box (the saved steps of a durable job): the job, and how much the box contains."""

    job_id: str
    entries: int
    size: int
    """Total bytes of the values of all entries and signals."""
    signals: int = 0
    """Number of signals that the job has received."""


class StepEntry(NamedTuple):
    """One parsed entry of a box: a step that was begun or saved, a wait, or a sleep."""

    name: str
    is_saved: bool
    at_ms: int
    fence: str
    """Fence of the claim that wrote the entry."""
    note: str | None = None
    """The digest of the value or, if the value is not kept, the reason. None: the step was only begun."""
    value: str | None = None
    """The value that the step returned, as JSON. None: the value is not kept, or the step was only begun."""
    kind: str = "step"
    """The kind of the entry: ``wait`` or ``sleep`` while the job waits at the entry, otherwise ``step``."""
    until_ms: int | None = None
    """Unix ms at which the wait or sleep ends. None: it has no end, or the entry is not a wait or a sleep."""
    message: int | None = None
    """The number of the signal that a wait has taken; None: the entry is not a wait that took a signal."""

    @property
    def is_in_doubt(self) -> bool:
        """True for a step that was begun and not saved: the effect of the step may or may not have happened. rq-core's
        own entries have no effect, so they are never in doubt."""
        is_own = self.name.startswith((OWN_PREFIX, MAP_PREFIX))
        return not self.is_saved and self.kind == "step" and not is_own


class Signal(NamedTuple):
    """One parsed signal (a value that was sent to a durable job under a name), as the job's box has it."""

    name: str
    at_ms: int | None
    """Unix ms at which the signal came. None: Redis had lost the signal after a wait had taken it, and a worker put the
    signal back."""
    key: str | None
    """The key by which Redis recognizes a repeated signal; None: Redis has no key for the signal."""
    value: str | None
    """The signal's value, as JSON. None: a wait has taken the signal."""
    digest: str | None = None
    """The digest of the value; None: Redis had lost the signal."""


_KINDS: Final = {"waits": "wait", "sleeps": "sleep"}
_WORDS: Final = {"step": "begun", "wait": "waits", "sleep": "sleeps"}


def new_life() -> str:
    """Return a new random id (life) for the box that will have the steps of a durable job: 16 hex digits."""
    return secrets.token_hex(8)


def read_header(text: str) -> BoxHeader:
    """Parse the header of a box (the saved steps of a durable job). Raises ValueError if the text is not a header."""
    found = _HEADER.fullmatch(text)
    if found is None:
        raise ValueError(f"the header of the box reads {text!r}")
    return BoxHeader(found[1], int(found[2]), int(found[3]), int(found[4] or 0))


def header_in(text: str | None) -> BoxHeader | None:
    """Parse the header of a box (the saved steps of a durable job). Returns None if the text is missing or not a
    header.
    """
    try:
        return read_header(text or "")
    except ValueError:
        return None


def write_header(job_id: str, entries: int, size: int, signals: int = 0) -> str:
    """Return the text of the header of a box (the saved steps of a durable job), in the form that Lua scripts write."""
    mail = f" mail={signals}" if signals else ""
    return f"job={job_id} entries={entries} bytes={size}{mail}"


def life_of(member: str) -> str:
    """Return the id (life) of the box to which a field of the Redis hash ``boxes`` belongs. ``member`` is the field's
    name, which begins with the id.
    """
    return _LIFE.match(member)[0]  # type: ignore[index]


def reserved_prefix(name: str) -> str | None:
    """Return the reserved prefix with which a name begins; None: users may give the name to steps, waits, sleeps and
    signals.

    >>> reserved_prefix("rq_core.life")
    'rq_core.'
    """
    return next(
        (each for each in (OWN_PREFIX, UNDO_PREFIX, MAP_PREFIX) if name.startswith(each)), None
    )


def signal_of(entry: str) -> str:
    """Return the name of the signals that a wait takes. ``entry`` is the name of the wait's entry, such as
    ``approval#2``.
    """
    return entry.partition("#")[0]


def read_signal(text: str) -> Signal:
    """Parse a signal, as the box of a durable job has it. Raises ValueError if the text is not a signal."""
    line, waits, value = text.partition("\n")
    found = _SIGNAL.fullmatch(line)
    if found is None:
        raise ValueError(f"the signal reads {line!r}")
    at_ms = None if found[2] is None else int(found[2])
    return Signal(found[1], at_ms, found[4], value if waits else None, found[3])


def signal_text(
    name: str, at_ms: int, digest: str, key: str | None = None, value: str | None = None
) -> str:
    """Return the text of a signal, in the form that Lua scripts write it into a job's box. ``value`` is the signal's
    value as JSON; None if a wait has taken the signal.

    >>> signal_text("approval", 5, "70c5", "webhook-9")
    'approval at=5 digest=70c5 key=webhook-9'
    """
    line = f"{name} at={at_ms} digest={digest}" + (f" key={key}" if key else "")
    return line if value is None else f"{line}\n{value}"


def members_of_signals(signals: Mapping[int, str]) -> dict[str, str]:
    """Return the members of a box that follow from its signals: the signals, the list of untaken signals by name, and
    the keys.

    ``signals`` are the texts of the signals by number, in order. The names of the members are returned without the
    box's id (life), which comes before them in Redis. A signal whose text is unreadable is in no list and has no key.

    >>> list(members_of_signals({1: signal_text("approval", 5, "70c5", "webhook-9", "7")}))
    ['>1', '=webhook-9', '>approval']
    """
    members: dict[str, str] = {}
    waiting: dict[str, list[str]] = {}
    for number, text in signals.items():
        members[f">{number}"] = text
        with suppress(ValueError):
            signal = read_signal(text)
            if signal.value is not None:
                waiting.setdefault(signal.name, []).append(str(number))
            if signal.key is not None:
                members[f"={signal.key}"] = str(number)
    return members | {f">{name}": " ".join(numbers) for name, numbers in waiting.items()}


def entry_text(entry: StepEntry) -> str:
    """Return the text of an entry of a box (a step, a wait or a sleep of a durable job), in the form that Lua scripts
    write.

    >>> entry_text(StepEntry("charge", True, 5, "1-2", "too_large"))
    'charge saved at=5 fence=1-2 digest=too_large'
    """
    word = "saved" if entry.is_saved else _WORDS[entry.kind]
    line = f"{entry.name} {word} at={entry.at_ms} fence={entry.fence}"
    if entry.is_saved:
        line += f" digest={entry.note}"
    if entry.message is not None:
        line += f" from={entry.message}"
    if entry.until_ms is not None and not entry.is_saved:
        line += f" until={entry.until_ms}"
    return line if entry.value is None else f"{line}\n{entry.value}"


def entry_in(text: str | None) -> StepEntry | None:
    """Parse an entry of a box (a step, a wait or a sleep of a durable job). Returns None if the text is missing or not
    an entry.
    """
    try:
        return read_entry(text or "")
    except ValueError:
        return None


def signal_in(text: str | None) -> Signal | None:
    """Parse a signal, as the box of a durable job has it. Returns None if the text is missing or not a signal."""
    try:
        return read_signal(text or "")
    except ValueError:
        return None


def read_entry(text: str) -> StepEntry:
    """Parse an entry of a box (a step, a wait or a sleep of a durable job). Raises ValueError if the text is not an
    entry.
    """
    line, is_there, value = text.partition("\n")
    found = _ENTRY.fullmatch(line)
    if found is None:
        raise ValueError(f"the entry reads {line!r}")
    name, word, at, fence, note, took, until = found.groups()
    is_saved = word == "saved"
    if is_saved is (note is None) or (until is not None and word == "begun"):
        raise ValueError(f"the entry reads {line!r}")
    return StepEntry(
        name,
        is_saved,
        int(at),
        fence,
        note,
        value if is_there and is_saved else None,
        _KINDS.get(word, "step"),
        None if until is None else int(until),
        None if took is None else int(took),
    )


class KnownBox(NamedTuple):
    """The entries that Redis must have in a job's box when a claim of the job ends without success. If Redis lacks one
    of them, the claim stays in force."""

    life: str = ""
    entries: str = ""
    """Numbers of entries, separated by commas. ``+`` after a number means that the entry must be saved, and not only
    begun."""


NOTHING_KNOWN: Final = KnownBox()
"""The value for a run that requires no entries in Redis."""
