"""The table of a job's fields, the table of events' effects, and all that is derived from both agree."""

from __future__ import annotations

from dataclasses import fields as fields_of_class

import pytest

from rq_core.model.events import JobRecord
from rq_core.model.table.effects import (
    BEGINNINGS,
    CLAIM_ENDS,
    CLEARS,
    EFFECTS,
    JOB_ENDS,
    ONLY_CLAIM_ENDS,
    REVIVALS,
    Leads,
    target,
)
from rq_core.model.table.event_fields import JOB_EVENT_FIELDS
from rq_core.model.table.fields import BY_LINE, COUNTERS, FIELDS, GIVEN, STATE_FIELDS, STAYS
from rq_core.model.table.machine import TRANSITIONS, Event, Transition

NAMES = [field.name for field in FIELDS]


def test_each_field_of_a_job_has_one_name_and_one_position() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert list(STATE_FIELDS) == [field.line for field in FIELDS if field.line]


def test_a_job_record_has_the_fields_of_a_state_line() -> None:
    record = {f.name for f in fields_of_class(JobRecord)}

    assert record == {
        "id", "state", "complete", "digest", *(field.name for field in BY_LINE.values()),
    }  # fmt: skip


def test_in_a_state_line_the_optional_traits_are_directly_before_the_lane() -> None:
    """A trait is a field that a job has from its beginning. The optional traits keep the order of the table."""
    given = [str(field.line) for field in GIVEN]

    assert list(STAYS)[-len(given) :] == given
    assert STATE_FIELDS[len(STAYS)] == "lane"


def test_the_table_of_effects_has_each_event_that_changes_the_state_of_a_job() -> None:
    moving = {t.event for t in TRANSITIONS} | {Event.BASELINE}

    assert set(EFFECTS) == moving
    assert set(JOB_EVENT_FIELDS) - moving == set(CLEARS)


@pytest.mark.parametrize("event", EFFECTS)
def test_each_effect_of_an_event_names_existing_fields(event: Event) -> None:
    effect = EFFECTS[event]
    told = {field.name for field in JOB_EVENT_FIELDS[event]}
    changed = [
        *(name for name, _ in effect.takes), *effect.takes_if_told, *effect.zeroes, *effect.clears, *effect.stamps,
    ]  # fmt: skip

    assert {source for _, source in effect.takes} | set(effect.takes_if_told) <= told
    assert set(changed) <= set(NAMES)
    assert len(set(changed)) == len(changed), "a field is changed twice"
    assert set(effect.zeroes) <= set(COUNTERS)
    needed = {
        Leads.BY_DUE: "due_ms", Leads.BY_TARGET: "target", Leads.BY_STATE: "state", Leads.BY_DEATH: "dead",
    }  # fmt: skip
    assert not isinstance(effect.leads_to, Leads) or needed[effect.leads_to] in told


@pytest.mark.parametrize("arrow", TRANSITIONS, ids=str)
def test_each_event_puts_a_job_into_the_target_state_of_its_transition(
    arrow: Transition,
) -> None:
    due = 1 if str(arrow.target) == "scheduled" else None
    dead = 1 if str(arrow.target) == "dead" else None
    facts = {"due_ms": due, "target": arrow.target, "state": arrow.target, "dead": dead}

    assert target(arrow.event, facts) is arrow.target


def test_the_derived_sets_of_events_have_the_expected_members() -> None:
    """A new transition must not change these sets by accident."""
    assert {"enqueued", "discarded", "restored", "baseline"} == BEGINNINGS
    assert {"succeeded", "cancelled", "pruned", "removed", "expired", "replaced"} == JOB_ENDS
    assert {
        "succeeded",
        "retried",
        "died",
        "rolled_back",
        "parked",
        "lease_expired",
    } == ONLY_CLAIM_ENDS
    assert {*ONLY_CLAIM_ENDS, "cancelled"} == CLAIM_ENDS
    assert {"enqueued", "restored", "requeued"} == REVIVALS
