"""Finds the signals that the log has and a durable job in Redis lacks.

If a script breaks off, it may have logged a signal without storing it. The log has the signal's value only if the
sender keeps values in the log (``audit_payload="full"``) and a mirror copies the log to SQL.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from rq_core.doctor.box_check import count_entries, is_box_lost
from rq_core.model.durable.box_log import Distrust, LoggedBox, LoggedSignal
from rq_core.model.durable.boxes import members_of_signals, write_header


class LostSignals(NamedTuple):
    """The signals that a durable job has lost, although the log has them."""

    job_id: str
    life: str
    members: dict[str, str]
    """The missing fields of the hash ``boxes``, with the values that the log has."""
    unknown: LoggedSignal | None
    """The first lost signal whose value is not in the log; None if the log has the values of all lost signals."""
    distrusted: str | None = None
    """The reason why the signals must not be restored from the log; None if they may be restored."""


def lost_signals(
    boxes: Mapping[str, LoggedBox],
    found: Mapping[str, str],
    owners: Mapping[str, str],
    began: Collection[str],
) -> Iterator[LostSignals]:
    """Yield, for each durable job, the signals that the log has and Redis lacks.

    ``boxes``: life (id) of a box → the box according to the log. ``found``: the fields of the hash ``boxes`` in Redis.
    ``owners``: life of a box → id of its job. ``began``: ids of jobs for which the log has all entries since their
    beginning.
    """
    for life, job_id in owners.items():
        box = boxes.get(life)
        missing = (
            {}
            if box is None
            else {n: s for n, s in box.signals.items() if _of(life, n) not in found}
        )
        if box is None or not missing:
            continue
        is_new = life not in found and box.entries == 0 and job_id in began
        if not is_new and is_box_lost(found.get(life), count_entries(found, life)):
            continue
        members = {life: write_header(job_id, 0, 0)} if is_new else {}
        unknown, texts = None, dict[int, str]()
        for number, signal in sorted(missing.items()):
            text = signal.text(is_taken=number in box.taken)
            if text is None:
                unknown = signal
                break
            texts[number] = text
        members |= {life + rest: text for rest, text in members_of_signals(texts).items()}
        yield LostSignals(job_id, life, members, unknown)


def trusted_signals(lost: Sequence[LostSignals], distrust: Distrust) -> list[LostSignals]:
    """Return ``lost``, without members for the jobs whose events must not be copied from the log, so that none of their
    signals is restored. Each of these names the reason.

    ``distrust``: a function that returns job id → reason for such jobs.
    """
    doubts = distrust({each.job_id: False for each in lost}) if lost else {}
    return [
        each._replace(members={}, distrusted=doubts[each.job_id]) if each.job_id in doubts else each
        for each in lost
    ]


def _of(life: str, number: int) -> str:
    return f"{life}>{number}"
