"""The progress of a job and the chunks of its stream, as its handler reports them. The script ``show`` writes them into
the key ``shown``:

    ID      claim=2 fence=1795225746504-88 at=1795226391000 says=2 said=7 start=40 from=1 to=57 bytes=812 base=0
            37/120 uploading
    ID~57   claim=2 at=1795226391000
            what the handler has emitted

>>> read_said("37/120 uploading")
(37, 120, 'uploading')
>>> said_as_text(0.5, None, "")
'0.5/-'
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from rq_core.errors import InvalidOption

TEXT_MAX: Final = 200
"""Maximum number of characters of the text beside a job's progress. A longer text is cut."""
CHUNK_BYTES_MAX: Final = 16 * 1024
"""Maximum number of bytes of one chunk of a job's stream, the text that its handler emits while it runs."""
CHUNKS_MAX: Final = 1_000
"""Maximum number of chunks that Redis keeps of a job; ``lua/include/shown/shown.lua`` has the same number."""
STREAM_BYTES_MAX: Final = 1024 * 1024
"""Maximum number of bytes of the chunks that Redis keeps of a job; ``lua/show/showing.lua`` has the same number."""
KEPT_MS: Final = 3_600_000
"""Milliseconds for which chunks are kept after the end of their job; ``lua/include/shown/shown_end.lua`` has the same
number."""
MARK: Final = "shown|"
"""The beginning of a member of ``expiring`` that is about an ended job. The member's score is the time until which
the job's chunks are kept."""

_N: Final = "([0-9]{1,15})"
_MS: Final = "([0-9]{1,13})"
# Any program with the rights of a worker may write these fields, so no number is longer than what scripts write.
_LINE: Final = re.compile(
    rf"claim={_N} fence=([0-9]{{1,19}}-[0-9]{{1,19}}) at={_MS} says={_N} said={_N} start={_N} from={_N} to={_N}"
    rf" bytes={_N} base={_N}(?: (died|left)={_MS})?(?:\n(.*))?",
    re.DOTALL,
)
_CHUNK: Final = re.compile(rf"claim={_N} at={_MS}\n(.*)", re.DOTALL)
_NUMBER: Final = r"[0-9]{1,16}(?:\.[0-9]{1,25})?(?:e[+-]?[0-9]{1,3})?"
_SAID: Final = re.compile(rf"({_NUMBER})/({_NUMBER}|-)(?: (.*))?", re.DOTALL)
_BREAKS: Final = re.compile(r"\s+")

Number = int | float


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a job, as its handler reported it last.

    ``done`` says how much of ``total`` is done; a ``total`` of None is unknown. ``text`` is a text that the handler
    added. ``at_ms`` is when Redis got the report (Unix ms). ``claim`` is the number of the claim whose handler reported
    it.
    """

    done: Number
    total: Number | None
    text: str
    at_ms: int
    claim: int

    @property
    def share(self) -> float | None:
        """The share that is done, from 0 to 1; None if the total is unknown or 0."""
        return min(self.done / self.total, 1.0) if self.total else None


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of a job's stream.

    ``number`` counts the chunks of all claims of the job from 1; pass it to ``stream(after=…)`` to continue after this
    chunk. ``claim`` is the number of the claim whose handler emitted the chunk. ``at_ms`` is when Redis got it (Unix
    ms).

    ``begins_claim`` is True for the first chunk of a claim that this reader gets: an earlier claim may have emitted the
    same text. ``missed`` is the number of chunks directly before this one that the reader did not get, because Redis no
    longer had them.
    """

    number: int
    text: str
    claim: int
    at_ms: int
    begins_claim: bool = False
    missed: int = 0


