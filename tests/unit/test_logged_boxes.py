"""The steps and signals of a durable job in the log, after a loss of Redis.

Redis had one history before the loss, and another history after it. In the two histories, two different signals have
the same number.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from rq_core.doctor.box_faults import box_faults
from rq_core.model.durable.box_log import LoggedBox, note_boxes
from rq_core.model.durable.boxes import StepEntry, entry_text, write_header
from rq_core.model.events import Entry, JobEvent, OutboxId
from rq_core.model.table.event_fields import JOB_EVENT_FIELDS
from rq_core.model.table.machine import Event
from rq_core.model.unique_names import digest_of
from sql_audit.store.orphans import Range
from sql_audit.upkeep.lost_boxes import boxes_in

LIFE = "9f3a0b1c22aa0001"
TRUE, FALSE = ({"digest": digest_of(value), "value": value} for value in ("true", "false"))
TAKEN = (
    (Event.SIGNALLED, {"message": 1, "name": "approval"} | TRUE),
    (Event.STEP_SAVED, {"entry": 1, "name": "approval", "message": 1, "bytes": 4} | TRUE),
)
OTHER = ((Event.SIGNALLED, {"message": 1, "name": "refusal"} | FALSE),)


def test_a_new_signal_with_the_number_of_a_taken_signal_does_not_count_as_taken() -> None:
    boxes: dict[str, LoggedBox] = {}
    for number, (event, facts) in enumerate(TAKEN + OTHER, 1):
        names = (field.name for field in JOB_EVENT_FIELDS[event])
        told = JobEvent(0, "a", dict.fromkeys(names) | {"life": LIFE} | facts)
        note_boxes(boxes, Entry(OutboxId(1, number), event, number, "w-1", jobs=(told,)))

    assert set() == boxes[LIFE].taken
    assert "false" == (boxes[LIFE].signals[1].text(is_taken=False) or "").partition("\n")[2]


@pytest.mark.parametrize("forgotten", [1, 2])
def test_a_signal_counts_only_if_it_belongs_to_the_history_that_redis_kept(forgotten: int) -> None:
    """Redis may have forgotten the first history or the second. It forgets the second history if the old server, with
    the data of the first history, comes back."""
    rows: list[tuple[Any, ...]] = []
    for epoch, told in enumerate((TAKEN, OTHER), 1):
        for number, (event, facts) in enumerate(told, 1):
            detail = json.dumps({"life": LIFE} | facts)
            rows.append(("q", epoch, number, 0, event, 5, "a", "1-2", "w-1", "task", detail))
    orphaned = Range(OutboxId(forgotten, 0), OutboxId(forgotten + 1, 0))

    box = boxes_in(rows, [orphaned])["a", LIFE]

    (signal,) = box.signals()
    entry = box.entries[1]
    assert signal is not None
    assert entry is not None
    found = (signal.partition(" ")[0], "\n" in signal, entry.is_saved, entry.kind)
    expected = [("refusal", True, False, "wait"), ("approval", False, True, "step")]
    assert expected[forgotten - 1] == found


def test_the_doctor_accepts_a_step_that_a_restore_brought_back_without_an_event() -> None:
    box = LoggedBox(is_whole=True)
    said = {"fence": "1-2", "bytes": 4} | TRUE
    box.add(Event.STEP_SAVED, 5, said | {"entry": 1, "name": "charge"})
    box.allow(Event.STEP_SAVED, 6, said | {"entry": 2, "name": "receipt"})
    texts = [
        entry_text(StepEntry(name, True, at_ms, "1-2", TRUE["digest"], TRUE["value"]))
        for name, at_ms in (("charge", 5), ("receipt", 6))
    ]
    found = {LIFE: write_header("a", 2, 8), f"{LIFE}|1": texts[0], f"{LIFE}|2": texts[1]}

    assert [] == list(box_faults({LIFE: box}, found, {LIFE: "a"}))

    found[f"{LIFE}|2"] = texts[1].replace("receipt", "refund")
    (fault,) = box_faults({LIFE: box}, found, {LIFE: "a"})
    assert ["the log does not have entry 2, refund"] == fault.says


@pytest.mark.parametrize("kind", ["Wait", 1, ["wait"]])
def test_the_doctor_compares_an_entry_whose_kind_in_the_log_is_forged(kind: object) -> None:
    box = LoggedBox(is_whole=True)
    began = {"fence": "1-2", "entry": 1, "name": "approval", "until_ms": None}
    box.add(Event.STEP_BEGUN, 5, began | {"kind": kind})
    waits = entry_text(StepEntry("approval", False, 5, "1-2", kind="wait"))
    found = {LIFE: write_header("a", 1, 0), f"{LIFE}|1": waits}

    (fault,) = box_faults({LIFE: box}, found, {LIFE: "a"})

    assert "approval" in fault.says[0]
