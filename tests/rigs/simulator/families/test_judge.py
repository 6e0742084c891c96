"""The judge of families reports each child that begins after the cancel of its family was done, and no other child."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import pytest

from rq_core.model.durable.children import child_id, item_name
from rq_core.model.events import Entry, JobEvent, OutboxId
from rq_core.model.job import Claim
from rq_core.model.table.machine import Event
from tests.rigs.simulator.families.judge import Cancel, _Story
from tests.rigs.simulator.families.shards import PARENTS, PARTS

FIRST, SECOND = "0000000000000001", "0000000000000002"
"""The boxes of two jobs that have the id of the parent, one after the other."""
MOVES: Final = ["map 1 1.0", "map 1 1.0"]


class Story:
    """A parent with the id ``p``, and its children. One event happens in each step."""

    def __init__(self) -> None:
        self._step = 0
        spec = json.dumps({"task": "gather", "args": {"moves": MOVES}})
        claim = Claim(PARENTS, "p", "1-1", 1, 0, 0, spec)
        self.of: Any = SimpleNamespace(
            shards={
                queue: SimpleNamespace(
                    watch=SimpleNamespace(forgotten=[], entries=[]), lost=[], when={}
                )
                for queue in (PARENTS, PARTS)
            },
            handlers={("p", "1-1"): SimpleNamespace(claim=claim)},
            cancelled={},
            crashes=0,
            lost=[],
            had_little_room=False,
        )

    def add(self, event: Event, job_id: str = "p", **fields: str) -> str:
        """Add an event in the next step. Return the id of its entry."""
        self._step += 1
        shard = self.of.shards[PARENTS if job_id == "p" else PARTS]
        entry_id = OutboxId(1, len(shard.watch.entries))
        entry = Entry(entry_id, event, 0, "w", jobs=(JobEvent(0, job_id, fields),))
        shard.watch.entries.append(entry)
        shard.when[str(entry_id)] = self._step
        return str(entry_id)

    def launch(self, life: str, name: str = "parts") -> str:
        """Let the parent enqueue its child. Return the child's id."""
        child = child_id(life, name, 0)
        self.add(Event.STEP_BEGUN, life=life, name=f"map:{name}")
        self.add(Event.ENQUEUED, child)
        self.add(Event.STEP_SAVED, life=life, name=f"map:{name}")
        return child

    def cancel(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Cancel the parent, then do ``meanwhile``. The cancel of the family is done in the next step."""
        entry = self.add(Event.CANCELLED)
        meanwhile()
        self._step += 1
        self.of.cancelled[Cancel(PARENTS, "p", entry)] = self._step

    def wrong(self) -> list[str]:
        return list(_Story(self.of).cancelled())

    def wrong_children(self) -> list[str]:
        return list(_Story(self.of).children())


@pytest.fixture
def story() -> Story:
    made = Story()
    made.add(Event.ENQUEUED)
    return made


def test_the_judge_reports_a_child_that_begins_after_the_cancel_of_its_family(story: Story) -> None:
    child = story.launch(FIRST)
    story.cancel()
    story.add(Event.CLAIMED, child)

    assert story.wrong() == [
        f"p was cancelled with its family by step 6, and its child {child} begins in step 7"
    ]


def test_the_judge_accepts_a_child_that_begins_before_the_cancel_of_its_family_is_complete(
    story: Story,
) -> None:
    child = story.launch(FIRST)
    story.add(Event.CLAIMED, child)
    story.cancel()

    assert story.wrong() == []


def test_the_judge_accepts_a_dead_child_that_is_requeued_while_its_family_is_cancelled(
    story: Story,
) -> None:
    child = story.launch(FIRST)
    story.add(Event.DIED, child)
    story.cancel(meanwhile=lambda: story.add(Event.REQUEUED, child))
    story.add(Event.CLAIMED, child)

    assert story.wrong() == []


@pytest.mark.parametrize("runs", [True, False], ids=["its parent runs", "between two runs"])
def test_the_judge_accepts_a_child_whose_enqueue_is_not_saved_only_if_its_parent_was_cancelled_between_two_runs(
    story: Story, *, runs: bool
) -> None:
    child = child_id(FIRST, "parts", 0)
    story.add(Event.CLAIMED)
    story.add(Event.STEP_BEGUN, life=FIRST, name="map:parts")
    story.add(Event.ENQUEUED, child)
    story.add(Event.CANCEL_REQUESTED if runs else Event.LEASE_EXPIRED)
    story.cancel()
    story.add(Event.CLAIMED, child)

    assert len(story.wrong()) == runs


def test_the_judge_reports_a_child_that_was_requeued_before_the_cancel_and_begins_after_the_cancel(
    story: Story,
) -> None:
    child = story.launch(FIRST)
    story.add(Event.DIED, child)
    story.add(Event.REQUEUED, child)
    story.cancel()
    story.add(Event.CLAIMED, child)

    assert len(story.wrong()) == 1


def test_the_judge_accepts_a_child_of_a_new_job_with_the_id_of_a_cancelled_parent(
    story: Story,
) -> None:
    story.cancel()
    story.add(Event.ENQUEUED)
    child = story.launch(SECOND)
    story.add(Event.CLAIMED, child)

    assert story.wrong() == []


def test_the_judge_reports_a_child_even_if_a_new_job_with_the_id_of_its_parent_was_cancelled_later(
    story: Story,
) -> None:
    child = story.launch(FIRST)
    story.cancel()
    story.add(Event.ENQUEUED)
    story.launch(SECOND)
    story.add(Event.CLAIMED, child)
    story.cancel()

    assert story.wrong() == [
        f"p was cancelled with its family by step 6, and its child {child} begins in step 11"
    ]


def test_the_judge_reports_a_child_even_if_its_parent_has_saved_the_child_of_another_map(
    story: Story,
) -> None:
    saved = story.launch(FIRST, "parts")
    story.add(Event.STEP_SAVED, life=FIRST, name=item_name("parts", 0))
    child = story.launch(FIRST, "parts-2")
    story.cancel()
    story.add(Event.CLAIMED, saved)
    story.add(Event.CLAIMED, child)

    assert story.wrong() == [
        f"p was cancelled with its family by step 10, and its child {child} begins in step 12"
    ]


@pytest.mark.parametrize("little_room", [True, False], ids=["no room", "room"])
@pytest.mark.parametrize("claimed", [True, False], ids=["claimed", "never claimed"])
def test_the_judge_accepts_a_second_enqueue_only_of_a_child_that_never_began_and_whose_outcome_had_no_room(
    story: Story, *, claimed: bool, little_room: bool
) -> None:
    story.of.had_little_room = little_room
    child = story.launch(FIRST)
    if claimed:
        story.add(Event.CLAIMED, child)
    story.add(Event.CANCELLED, child)
    story.add(Event.ENQUEUED, child)

    is_wrong = [f"child {child} was enqueued 2 times"]
    assert story.wrong_children() == ([] if little_room and not claimed else is_wrong)
