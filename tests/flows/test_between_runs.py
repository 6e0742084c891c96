"""A worker keeps the state of a flow between two runs of the flow's job. So the second run reads less. No run uses a
state that Redis has forgotten."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from rq_core import RESULT, App, FlowRun, RetryPolicy, chain, testing
from rq_core.app.flows import built_in
from rq_core.app.flows.between_runs import KeptRun
from rq_core.app.flows.graph import Graph
from rq_core.app.flows.running import FlowSteps
from rq_core.app.flows.sweep import Frontier
from rq_core.model.durable import boxes
from rq_core.model.durable.boxes import StepEntry
from rq_core.model.lib.newest_values import NewestValues
from rq_core.protocol.reads import box_reads
from rq_core.protocol.reads.box_reads import Box

Kept = NewestValues[tuple[str, str], KeptRun]


@pytest.fixture
def app() -> App:
    made = App()
    made.enable_flows()

    @made.task(name="work", queue="work", retry=RetryPolicy(max_attempts=1))
    def work(n: int, got: int = 0) -> int:
        return got + n

    return made


@pytest.fixture
def fake(app: App) -> Iterator[testing.Fake]:
    with testing.fake(app) as made:
        yield made


def in_turns(monkeypatch: pytest.MonkeyPatch, count: int) -> list[Kept]:
    """Let ``count`` processes take turns in the runs of flows. Return the states that each process keeps."""
    kept: list[Kept] = [NewestValues(9, 10**6) for _ in range(count)]
    turns = itertools.cycle(kept)

    def steps(context: Any, home: Any, app: Any, tasks: Any, graph: Any, _: Any) -> FlowSteps:
        return FlowSteps(context, home, app, tasks, graph, next(turns))

    monkeypatch.setattr(built_in, "FlowSteps", steps)
    return kept


def sum_of(app: App, count: int) -> FlowRun[Any]:
    work = app.tasks["work"]
    return chain(work.call(1), *(work.call(n, RESULT) for n in range(2, count + 1))).enqueue()


@pytest.mark.parametrize(("processes", "most"), [(1, 40), (3, 160)])
def test_later_runs_of_a_flow_read_only_a_few_of_the_saved_steps_again(
    app: App, fake: testing.Fake, monkeypatch: pytest.MonkeyPatch, processes: int, most: int
) -> None:
    """Twelve runs that read all would read some 230 entries."""
    read_entry, read = boxes.read_entry, []

    def reading(text: str) -> StepEntry:
        read.append(text)
        return read_entry(text)

    in_turns(monkeypatch, processes)
    run = sum_of(app, 12)
    monkeypatch.setattr(boxes, "read_entry", reading)
    monkeypatch.setattr(box_reads, "read_entry", reading)
    fake.drain()

    assert 78 == run.result(0)
    assert len(read) < most


@pytest.mark.parametrize(("processes", "lost"), [(1, 1), (1, 2), (2, 3)])
def test_a_flow_has_the_same_result_though_failovers_lose_some_of_its_runs(
    app: App, fake: testing.Fake, monkeypatch: pytest.MonkeyPatch, processes: int, lost: int
) -> None:
    """A round runs the jobs of one queue. After each fifth round, Redis forgets the last ``lost`` rounds."""
    server: Any = fake.connections._server
    in_turns(monkeypatch, processes)
    run = sum_of(app, 4)
    past: list[Any] = []
    failovers = 0
    for number in range(60):
        fake.drain(("flows", "work")[number % 2])
        past.append(copy.deepcopy(server.dbs[0]._dict))
        if run.state() == "succeeded":
            break
        if number % 5 == 4:
            failovers += 1
            del past[-lost:]
            server.dbs[0]._dict = copy.deepcopy(past[-1])

    assert (10, True) == (run.result(0), failovers >= 2)


def kept_run(*entries: StepEntry, claim: int = 3) -> KeptRun:
    graph = Graph("f", "drain", ())
    numbers = {entry.name: number for number, entry in enumerate(entries, 1)}
    size = sum(len(entry.value or "") for entry in entries)
    return KeptRun(
        claim, "life", list(entries), numbers, frozenset(), graph, Frontier(graph), {}, size
    )


SAVED = StepEntry("a", True, 5, "1-1", "digest", "70")
BEGUN = StepEntry("b", False, 6, "1-2")
LAST = StepEntry("c", True, 7, "1-3", "digest", "1")


@pytest.mark.parametrize(
    ("box", "holds"),
    [
        (Box("life", (LAST._replace(at_ms=9),)), True),
        (Box("life", (LAST, BEGUN)), True),
        (Box("life", (LAST._replace(fence="1-4"),)), False),
        (Box("life", (LAST._replace(name="d"),)), False),
        (Box("life", ()), False),
        (Box("other", (LAST,)), False),
        (Box(None), False),
        (None, False),
    ],
)
def test_a_worker_uses_its_cached_state_of_a_flow_only_if_redis_has_the_last_step_of_that_state(
    box: Box | None, holds: bool
) -> None:
    assert holds == kept_run(SAVED, BEGUN, LAST).holds(box)


def test_a_run_of_a_flow_reads_those_saved_steps_again_that_another_claim_may_have_changed() -> (
    None
):
    kept = kept_run(SAVED, BEGUN, LAST)
    assert [] == kept.uncertain(4)
    assert [2] == kept.uncertain(5)
    kept.ended_last = frozenset({1, 3})
    assert [1] == kept.uncertain(4)
    assert [1, 2] == kept.uncertain(9)


def test_the_cached_state_of_a_flow_refuses_a_saved_step_that_contradicts_it() -> None:
    kept = kept_run(SAVED, BEGUN, LAST)
    kept.update(2, BEGUN._replace(is_saved=True, note="digest", value="12345"))
    kept.update(4, BEGUN._replace(name="d"))

    assert (4, True, 2 + 5 + 1) == (kept.numbers["d"], kept.entries[1].is_saved, kept.characters)
    for number, name in ((5, "a"), (2, "e")):
        with pytest.raises(ValueError, match="another one"):
            kept.update(number, BEGUN._replace(name=name))


def test_the_class_newest_values_drops_the_oldest_values_beyond_its_number_or_total_size_of_values() -> (
    None
):
    kept: NewestValues[str, int] = NewestValues(2, 10)
    for number, name in enumerate("abc"):
        kept.put(name, number, 1)
    assert [None, 1, None] == [kept.take("a"), kept.take("b"), kept.take("b")]
    kept.put("d", 4, 9)
    kept.put("e", 5, 2)

    assert [None, None, 5] == [kept.take("c"), kept.take("d"), kept.take("e")]
