"""The pictures on the pages. They are readable in light and in dark, and show what the scripts do."""

from __future__ import annotations

from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest
from fakeredis.commands_mixins import server_mixin

from rq_core import App, testing
from rq_core.model.keys import queue_keys
from rq_core.protocol.reads.steps import time_ms
from scripts.docs import site
from scripts.docs.panels import Panel
from scripts.docs.pictures import gallery
from scripts.docs.pictures.board import Line, lines_of
from scripts.docs.pictures.drawing import COLOURS
from scripts.docs.pictures.journey import LEASE_EVENTS
from scripts.docs.pictures.timelines import SCENES, Fate, Run, Scene
from tests.kit.seed import Seed

PICTURES = gallery.pictures()


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_small_and_has_a_title_and_loads_nothing(name: str) -> None:
    picture = PICTURES[name]
    tree = ET.fromstring(picture)  # noqa: S314 - it is our own

    assert tree.findtext("{http://www.w3.org/2000/svg}title")
    assert len(picture) < 40_000
    assert "<script" not in picture
    assert [] == list(site.foreign(picture))


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour by WCAG, from 0 to 1."""
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * p for weight, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_words_in_pictures_have_the_contrast_that_wcag_requires(scheme: str) -> None:
    colours = {name: luminance(getattr(colour, scheme)) for name, colour in COLOURS.items()}
    pairs = [(name, "card") for name in ("ink", "dim")]
    for fill in (name for name in COLOURS if name.endswith("-fill")):
        pairs += [(fill.removesuffix("-fill"), ground) for ground in (fill, "card")]

    for name, ground in pairs:
        high, low = sorted((colours[name], colours[ground]), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5, (name, ground)


class Stage:
    """A fake server with a clock that a test advances. A scene runs its calls on this server."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.app = App()
        self.left = list(enumerate(scene.calls))
        self.jobs: list[str] = []
        self.fates: dict[int, Fate] = {}
        self.runs: list[Run] = []
        self.began = 0.0

        @self.app.task(queue="q", unique=scene.unique)
        def handle(doc: str, call: int) -> None:
            self.runs.append(Run(self.now(), call))
            self.fates[call] = Fate.RUNS
            self.pass_until(self.runs[-1].began + scene.takes)

        self.task = handle

    def play(self) -> None:
        with testing.fake(self.app) as self.fake:
            for run in self.scene.runs:
                self.pass_until(self.scene.calls[run.call].at)
                # Moves the clock to the next due time. A scene in which another call runs first fails here.
                self.fake.drain("q")
            self.pass_until(self.scene.until)

    def now(self) -> float:
        """Return the seconds since the scene began, on the fake server's clock."""
        client, meta = self.app.client, queue_keys("q", self.app.prefix)("meta")
        time, added = client.run(
            client.calls.delivery.ask([["TIME"], ["HGET", meta, "test_clock_ms"]])
        )
        now = (time_ms(time) + int(added or 0)) / 1000
        self.began = self.began or now
        return now - self.began

    def pass_until(self, moment: float) -> None:
        while self.left and self.left[0][1].at <= moment:
            number, call = self.left.pop(0)
            self.wait(call.at)
            handle = self.task.enqueue("a", number)
            if handle.duplicate:
                self.fates[number] = Fate.DUPLICATE
            else:
                self.jobs.append(handle.id)
            if handle.replaced:
                self.fates[number - 1] = Fate.REPLACED
        self.wait(moment)

    def wait(self, moment: float) -> None:
        if moment > self.now():
            self.fake.advance(moment - self.now())


@pytest.mark.parametrize("name", SCENES)
def test_the_picture_of_a_timeline_agrees_with_what_the_library_does_at_each_call(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only the scene moves the clock, so a slow machine changes nothing.
    monkeypatch.setattr(server_mixin, "time", SimpleNamespace(time=lambda: 1_800_000_000.0))
    scene = SCENES[name]
    stage = Stage(scene)

    stage.play()

    assert [call.fate for call in scene.calls] == [stage.fates[n] for n in range(len(scene.calls))]
    assert [run.call for run in scene.runs] == [run.call for run in stage.runs]
    for drawn, run in zip(scene.runs, stage.runs, strict=True):
        assert drawn.began == pytest.approx(run.began, abs=0.1)


def test_the_picture_of_a_lease_shows_the_events_that_the_scripts_append(valkey_url: str) -> None:
    with Seed(valkey_url) as seed:
        seed.enqueue("a")
        first = seed.claim_one("a", worker="w-a")
        seed.advance(10_000)
        seed.extend([first], worker="w-a")
        for _ in range(6):
            # A worker looks every five seconds; while the lease is in force, the job is not its.
            seed.advance(5_000)
            claimed = seed.claim(worker="w-b").jobs
        seed.advance(1)
        (second,) = [*claimed, *seed.claim(worker="w-b").jobs]
        seed.complete(first, worker="w-a")
        seed.complete(second, worker="w-b")

        assert [str(event) for event in LEASE_EVENTS] == [
            str(entry.event) for entry in seed.entries() if entry.event in LEASE_EVENTS
        ]


def test_drawing_a_panel_whose_metric_was_not_recorded_is_an_error() -> None:
    panel = Panel("p", "s", (("rqc_up", "Redis"),))

    assert lines_of(panel, {"series": {"rqc_up": [[{}, [1.0]]]}}) == [Line("Redis", [1.0])]
    with pytest.raises(ValueError, match="rqc_up"):
        lines_of(panel, {"series": {}})
