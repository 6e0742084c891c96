"""Shows the web page in Chromium, in each state of a server. Saves pictures, and reports what the tool axe finds.

    scripts/prove/live page                      all states, into build/page
    scripts/prove/live page long stuck-paused    only these two states

The states are no queue, ten queues, the longest names, a million jobs, five stuck queues (tests/rigs/stuck.py), and
jobs that waited yesterday. The first screen must name the cause if a queue is stuck or jobs have waited.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from scripts.measure.once.scrape_cost import fill
from tests.kit.browser import SCHEMES, chromium, served, viewing
from tests.kit.clock import CLOCK_KEY
from tests.kit.seed import Seed
from tests.kit.servers import engines, free_port
from tests.rigs import stuck
from tests.rigs.stage import directory
from tests.rigs.stage import served as server_of
from tests.web.conftest import QUEUE, Scene, lay_log, make_busy
from tests.web.test_pages import ADDRESSES

WIDTHS: Final = (390, 1024, 1440)
LONG: Final = 128
"""The length of the longest allowed name of a queue, a job or a task."""
DAY_MS: Final = 86_400_000
NOON_MS: Final = 43_200_000


class Shown(NamedTuple):
    """The pages that are checked in one state of the server."""

    paths: dict[str, str]
    says: tuple[str, ...] = ()
    """Words that must be on the first screen of the first page."""


def _pages(queue: str = QUEUE, job: str = "waits") -> dict[str, str]:
    return {
        name: path.replace(QUEUE, queue).replace("waits", job) for name, path in ADDRESSES.items()
    }


def nothing(scene: Scene) -> Shown:
    """Leave the server empty."""
    return Shown(_pages(), ("Nothing is wrong", "No queues yet"))


def ten(scene: Scene) -> Shown:
    """Make ten queues: a busy queue with a worker and a dead job, and nine queues without workers (one is paused)."""
    make_busy(scene)
    names = [f"{name}-{n}" for name in ("orders", "images", "reports") for n in range(3)]
    for n, name in enumerate(names):
        other = scene.seed.of(name)
        other.enqueue(*(f"{name}-{k}" for k in range(n + 1)))
        if n % 3 == 0:
            other.complete(*other.claim(1).jobs)
    scene.seed.of(names[1]).configure(paused=1)
    scene.mirror(QUEUE, *names)
    return Shown(_pages(), ("wrong", "orders-0"))


def long(scene: Scene) -> Shown:
    """Make the longest allowed names. They have no place at which a line can break."""
    queue, task, job = "q" * LONG, "t" * LONG, "j" * LONG
    seed = scene.seed.of(queue)
    tenant = "tenant=" + "k" * 200
    seed.cap("tenant", 1)
    seed.enqueue(seed.job("h" * LONG, task=task, scopes=[tenant]))
    seed.claim(1)
    seed.enqueue(seed.job(job, task=task, scopes=[tenant]))
    seed.claim(1)
    Scene(seed, scene.audit_url).die(
        "d" * LONG, '{"type": "%s", "message": "%s", "traceback": "%s"}' % (("e" * 200,) * 3)
    )
    Scene(seed, scene.audit_url).present("w" * LONG, host="h" * 200)
    scene.mirror(queue)
    return Shown(_pages(queue, job), ("qqqq",))


def many(scene: Scene, jobs: int, lanes: int) -> Shown:
    """Make very many jobs, half of them in lanes."""
    fill(scene.seed.client, jobs, lanes)
    return Shown(_pages("lanes"), ("no worker runs", "lanes", "plain"))


def waited(scene: Scene) -> Shown:
    """Let three jobs of a tenant wait while a long job of the same tenant runs. They waited yesterday, from 12:03
    on."""
    seed = scene.seed
    with Seed(scene.url, QUEUE) as then:
        now, _ = then.control.time()
        noon = int(now) * 1000 // DAY_MS * DAY_MS - DAY_MS + NOON_MS

        def at(minutes: float) -> None:
            then.clock.set(noon + int(minutes * 60_000))

        at(0)
        then.cap("tenant", 1)
        then.enqueue(then.job("export", task="export", scopes=["tenant=acme"]))
        (held,) = then.claim(1).jobs
        for n, minute in enumerate((3.0, 3.1, 3.2)):
            at(minute)
            then.enqueue(then.job(f"invoice-{n}", task="send", scopes=["tenant=acme"]))
            then.enqueue(then.job(f"other-{n}", task="send", scopes=[f"tenant=t{n}"]))
            then.complete(*then.claim(10).jobs)
            then.extend([held])
        for minute in (4.0, 5.0, 6.0, 7.0):
            at(minute)
            then.extend([held])
        then.complete(held)
        for _ in range(3):
            at(minute := minute + 0.02)
            then.complete(*then.claim(1).jobs)
        then.control.delete(CLOCK_KEY)
    scene.mirror()
    moment = f"/at?t={noon + 3 * 60_000 + 30_000}&queue={QUEUE}"
    job = f"/jobs/{QUEUE}/invoice-1"
    assert seed.queue == QUEUE
    return Shown({"at": moment, "job": job}, ("invoice-0", "invoice-1", "invoice-2", "export"))


def _stuck(name: str) -> Callable[[Scene], Shown]:
    def made(scene: Scene) -> Shown:
        with stuck.scene(scene.url, name):
            pass
        if name != "sql_away":
            scene.mirror()
        return Shown({"overview": "/", "queue": f"/queues/{QUEUE}"}, (stuck.SAYS[name],))

    return made


STATES: Final[dict[str, Callable[[Scene], Shown]]] = {
    "nothing": nothing,
    "ten": ten,
    "long": long,
    "many": lambda scene: many(scene, 1_000_000, 50_000),
    "waited": waited,
    **{f"stuck-{name}": _stuck(name) for name in stuck.SCENES},
}


def look(browser: Any, state: str, place: Path, shots: Path) -> Iterator[str]:
    """Bring a server into a state, check each page, and yield the problems as sentences."""
    audit_url = f"sqlite:///{place / 'audit.db'}"
    lay_log(audit_url)
    with server_of(engines()[0], place) as server, Seed(server.url, QUEUE, real_clock=True) as seed:
        shown = STATES[state](Scene(seed, audit_url))
        log = audit_url
        if state == "stuck-sql_away":
            log = f"postgresql://nobody@127.0.0.1:{free_port()}/none"
        with served(server.url, log, place / "web.log") as url, viewing(browser, url) as viewer:
            for at, (name, path) in enumerate(shown.paths.items()):
                viewer.go(path)
                for scheme, width in itertools.product(SCHEMES, WIDTHS):
                    viewer.show(scheme, width)
                    where = f"{state}, {name}, {scheme}, {width} px"
                    yield from (f"{where}: {each}" for each in viewer.findings())
                    viewer.picture(shots / f"{state}-{name}-{width}-{scheme}.png", whole=True)
                    if at == 0 and width == WIDTHS[-1]:
                        said = viewer.first_screen()
                        missing = [word for word in shown.says if word not in said]
                        yield from (f"{where}: the first screen lacks {each!r}" for each in missing)


def look_at(states: list[str], shots: Path) -> Iterator[tuple[str, list[str]]]:
    """Check these states one after another. Yield each state with its problems."""
    with chromium() as browser:
        for state in states:
            with contextlib.ExitStack() as stack:
                place = stack.enter_context(directory())
                yield state, list(look(browser, state, place, shots))
