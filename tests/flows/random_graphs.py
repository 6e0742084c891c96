"""Compares random flows with a naive model, which knows no queue, no job and no crash.

A flow has 30 nodes over three queues. Its calls fail, are cancelled and are retried, and its own run crashes. A longer
run: `python -m tests.flows.random_graphs --seeds 1..500`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import click

from rq_core import App, FlowNode, FlowRun, RetryPolicy, testing
from rq_core.app.flows import built_in
from rq_core.app.flows.between_runs import KeptRun
from rq_core.app.flows.running import FlowSteps
from rq_core.errors import RqCoreError, ServerUnavailable
from rq_core.model.lib.newest_values import NewestValues
from rq_core.worker.execution.saver import Saver

NODES: Final = 30
QUEUES: Final = ("a", "b", "c")
HOME: Final = "flows"
RETRIES: Final = 60
CRASH: Final = 0.02
"""Probability that a call of the flow's own run to Redis fails, before or after Redis has carried it out."""
ONCE: Final = RetryPolicy(max_attempts=1)


@dataclass
class Plan:
    """A random flow, and its failures and cancels."""

    after: list[list[int]]
    """The nodes before each node."""
    failures: list[list[int]]
    """How often each call of each node fails before it succeeds. A node with more than one call is a map."""
    needed: list[int]
    cancelled: set[tuple[int, int]]
    """The calls (node, position) that an operator cancels before they run. They never succeed."""
    on_failure: str

    @classmethod
    def random(cls, draw: random.Random, on_failure: str) -> Plan:
        after, failures, needed = [], [], []
        cancelled: set[tuple[int, int]] = set()
        for number in range(NODES):
            count = min(number, draw.choice((0, 1, 1, 2, 3)))
            after.append(sorted(draw.sample(range(number), count)))
            width = draw.choice((1, 1, 1, 2, 4))
            failures.append([draw.choice((0,) * 9 + (1, 2, 3)) for _ in range(width)])
            needed.append(width if draw.random() < 0.7 else draw.randint(0, width))
            # Which nodes a flow stops depends on who runs first, so it is no subject of the model.
            if on_failure == "drain" and draw.random() < 0.04:
                cancelled.add((number, draw.randrange(width)))
        return cls(after, failures, needed, cancelled, on_failure)


@dataclass
class Model:
    """The naive model: it goes over the nodes in order, once for each time that the flow is enqueued or retried."""

    plan: Plan
    done: set[int] = field(default_factory=set)
    left: list[list[int]] = field(default_factory=list)
    calls_done: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.left = [list(each) for each in self.plan.failures]

    def run(self) -> None:
        for number, before in enumerate(self.plan.after):
            if number in self.done or not set(before) <= self.done:
                continue
            for at, failures in enumerate(self.left[number]):
                if (number, at) in self.plan.cancelled or (number, at) in self.calls_done:
                    continue
                if failures:
                    self.left[number][at] -= 1
                else:
                    self.calls_done.add((number, at))
            if sum(each == number for each, _ in self.calls_done) >= self.plan.needed[number]:
                self.done.add(number)


class Crashes:
    """Lets the calls of flows to Redis fail."""

    def __init__(self, draw: random.Random, probability: float) -> None:
        self._draw = draw
        self._probability = probability
        self.count = 0

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def crashing(*args: Any) -> Any:
            before, after = (self._draw.random() < self._probability for _ in range(2))
            if before:
                self._crash()
            found = await call(*args)
            if after:
                self._crash()
            return found

        return crashing

    def _crash(self) -> None:
        self.count += 1
        raise ServerUnavailable(url="redis://crashed", why="the run crashes here")

    @contextmanager
    def at_work(self) -> Iterator[None]:
        kept = {name: getattr(Saver, name) for name in ("ask", "load", "save")}
        for name, call in kept.items():
            setattr(Saver, name, self.wrap(call))
        try:
            yield
        finally:
            for name, call in kept.items():
                setattr(Saver, name, call)


@contextmanager
def several_processes(draw: random.Random) -> Iterator[None]:
    """Let each run of a flow's job be in one of three processes. Each keeps the state that its own last run knew."""
    kept: list[NewestValues[tuple[str, str], KeptRun]] = [NewestValues(9, 10**6) for _ in range(3)]

    def steps(context: Any, home: Any, app: Any, tasks: Any, graph: Any, _: Any) -> FlowSteps:
        return FlowSteps(context, home, app, tasks, graph, draw.choice(kept))

    setattr(built_in, "FlowSteps", steps)  # noqa: B010 - the module does not export it
    try:
        yield
    finally:
        setattr(built_in, "FlowSteps", FlowSteps)  # noqa: B010


@dataclass
class Found:
    """The counts and the problems of a run."""

    problems: list[str] = field(default_factory=list)
    crashes: int = 0
    runs: int = 0
    done: int = 0
    retries: int = 0


