"""Finds the signals that the log has and a box lacks.

A script that breaks off may have logged a signal and not written it into the box. The log has the signal's value if the
sender keeps values in the log (``audit_payload="full"``) and a mirror reads the log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from rq_core.doctor.box_check import count_entries, is_box_lost
from rq_core.model.durable.box_log import Distrust, LoggedBox, LoggedSignal
from rq_core.model.durable.boxes import members_of_signals, write_header


class LostSignals(NamedTuple):
    """The signals of a job that its box lacks."""

    job_id: str
    life: str
    members: dict[str, str]
    """The members of ``boxes`` that are missing, with their values, as far as the log has them."""
    unknown: LoggedSignal | None
    """The first lost signal whose value the log does not have; None: the log has the values of all lost signals."""
    distrusted: str | None = None
    """The reason why the signals must not be copied from the log; None: they may be copied."""


def lost_signals(
    boxes: Mapping[str, LoggedBox],
    found: Mapping[str, str],
    owners: Mapping[str, str],
    began: Collection[str],
) -> Iterator[LostSignals]:
    """Yield, for each job, the signals that the log has and Redis lacks.

    ``found``: the members of the key ``boxes``. ``owners``: life (id) of a box → id of its job. ``began``: the ids of
    jobs that began in an entry of the log after which no entry is missing.
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
    """Return ``lost``. If ``distrust`` says that a job's events must not be copied from the log, the job's LostSignals
    names the reason and has no members, so no signal is written back."""
    doubts = distrust({each.job_id: False for each in lost}) if lost else {}
    return [
        each._replace(members={}, distrusted=doubts[each.job_id]) if each.job_id in doubts else each
        for each in lost
    ]


def _of(life: str, number: int) -> str:
    return f"{life}>{number}"
