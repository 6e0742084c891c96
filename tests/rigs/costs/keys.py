"""Worker processes run very many jobs of many keys, each under a rate of its own. Three records must agree that no rate
was exceeded: the handlers' own lines, the log, and `audit verify`."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rq_core.connections.client import Client
from rq_core.model.job import NewJob
from tests.kit import auditlog
from tests.kit.wait import wait_until
from tests.rigs.costs import tasks
from tests.rigs.judge import costs
from tests.rigs.judge.times import percentile
from tests.rigs.naive_bucket import Bucket
from tests.rigs.parks.log import Log, Told
from tests.rigs.stage import WORKER, Crew, workers

PLACES: Final = 8
TELLING: Final = 4
"""One key in TELLING has jobs that report how many tokens they have really taken."""
SHOWN: Final = 10
"""Maximum number of problems of a kind that are shown."""


@dataclass
class Order:
    """A job as its producer enqueued it."""

    key: str
    tokens: int
    tells: bool


@dataclass
class Spent:
    """The counts of a run, and the problems that the run found."""

    claims: int
    keys: int
    processes: int
    seconds: float = 0.0
    tokens: int = 0
    settled: int = 0
    unsure_ms: list[int] = field(default_factory=list)
    """For each judged run: the latest possible time of its claim minus the earliest (ms), by the handlers' lines."""
    at_nine_tenths: tuple[int, int] = (0, 0)
    """The numbers of claims that would be too early if the rate were a tenth lower: by the handlers' lines, and by the
    log."""
    long_run: list[float] = field(default_factory=list)
    """For each key whose jobs report what they have taken: the time from its first claim to its last, divided by the
    time in which the tokens come back. It is 1 if the key always had a waiting job and a free worker."""
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        lines, log = self.at_nine_tenths
        return (
            f"{self.claims:,} claims over {self.keys:,} keys by {self.processes} workers in {self.seconds:.0f} s,"
            f" {self.tokens:,} tokens, {self.settled:,} claims said what they took; the lines leave"
            f" {percentile(self.unsure_ms, 0.5):.0f} ms open (p50; p99 {percentile(self.unsure_ms, 0.99):.0f} ms);"
            f" with a rate that is a tenth lower, {lines:,} claims would be too early by the lines and {log:,} by the"
            f" log; keys whose jobs said what they took needed {min(self.long_run, default=0):.3f} (least) and"
            f" {percentile(self.long_run, 0.5):.3f} (p50) of the time in which it comes back;"
            f" {len(self.problems)} problems"
        )


def spend(
    url: str, place: Path, claims: int, keys: int, *, processes: int = 4, seed: int = 1
) -> Spent:
    """Let workers run this number of jobs, which cost 1 token to 3 times the burst.

    The jobs of a key are enqueued one after the other, so that at each time the rates of some keys are used up."""
    found, draw, app = Spent(claims, keys, processes), random.Random(seed), tasks.app
    app.connect_to(url)
    app.apply_settings()
    orders: dict[str, Order] = {}
    jobs: list[NewJob] = []
    for number in range(claims):
        at = number * keys // claims
        order = Order(f"k{at}", draw.randint(1, 3 * tasks.BURST), at % TELLING == 0)
        jobs.append(tasks.ask.job(order.key, order.tokens, order.tells))
        orders[jobs[-1].id] = order
    options = "tests.rigs.costs.tasks:app", [tasks.PAID], url, "--concurrency", str(PLACES)
    with (
        Client(url) as client,
        Log(client, place, tasks.PAID) as log,
        workers(place, *options, count=processes) as crew,
    ):
        began = time.time()
        _work(app, log, crew, jobs)
        found.seconds = time.time() - began
        crew.stop(WORKER)
        log.follow()
        _judge_lines(crew.witness.lines("ran"), orders, began * 1000, found)
        _judge_log(log, orders, found)
    app.close()
    return found


def _work(app: Any, log: Log, crew: Crew, jobs: Sequence[NewJob]) -> None:
    for start in range(0, len(jobs), 5_000):
        app.enqueue_many(jobs[start : start + 5_000])
        log.follow()

    def is_done() -> bool:
        log.follow()
        return not log.unended()

    wait_until(
        is_done,
        lambda: f"all jobs have ended, {log.unended()} are left: {crew.end_of_log()}",
        timeout=120 + len(jobs) / 20,
    )