def check(seed: int, on_failure: str) -> Found:
    """Run the flow of a seed, and compare it with the model.

    With ``drain`` they are compared after each round, and with ``cancel`` only at the end.
    """
    draw = random.Random(f"{seed} {on_failure}")
    plan = Plan.random(draw, on_failure)
    app = App()
    app.enable_flows()
    left = [list(each) for each in plan.failures]
    succeeded: Counter[tuple[int, int]] = Counter()
    wrong: list[str] = []

    def work(number: int, at: int, got: list[Any]) -> list[int]:
        # Each node tells what it got, so a result under a wrong node would be seen.
        for before, result in zip(plan.after[number], got, strict=True):
            results = result if _is_map(plan, before) else [result]
            places = [n for each, n in results if each == before and succeeded[before, n]]
            is_enough = len(results) >= plan.needed[before]
            if len(places) != len(results) or places != sorted(set(places)) or not is_enough:
                wrong.append(f"seed {seed}: node {number} got {result} from node {before}")
        if left[number][at]:
            left[number][at] -= 1
            raise ValueError("as planned")
        succeeded[number, at] += 1
        return [number, at]

    tasks = [app.task(queue=queue, name=f"work-{queue}", retry=ONCE)(work) for queue in QUEUES]
    found, model = Found(), Model(plan)
    crashes = Crashes(draw, CRASH)
    is_over = False
    with testing.fake(app) as fake, several_processes(draw):
        run = _declared(app, tasks, plan, draw).enqueue(queue=HOME, id=f"flow-{seed}")
        for round_ in range(RETRIES):
            with crashes.at_work():
                found.runs += _drive(fake, app, plan, run, draw)
            before = len(model.calls_done), sum(map(sum, model.left))
            if on_failure == "drain":
                model.run()
                _compare(run, plan, model, found, f"seed {seed}, round {round_}")
                is_over = before == (len(model.calls_done), sum(map(sum, model.left)))
            if is_over or run.state() != "dead":
                break
            found.retries += 1
            run.retry()
        if on_failure == "cancel":
            for _ in range(RETRIES):
                model.run()
            _compare(run, plan, model, found, f"seed {seed}")
    found.problems += wrong
    found.crashes = crashes.count
    found.done = len(model.done)
    found.problems += [
        f"seed {seed}: call {call} succeeded {times} times"
        for call, times in succeeded.items()
        if times > 1
    ]
    missing = {
        number
        for number in model.done
        if sum(each == number for each, _ in succeeded) < plan.needed[number]
    }
    if missing:
        found.problems.append(f"seed {seed}: nodes {sorted(missing)} are done without their jobs")
    return found


def _is_map(plan: Plan, number: int) -> bool:
    return len(plan.failures[number]) > 1 or plan.needed[number] == 0


def _declared(app: App, tasks: list[Any], plan: Plan, draw: random.Random) -> Any:
    nodes: list[FlowNode] = []
    with app.flow("random", on_failure=plan.on_failure) as flow:
        for number, before in enumerate(plan.after):
            got = [nodes[n].values if nodes[n].is_map else nodes[n].value for n in before]
            calls = [
                draw.choice(tasks).call(number, at, got) for at in range(len(plan.failures[number]))
            ]
            if _is_map(plan, number):
                nodes.append(flow.map(calls, min_success=plan.needed[number], name=f"n{number}"))
            else:
                nodes.append(flow.add(*calls, name=f"n{number}"))
    return flow


def _drive(fake: testing.Fake, app: App, plan: Plan, run: FlowRun[Any], draw: random.Random) -> int:
    """Run the jobs of the queues, in random order, until nothing is left. Calls that the plan cancels are cancelled
    before they run. Return how many jobs ran or were cancelled."""
    ran = 0
    while True:
        runs = len(fake.drain(HOME))
        for each in fake.enqueued(*QUEUES):
            if (each.arguments["number"], each.arguments["at"]) in plan.cancelled:
                app.handle_by_id(each.queue, each.id).cancel()
                runs += 1
        for queue in draw.sample(QUEUES, draw.randint(1, 3)):
            runs += len(fake.drain(queue))
        ran += runs
        if not runs:
            if run.state() in ("dead", "succeeded", "unknown", "gone") or not run.nodes():
                return ran
            # Nobody tells a flow of cancelled children: it looks by itself.
            fake.advance(60)


def _compare(run: FlowRun[Any], plan: Plan, model: Model, found: Found, where: str) -> None:
    nodes = run.nodes()
    done = {number for number in range(NODES) if not nodes or nodes[f"n{number}"].state == "done"}
    if done != model.done:
        more, fewer = sorted(done - model.done), sorted(model.done - done)
        found.problems.append(f"{where}: {more} are done, and {fewer} are not ({plan.on_failure})")
    if not nodes and run.state() != "succeeded":
        found.problems.append(f"{where}: the flow is {run.state()}")


@click.command()
@click.option("--seeds", default="1..100", metavar="A..B", help="All from A to B.")
@click.option("--seed", type=int, help="This one.")
def main(seeds: str, seed: int | None) -> None:
    """Compare random flows with the model. Exits with 1 if they differ."""
    first, last = (seed, seed) if seed is not None else map(int, seeds.split(".."))
    total = Found()
    for each in range(first, last + 1):
        for on_failure in ("drain", "cancel"):
            try:
                found = check(each, on_failure)
            except RqCoreError as error:
                found = Found([f"seed {each}, {on_failure}: {error!r}"])
            for problem in found.problems:
                click.echo(problem)
            total.problems += found.problems
            total.crashes += found.crashes
            total.runs += found.runs
            total.done += found.done
            total.retries += found.retries
    click.echo(
        f"seeds {first} to {last}, each with drain and cancel: {total.done:,} nodes done in {total.runs:,} runs, with"
        f" {total.crashes:,} crashes and {total.retries:,} retries; {len(total.problems)} problems"
    )
    raise SystemExit(bool(total.problems))


if __name__ == "__main__":
    main()
