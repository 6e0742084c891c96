"""The number of Redis commands that a page sends. It is at most 70, including the commands of the shared overview.

Only a search by an argument sends more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import pytest

from rq_core.metrics.shared import SharedOverview
from rq_core.model.limits.scopes import QUEUE as WHOLE_QUEUE
from rq_core.protocol.reads.overview import COMMANDS_MAX
from rq_core.web import sources
from tests.kit.busy import Busy
from tests.web.conftest import QUEUE, Browse, Scene, read

PAGE_MAX: Final = 70
LANES: Final = 1_100
LISTED: Final = 600
"""The number of entries in each list. A page reads fewer entries."""


def sent(scene: Scene, ask: Callable[[], object]) -> list[str]:
    """Return the commands that clients send to Redis during ``ask``, without those that scripts call."""
    control: Any = scene.seed.control
    found: list[str] = []
    with control.monitor() as monitor:
        ask()
        control.echo("all was asked")
        while (each := monitor.next_command())["command"] != "ECHO all was asked":
            if each["client_type"] != "lua":
                found.append(each["command"])
    return found


def fill(scene: Scene) -> None:
    """Make jobs in very many open and blocked lanes. Also make lists, with cancelled jobs, that are longer than a page
    reads."""
    seed = scene.seed
    for scope in ("tenant", *(f"task=t{n}" for n in range(120))):
        seed.cap(scope, 1)
    seed.client.run(seed.calls.caps.set(QUEUE, [("team@60s", "1/60000ms/1", -1)], why="a test"))
    for family, priority in (("tenant", "critical"), ("team@60s", "critical"), ("zone", "low")):
        seed.enqueue(
            *(
                seed.job(f"{family}-{n}-{k}".replace("@", ":"), priority=priority, scopes=[f"{family}={n}"])
                for k in range(2)
                for n in range(LANES)
            )
        )  # fmt: skip
    # Each lane has one job more than its key may run.
    for _ in range(16):
        seed.claim(100)
    for priority in ("critical", "high", "normal", "low"):
        gone = [f"{priority}-gone-{n}" for n in range(5)]
        seed.enqueue(*(seed.job(job_id, priority=priority) for job_id in gone))
        seed.cancel(*gone)
        seed.enqueue(*(seed.job(f"{priority}-{n}", priority=priority) for n in range(LISTED)))


@pytest.fixture(autouse=True)
def nothing_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn off the shared overview, so that each request reads Redis."""
    monkeypatch.setattr(sources, "SHARED_S", 0.0)
    monkeypatch.setattr(sources, "SharedOverview", functools.partial(SharedOverview, shared_s=0.0))


def counts(scene: Scene, browse: Browse, **paths: str) -> dict[str, int]:
    """Return how many commands each page sends to Redis, by the name of the page."""
    page, found = browse(log=False), {}
    for name, path in paths.items():
        read(page, path)  # Connects.
        found[name] = len(sent(scene, functools.partial(read, page, path)))
    return found


def test_a_page_sends_at_most_seventy_commands_however_many_jobs_and_lanes_wait(
    scene: Scene, browse: Browse
) -> None:
    fill(scene)
    (state,), _ = scene.seed.client.run(scene.seed.calls.reads.looks([QUEUE]))
    assert state.blocked_lanes >= 1_000
    assert state.open_lanes >= LANES
    paths = {
        "queue": f"/queues/{QUEUE}",
        "job in a lane": f"/jobs/{QUEUE}/zone-1099-1",
        "job": f"/jobs/{QUEUE}/low-599",
    }

    found = counts(
        scene, browse, overview="/", jobs=f"/jobs?queue={QUEUE}&task=none", dead="/dead", **paths
    )
    scene.seed.cap(WHOLE_QUEUE, 0)
    full = counts(scene, browse, **paths)

    assert 30 < found["overview"] <= COMMANDS_MAX + len(["SMEMBERS", "INFO"])
    for each in (found, full):
        assert {name: count for name, count in each.items() if count > PAGE_MAX} == {}


def test_reading_a_queue_that_uses_every_feature_sends_the_stated_number_of_commands(
    scene: Scene, browse: Browse
) -> None:
    seed = scene.seed
    seed.attach()
    seed.parked("parked")
    Busy(seed)
    seed.enqueue("event")
    sent(scene, lambda: None)  # Connects.
    (state,) = seed.client.run(seed.calls.reads.overview()).queues

    asked = sent(scene, lambda: seed.client.run(seed.calls.reads.overview()))

    parts = {
        "backlog": state.oldest_event_ms is not None, "schedules": state.schedules, "parked": state.parked,
        "boxes": state.box_fields, "remembered": state.remembered, "lanes": state.blocked_lanes,
        "death": state.last_death, "full": state.full_scopes,
    }  # fmt: skip
    assert [name for name, found in parts.items() if not found] == []
    assert len(asked) == COMMANDS_MAX + len(["SMEMBERS", "INFO"])
    assert counts(scene, browse, queue=f"/queues/{QUEUE}")["queue"] <= PAGE_MAX


def test_the_page_of_a_queue_reads_only_a_few_of_many_weights(scene: Scene, browse: Browse) -> None:
    """Checks 3,000 weights in the hash of the limits. The page shows the limits first."""
    seed = scene.seed
    seed.configure(fair=1)
    for at in range(0, 3_000, 500):
        weights = [(f"weight=k{n}", "2", -1) for n in range(at, at + 500)]
        seed.client.run(seed.calls.caps.set(QUEUE, weights, why="a test"))
    page = browse(log=False)
    path = f"/queues/{QUEUE}"
    read(page, path)

    asked = sent(scene, lambda: read(page, path))

    assert len(asked) <= PAGE_MAX
    assert sum("HSCAN" in each and ":caps" in each for each in asked) <= 4
    document = page.get(f"{path}.json").json()
    assert len(document["limits"]) == 100
    assert "the first 100" in document["notes"][0]


def test_a_search_by_an_argument_sends_at_most_550_commands(scene: Scene, browse: Browse) -> None:
    jobs = [scene.seed.job(f"j{n}", args_json='{"to": "x"}') for n in range(LISTED)]
    scene.seed.enqueue(*jobs)
    page = browse(log=False, see_arguments=True)
    path = f"/jobs?q=queue:{QUEUE}+state:ready+arg:to=y"
    read(page, path)

    assert len(sent(scene, lambda: read(page, path))) <= 550