class ShownLine(NamedTuple):
    """The parsed line of a job in the key ``shown``: its progress, and which chunks are kept."""

    claim: int
    fence: str
    start: int
    """The number of the last chunk before the first chunk of this claim."""
    first: int
    """The number of the first chunk that is kept; without chunks, it is greater than ``last``."""
    last: int
    """The number of the last chunk; 0: the job has emitted none."""
    size: int
    """Total bytes of the fields that have the kept chunks."""
    base: int
    """The number of the last chunk of an earlier job with the same id; 0: there was no such job."""
    ending: str | None
    """The line's word for the end of the job: ``died``, or ``left`` if the job left Redis. Scripts write this word only
    if Redis has chunks of the job. None: the line has neither word."""
    ended_ms: int | None
    progress: Progress | None

    @property
    def chunks(self) -> range:
        """The numbers of the chunks that Redis may still have."""
        return range(self.first, self.last + 1)


def check_said(done: object, total: object) -> None:
    """Raise InvalidOption if ``done`` or ``total`` is not a valid number for a job's progress."""
    if not _is_count(done):
        raise InvalidOption.of("done", done, "must be a number, at least 0")
    if total is not None and not _is_count(total):
        raise InvalidOption.of("total", total, "must be a number, at least 0, or None")


def _is_count(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and 0 <= value < 2**53


def said_as_text(done: Number, total: Number | None, text: str) -> str:
    """Return a job's progress in the form that Redis stores. A text of more than TEXT_MAX characters is cut."""
    words = valid_text(_BREAKS.sub(" ", text).strip())
    if len(words) > TEXT_MAX:
        words = words[: TEXT_MAX - 1] + "…"
    whole = "-" if total is None else _plain(total)
    says = f"{_plain(done)}/{whole}"
    return f"{says} {words}" if words else says


def _plain(number: Number) -> str:
    """Return the text of a number, in the form that Python gives to a plain int or float. (The ``repr`` of an enum's
    member, or of a number of numpy, has another form.)"""
    return int.__repr__(number) if isinstance(number, int) else float.__repr__(number)


def valid_text(text: str) -> str:
    """Return a text with a question mark in place of each lone surrogate, which UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()


def read_said(text: str) -> tuple[Number, Number | None, str] | None:
    """Parse a job's progress in the form that Redis stores. Returns (done, total, text), or None if the text cannot be
    read.
    """
    found = _SAID.fullmatch(text)
    if found is None:
        return None
    done, most, words = found.groups()
    said, total = _number(done), None if most == "-" else _number(most)
    if not _is_count(said) or (total is not None and not _is_count(total)):
        return None
    return said, total, (words or "")[:TEXT_MAX]


def _number(text: str) -> Number:
    return int(text) if text.isdecimal() else float(text)


def read_shown(line: str | None) -> ShownLine | None:
    """Parse a job's line in the key ``shown``. Returns None if the line is missing or cannot be read."""
    found = _LINE.fullmatch(line or "")
    if found is None:
        return None
    claim, fence, at, says, _, start, first, last, size, base, ending, ended, text = found.groups()
    if int(last) - int(first) >= CHUNKS_MAX:
        return None
    said = read_said(text) if text else None
    return ShownLine(
        int(claim),
        fence,
        int(start),
        int(first),
        int(last),
        int(size),
        int(base),
        ending,
        int(ended) if ended else None,
        None if said is None else Progress(*said, at_ms=int(at), claim=int(says)),
    )


def read_chunk(number: int, field: str | None) -> Chunk | None:
    """Parse a chunk of a job's stream, as Redis stores it. Returns None if the chunk is missing or cannot be read."""
    found = _CHUNK.fullmatch(field or "")
    if found is None:
        return None
    return Chunk(number, found[3][:CHUNK_BYTES_MAX], int(found[1]), int(found[2]))


def chunk_field(job_id: str, number: int) -> str:
    """Return the name of the field of the Redis hash ``shown`` that has a chunk of a job's stream."""
    return f"{job_id}~{number}"


def id_in_field(field: str) -> str:
    """Return the job's id, from the name of a field of the Redis hash ``shown`` (progress and streams of jobs)."""
    return field.partition("~")[0]
