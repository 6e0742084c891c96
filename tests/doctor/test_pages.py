"""The doctor reads a large queue in pages while the queue works. The doctor finds planted damage, and nothing else."""

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rq_core.doctor import repair
from rq_core.protocol.reads import whole_queue
from tests.doctor.test_every_index import lose
from tests.kit.busy import TENANTS, Busy
from tests.kit.doctor import look, named
from tests.kit.seed import Seed


@pytest.fixture
def seed(redis_url: str) -> Iterator[Seed]:
    with Seed(redis_url) as made:
        yield made


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch, seed: Seed) -> Callable[[int], Busy]:
    """Return a function that lets a queue work while the doctor reads its pages. The function takes a number that
    decides what the queue does."""
    page, steps = whole_queue._page, itertools.count()

    def begin(number: int) -> Busy:
        chance = random.Random(number)
        busy = Busy(seed, fair=number % 2 == 1)

        def step() -> None:
            n = next(steps)
            tenant = chance.choice(TENANTS)
            match chance.randrange(5):
                case 0:
                    seed.enqueue(
                        f"new-{n}", task="v", priority=chance.choice(["critical", "normal"])
                    )
                case 1:
                    seed.enqueue(busy.job(f"new-{n}", tenant, "task=t", f"tenant={tenant}"))
                case 2 if busy.held:
                    busy.end()
                case 3 if busy.held:
                    seed.rollback(busy.held.pop())
                case _:
                    busy.take(chance.randrange(1, 4))

        def between(*args: Any) -> list[Any]:
            if chance.random() < 0.3:
                step()
            return page(*args)

        monkeypatch.setattr(whole_queue, "_page", between)
        for name, count in {"AT_ONCE_MAX": 0, "PAGE": 2, "PAGE_FIRST": 2}.items():
            monkeypatch.setattr(whole_queue, name, count)
        return busy

    return begin


@pytest.mark.parametrize("number", [*range(6), 15])
@pytest.mark.slow
def test_the_doctor_reports_no_finding_for_a_change_between_two_pages(
    work: Callable[[int], Busy], seed: Seed, number: int
) -> None:
    work(number)

    assert [look(seed) for _ in range(5)] == [[]] * 5


@pytest.mark.parametrize(
    ("key", "member", "names"),
    [
        ("scheduled", "job|again", "scheduled"),
        ("dead", "dead", "dead"),
        ("expiring", "dead|dead", "expiring"),
        ("jobs", "dead", "no_spec"),
        ("state", "dead", "lost"),
        ("kept", "done", "kept"),
        ("caps", "queue", "log_differs"),
        ("meta", "paused", "log_differs"),
    ],
)
def test_the_doctor_finds_and_repairs_a_loss_while_the_queue_works(
    work: Callable[[int], Busy], seed: Seed, key: str, member: str, names: str
) -> None:
    work(0)
    if key == "meta":
        seed.configure(paused=1)
        seed.configure(paused=0)
        seed.control.hset(seed.keys(key), member, "1")
    else:
        lose(seed, key, member)

    found = look(seed)

    assert names in named(found)
    left = repair(seed.client, seed.queue, found, by="ada")
    assert {f.kind for f in left} == {f.kind for f in found if not f.mendable}


def test_a_large_queue_is_read_in_pages_of_bounded_size(
    seed: Seed, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed.enqueue(*(f"job-{n}" for n in range(whole_queue.AT_ONCE_MAX)))
    page, counts = whole_queue._page, []

    def counted(kind: str, key: str, at: Any, count: int) -> list[Any]:
        counts.append(count)
        return page(kind, key, at, count)

    monkeypatch.setattr(whole_queue, "_page", counted)

    assert look(seed) == []
    assert max(counts) == whole_queue.PAGE
