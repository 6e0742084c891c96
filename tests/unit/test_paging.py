"""Pages of a sorted set or a list that changes between the reads. No member that stays may be left out."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from rq_core.model.keys import queue_keys
from rq_core.model.table.machine import State
from rq_core.protocol.reads.matches import SPECS_BYTES_MAX, specs_of
from rq_core.protocol.reads.paging import PagedKey, sources_of

KEYS = queue_keys("q")
DEAD = PagedKey("dead", frozenset({State.DEAD}))
READY = PagedKey("ready:2", frozenset({State.READY}))


def run(steps: Any, answer: Any) -> Any:
    """Carry out a read. The function ``answer`` returns the reply to a command."""
    replies = None
    while True:
        try:
            commands = steps.send(replies)
        except StopIteration as done:
            return done.value
        replies = [answer(command) for command in commands]


class SortedSet:
    """A fake sorted set that answers ZRANGE by rank."""

    def __init__(self, scores: dict[str, float]) -> None:
        self.scores = scores
        self.reads = 0

    def __call__(self, command: list[Any]) -> dict[str, float]:
        name, _, first, last, flag = command
        assert (name, flag) == ("ZRANGE", "WITHSCORES")
        self.reads += 1
        ordered = sorted(self.scores.items(), key=lambda item: (item[1], item[0]))
        return dict(ordered[first : last + 1])


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("scores", [1, 3, 1000])
def test_paging_by_score_finds_every_job_that_stays_while_others_come_and_go(
    seed: int, scores: int
) -> None:
    dice = Random(seed)
    served = SortedSet({f"j{n:04}": float(dice.randrange(scores)) for n in range(300)})
    stays, seen = {name for name in served.scores if dice.random() < 0.5}, []
    place: str | None = ""

    while place is not None:
        page = run(DEAD.page(KEYS, place, 20), served)
        assert len(page.ids) <= 20
        seen += page.ids
        leaves = [name for name in served.scores if name not in stays and dice.random() < 0.2]
        for name in leaves:
            del served.scores[name]
        for _ in range(dice.randrange(3)):
            served.scores[f"n{dice.randrange(10**6)}"] = float(dice.randrange(scores))
        place = DEAD.after_change(page.place, dice.randrange(len(leaves) + 1))

    assert stays <= set(seen)


def test_paging_through_equal_scores_reads_each_job_once_if_nothing_changes() -> None:
    served = SortedSet({f"j{n:05}": 7.0 for n in range(10_000)})
    place, seen = "", []

    while True:
        page = run(DEAD.page(KEYS, place, 250), served)
        seen += page.ids
        if page.place is None:
            break
        place = page.place

    assert sorted(served.scores) == seen
    assert served.reads == 41


def test_each_page_is_read_once_even_if_the_change_removes_all_jobs_of_the_page() -> None:
    served = SortedSet({f"j{n:05}": 7.0 for n in range(5_000)})
    place: str | None = ""

    while place is not None:
        page = run(DEAD.page(KEYS, place, 250), served)
        for job_id in page.ids:
            del served.scores[job_id]
        place = DEAD.after_change(page.place, len(page.ids))

    assert not served.scores
    assert served.reads <= 21


@pytest.mark.parametrize("seed", range(10))
def test_pages_of_a_list_omit_no_entry_while_jobs_come_and_go(
    seed: int,
) -> None:
    """Jobs leave at the head and arrive at the tail."""
    dice = Random(seed)
    entries = [f"j{n}" for n in range(300)]
    place: str | None = ""
    seen: list[str] = []

    def answer(command: list[Any]) -> list[str]:
        name, _, first, last = command
        assert name == "LRANGE"
        low = max(0, len(entries) + first)
        return entries[low : max(0, len(entries) + last + 1)]

    while place is not None:
        page = run(READY.page(KEYS, place, 20), answer)
        seen += page.ids
        del entries[: dice.randrange(10)]
        entries += [f"n{dice.randrange(10**6)}" for _ in range(dice.randrange(10))]
        place = page.place

    # Entries that came at the tail after the first page are not promised.
    assert {name for name in entries if name.startswith("j")} <= set(seen)


def test_a_change_of_many_jobs_reads_keys_in_the_order_in_which_jobs_move_between_them() -> None:
    keys = [source.key for source in sources_of([State.READY, State.SCHEDULED])]

    assert keys == ["scheduled", "ready:0", "ready:1", "ready:2", "ready:3", "waiting"]


def test_one_command_reads_a_mebibyte_of_jobs_at_most() -> None:
    sizes = [SPECS_BYTES_MAX // 2, SPECS_BYTES_MAX // 2, 1, SPECS_BYTES_MAX * 3, 5, 5]
    asked: list[list[str]] = []

    def answer(command: list[Any]) -> Any:
        if command[0] == "HSTRLEN":
            return sizes[int(command[2])]
        asked.append(command[2:])
        return [f"{{{job_id}}}" for job_id in command[2:]]

    found = run(specs_of(KEYS, list("012345")), answer)

    assert found == [f"{{{n}}}" for n in range(6)]
    assert asked == [["0", "1"], ["2"], ["3"], ["4", "5"]]
