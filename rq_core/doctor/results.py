"""What ``results`` and ``returned`` must have: what they have, unless a value is lost or the log shows a falsehood."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import NamedTuple

from rq_core.doctor.kept import faults, line_by, value_by
from rq_core.doctor.view import View
from rq_core.model.ends import End
from rq_core.model.outcome import LOST
from rq_core.model.remembered import read_result, with_words
from rq_core.model.text import bytes_of


class Remembered(NamedTuple):
    """What is to be kept of an id that is not in use."""

    id: str
    line: str
    value: str | None
    met_ms: int | None
    """When a claim looks at it first (Unix ms), if the line says so."""


def remembered(view: View, live: Container[str]) -> Iterator[Remembered]:
    """Yield what is to be kept of ids, if it is said until when: in its line, or by `kept`. ``live`` are those in
    use."""
    snapshot = view.snapshot
    for job_id, line in snapshot["results"].items():
        result = read_result(job_id, line)
        is_kept = result.met_ms is not None or job_id in snapshot["kept"]
        if not is_kept or job_id in live or job_id in snapshot["jobs"]:
            continue
        value, end = snapshot["returned"].get(job_id), view.ends.get(job_id)
        mended: str | None = line
        if job_id in view.ends:
            mended = None if end is None else line_by(line, result, end)
        if mended is not None:
            yield _with_value(job_id, mended, value, end)


def _with_value(job_id: str, line: str, value: str | None, end: End | None) -> Remembered:
    result = read_result(job_id, line)
    if result.value_bytes is None:
        return Remembered(job_id, line, None, result.met_ms)
    kept = value_by(value, end)
    size = -1 if kept is None else len(bytes_of(kept))
    if kept is not None and (size == result.value_bytes or _has_digest(end)):
        line = with_words(line, result.outcome, {"bytes": str(size)})
        return Remembered(job_id, line, kept, result.met_ms)
    # In place: who reads the line finds the words where scripts write them.
    line = line.replace(f" bytes={result.value_bytes}", f" value={LOST}")
    return Remembered(job_id, line, None, result.met_ms)


def _has_digest(end: End | None) -> bool:
    """Whether the log says which value it is, however long the line says that is."""
    return end is not None and end.digest is not None


def reasons(view: View, job_id: str) -> list[str]:
    """Say what is false of an id, by the log."""
    line = view.snapshot["results"].get(job_id)
    if line is None or job_id not in view.ends:
        return []
    end = view.ends[job_id]
    if end is None:
        return ["by the log no job of this id can have left it"]
    return faults(line, read_result(job_id, line), view.snapshot["returned"].get(job_id), end)
