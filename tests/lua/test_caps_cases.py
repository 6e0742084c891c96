"""Why a scope is re-evaluated in three cases: take one out, and a job waits in vain.

A lane is opened when (a) a place in its scope becomes free, (b) the scope's limit changes or its rate resumes, (c) an
open lane that contains the scope moves on. Each history here ends with a job that may run and an idle worker that
claims as often as it likes. With the scripts as they are the job runs; without the case it never does.
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import pytest

from rq_core.scripts.header import Variant
from rq_core.scripts.script import Script, build_function, directory
from tests.kit.clock import CLOCK, timed
from tests.kit.lanes import waiting_in_vain
from tests.kit.seed import Seed

Change = tuple[str, str, str]
"""Of an include: its name, a text in it, and what stands there instead."""

FREED: list[Change] = [
    ("lanes", "      seen[name] = true\n      reevaluate(name)\n", ""),
]
CHANGED: list[Change] = [
    ("scopes", "  if scope.resumes then\n", "  scope.changed = true\n  if scope.resumes then\n"),
    (
        "lanes",
        "  if (scope.rate or scope.stored) and not has_room(scope) then\n",
        "  if scope.changed then\n",
    ),
]
MOVED_ON: list[Change] = [
    ("lanes", "    if name ~= refused_by and name ~= own then\n", "    if false then\n"),
]
CASES = {"a": FREED, "b": CHANGED, "c": MOVED_ON}


@cache
def without(case: str) -> Callable[[str], Script]:
    """The scripts on the test's clock with one case taken out."""
    texts = {"clock": CLOCK}
    for include, old, new in CASES[case]:
        text = texts.get(include) or Path(directory(), "include", f"{include}.lua").read_text()
        assert text.count(old) == 1, (include, old)
        texts[include] = text.replace(old, new)
    return partial(build_function, variant=Variant(includes=texts))


@pytest.fixture(params=["as it is", "without the case"])
def taken_out(request: pytest.FixtureRequest) -> bool:
    """Whether the case that the test is about is missing."""
    missing: bool = request.param == "without the case"
    return missing


@pytest.fixture
def case(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def seed(redis_url: str, case: str, taken_out: bool) -> Iterator[Seed]:
    with Seed(redis_url, scripts=without(case) if taken_out else timed) as made:
        yield made


def claims(seed: Seed) -> list[str]:
    """What an idle worker gets, however often it asks."""
    return [c.id for _ in range(5) for c in seed.claim().jobs]


def expect(seed: Seed, taken_out: bool, job_id: str) -> None:
    """The job runs, or it waits in vain."""
    if taken_out:
        assert claims(seed) == []
        assert waiting_in_vain(seed.snapshot())
    else:
        assert claims(seed) == [job_id]
        seed.assert_consistent()


@pytest.mark.parametrize("case", ["a"], indirect=True)
def test_a_lane_opens_when_a_place_in_its_scope_becomes_free(seed: Seed, taken_out: bool) -> None:
    seed.cap("tenant", 1)
    seed.enqueue("first", "next", scopes=["tenant=x"])
    (first,) = seed.claim().jobs
    assert seed.claim().jobs == ()

    seed.complete(first)

    expect(seed, taken_out, "next")


@pytest.mark.parametrize("case", ["b"], indirect=True)
@pytest.mark.parametrize("scope", ["tenant", "tenant=x"])
def test_a_lane_opens_when_its_limit_is_raised(seed: Seed, taken_out: bool, scope: str) -> None:
    seed.cap("tenant", 1)
    seed.enqueue("first", "next", scopes=["tenant=x"])
    seed.claim()
    assert seed.claim().jobs == ()

    seed.cap(scope, 2)

    expect(seed, taken_out, "next")


@pytest.mark.parametrize("case", ["b"], indirect=True)
def test_a_lane_opens_when_its_rate_resumes(seed: Seed, taken_out: bool) -> None:
    seed.cap("tenant@10s", "1/10000ms/1")
    seed.enqueue("first", "next", scopes=["tenant@10s=x"])
    seed.claim()
    assert seed.claim().jobs == ()

    seed.advance(10_000)

    expect(seed, taken_out, "next")


@pytest.mark.parametrize("case", ["c"], indirect=True)
def test_a_lane_opens_when_the_one_before_it_is_refused_by_another_scope(
    seed: Seed, taken_out: bool
) -> None:
    """A place in the task is offered to x first; but x itself is full, so y has to be asked next."""
    seed.cap("task=t", 1)
    seed.cap("tenant", 1)
    seed.enqueue("w-1", scopes=["task=t", "tenant=w"])
    seed.enqueue("other", task="u", scopes=["tenant=x"])
    w, _ = seed.claim().jobs
    for job_id, tenant in [("x-1", "x"), ("y-1", "y")]:
        seed.enqueue(job_id, scopes=["task=t", f"tenant={tenant}"])
    assert seed.claim().jobs == ()

    seed.complete(w)

    expect(seed, taken_out, "y-1")


@pytest.mark.parametrize("case", ["c"], indirect=True)
def test_a_lane_opens_when_the_one_before_it_is_emptied(seed: Seed, taken_out: bool) -> None:
    """A place in the task is offered to a job that is cancelled before it takes it."""
    seed.cap("task=t", 1)
    for job_id, tenant in [("w-1", "w"), ("x-1", "x"), ("y-1", "y")]:
        seed.enqueue(job_id, scopes=["task=t", f"tenant={tenant}"])
    (w,) = seed.claim().jobs
    assert seed.claim().jobs == ()
    seed.complete(w)

    seed.cancel("x-1")

    expect(seed, taken_out, "y-1")