def _judge_lines(
    lines: Sequence[Mapping[str, Any]],
    orders: Mapping[str, Order],
    since_ms: float,
    found: Spent,
) -> None:
    """Judge the handlers' lines. The times of jobs that report what they have taken are not judged, since the lines do
    not have the time at which Redis corrected the rate."""
    ran = Counter(line["job"] for line in lines)
    if ran != Counter(orders.keys()):
        found.problems.append(
            f"{len(orders):,} jobs were enqueued, and {len(ran):,} ran, or some of them twice"
        )
    for line in lines:
        order = Order(line["key"], line["tokens"], line["tells"])
        if orders.get(line["job"]) != order:
            found.problems.append(f"{line['job']} ran as {order}")
    runs = [run for run in costs.runs(lines, PLACES, since_ms) if not orders[run.job].tells]
    found.unsure_ms = [run.latest_ms - run.earliest_ms for run in runs]
    found.problems += [f"lines: {each}" for each in costs.too_early(runs, tasks.bucket)[:SHOWN]]
    lower = costs.too_early(runs, lambda: tasks.bucket(0.9))
    found.at_nine_tenths = len(lower), 0


def _judge_log(log: Log, orders: Mapping[str, Order], found: Spent) -> None:
    """Judge the times in the log by a bucket that shares no code with the rate, and by `audit verify`."""
    told = list(log.events("claimed", "cost_settled"))
    claimed = Counter(each.job for each in told if each.event == "claimed")
    if claimed != Counter(orders.keys()):
        found.problems.append("the log has other claims than one of each job")
    found.problems += [f"log: {each}" for each in early_in_log(told, orders)[:SHOWN]]
    lower = len(early_in_log(told, orders, 0.9))
    found.at_nine_tenths = found.at_nine_tenths[0], lower
    found.tokens = sum(order.tokens for order in orders.values())
    found.long_run = list(_long_run(told, orders))
    found.settled = sum(each.event == "cost_settled" for each in told)
    if found.settled != sum(order.tells for order in orders.values()):
        found.problems.append(f"{found.settled:,} costs were settled")
    _judge_view(log, orders, found)
    found.problems += log.problems()


def early_in_log(
    told: Sequence[Told], orders: Mapping[str, Order], share: float = 1.0
) -> list[str]:
    """Return a sentence for each claim in the log that came before the bucket of its key had room, and for each logged
    cost that is not what the job reported. The bucket gets only ``share`` of the tokens back."""
    buckets: defaultdict[str, Bucket] = defaultdict(lambda: tasks.bucket(share))
    problems = []
    for each in told:
        order = orders[each.job]
        bucket = buckets[order.key]
        if each.event == "claimed":
            opens_ms = bucket.opens_ms(order.tokens, each.at_ms)
            if opens_ms > each.at_ms:
                problems.append(f"{each.job} was claimed {opens_ms - each.at_ms} ms too early")
            bucket.take(order.tokens, each.at_ms)
            continue
        taken = tasks.truth(each.job, order.tokens)
        if each.facts["taken"] != f"tokens:{taken}":
            problems.append(f"{each.job} took {taken} tokens, the log says {each.facts['taken']}")
        bucket.correct(taken - order.tokens, each.at_ms)
    return problems


def _long_run(told: Sequence[Told], orders: Mapping[str, Order]) -> Iterator[float]:
    """Yield a ratio for each key whose jobs report what they have taken: the time from its first claim to its last,
    divided by the time in which the tokens come back. These are the tokens that all jobs but the last have taken and
    the cost of the last job (at most the burst), without the burst that was there at the beginning."""
    claims: defaultdict[str, list[Told]] = defaultdict(list)
    for each in told:
        if each.event == "claimed" and orders[each.job].tells:
            claims[orders[each.job].key].append(each)
    for mine in claims.values():
        *before, last = mine
        taken = sum(tasks.truth(each.job, orders[each.job].tokens) for each in before)
        awaited = taken + min(orders[last.job].tokens, tasks.BURST) - tasks.BURST
        yield (last.at_ms - mine[0].at_ms) * tasks.BURST / (awaited * tasks.WINDOW_MS)


def _judge_view(log: Log, orders: Mapping[str, Order], found: Spent) -> None:
    """Compare the sums of the view `scope_cost` with the sums of what producers and handlers said."""
    expected: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for job_id, order in orders.items():
        taken = tasks.truth(job_id, order.tokens) if order.tells else order.tokens
        expected[f"ask.key@0.1s:tokens={order.key}"].update(
            claims=1, estimated=order.tokens, taken=taken, settled=int(order.tells)
        )
    rows = auditlog.rows(
        log.database, "SELECT scope, unit, claims, estimated, taken, settled FROM scope_cost"
    )
    sums = {row.pop("scope"): row for row in rows}
    for scope, wanted in expected.items():
        if sums.pop(scope, None) != {"unit": "tokens", **wanted}:
            found.problems.append(f"scope_cost has other sums of {scope} than {dict(wanted)}")
    found.problems += [f"scope_cost has {scope}, which no job has" for scope in sums]
