"""The judges' own sets of events agree with the product's table of transitions."""

from rq_core.model.table.machine import CLAIMED_STATES, TRANSITIONS, Event
from tests.rigs.judge.logged import ABSENT, CLAIM_ENDS, JOB_ENDS, NO_STEP


def test_claim_ends_are_exactly_the_events_that_leave_the_claimed_states() -> None:
    ends = {
        arrow.event
        for arrow in TRANSITIONS
        if arrow.source in CLAIMED_STATES and arrow.target not in CLAIMED_STATES
    }

    assert ends == CLAIM_ENDS


def test_job_ends_are_exactly_the_events_that_remove_the_job_from_redis() -> None:
    assert {arrow.event for arrow in TRANSITIONS if arrow.target is None} == ABSENT
    assert {a.event for a in TRANSITIONS if a.source and a.target is None} == JOB_ENDS


def test_events_without_a_state_change_are_in_no_transition_of_the_table() -> None:
    assert NO_STEP & {arrow.event for arrow in TRANSITIONS} == set()
    assert set(Event) > NO_STEP
