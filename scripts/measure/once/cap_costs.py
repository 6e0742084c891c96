"""Counts the ``redis.call``s of claims and completions while very many jobs wait.

    scripts/measure/once/run cap-costs [--jobs N] [--tenants N] [--engine NAME]

The jobs are completed in ten equal parts. The command fails if a completion in one part costs over 20 % more than in
another. tests/lua/test_caps_budget.py is a short form.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import deque
from collections.abc import Iterable, Iterator

import click

from rq_core.model.job import NewJob
from rq_core.protocol.calls.enqueue import ENQUEUE_CHUNK
from rq_core.scripts.script import script
from tests.kit.reaper import close_reaper
from tests.kit.seed import Seed
from tests.kit.servers import RedisServer, engines
from tests.kit.tally import Tally, calls_of
from tests.rigs.stage import directory, served


def seeded(server: RedisServer) -> Seed:
    """Return an empty queue with the real scripts and the real clock."""
    with server.client() as control:
        control.flushall()
    return Seed(server.url, scripts=script, real_clock=True)


def one_lane(seed: Seed, count: int) -> Iterator[NewJob]:
    return (seed.job(f"j-{n}", scopes=["tenant=full"]) for n in range(count))


def many_lanes(seed: Seed, count: int) -> Iterator[NewJob]:
    return (seed.job(f"j-{n}", scopes=["host=full", f"tenant=t{n}"]) for n in range(count))


def enqueue_singly(seed: Seed, jobs: Iterable[NewJob]) -> None:
    """Enqueue each job by a call of its own. Many calls share one round trip."""
    calls = [seed.calls.enqueue.chunk(seed.queue, [job]) for job in jobs]
    seed.client.run(seed.client.calls.delivery.handshake(seed.queue))
    for at in range(0, len(calls), ENQUEUE_CHUNK):
        seed.client.run(seed.client.calls.delivery.carry_out(calls[at : at + ENQUEUE_CHUNK]))


def beside(server: RedisServer, blocked: int) -> Iterator[str]:
    """Enqueue one job behind ``blocked`` jobs that full caps block. The one job has no cap, or a cap with room. Yield a
    line for each case, with the number of claims until a claim gets the one job."""
    for waiting in (one_lane, many_lanes):
        for singly in (False, True):
            for scopes in ((), ("tenant=free",)):
                with seeded(server) as seed:
                    seed.cap("tenant", 1)
                    seed.cap("host", 1)
                    jobs = waiting(seed, blocked)
                    if singly:
                        enqueue_singly(seed, jobs)
                    else:
                        seed.client.run(seed.client.calls.enqueue.many(jobs))
                    seed.enqueue(seed.job("beside", scopes=scopes))
                    opened = seed.control.zcard(seed.keys("open"))
                    claims, ids, slowest = 0, set[str](), 0.0
                    began = time.perf_counter()
                    while "beside" not in ids:
                        called = time.perf_counter()
                        ids |= {c.id for c in seed.claim(10).jobs}
                        slowest = max(slowest, time.perf_counter() - called)
                        claims += 1
                    yield (
                        f"{blocked:,} jobs in {waiting.__name__.replace('_', ' ')}, enqueued"
                        f" {'singly' if singly else 'in bulk'} before any claim ({opened:,} lanes open), and one"
                        f" {'in a lane of its own' if scopes else 'plain'}: it ran in claim {claims:,}, after"
                        f" {(time.perf_counter() - began) * 1e3:.0f} ms; slowest claim {slowest * 1e3:.1f} ms"
                    )


def claim_costs(server: RedisServer, counts: Iterable[int]) -> Iterator[str]:
    """Yield a line for each case: the ``redis.call``s of a claim that finds no job, and of one that finds a job.

    ``counts`` are the numbers of blocked jobs that wait in the queue meanwhile.
    """
    for waiting in (one_lane, many_lanes):
        for blocked in counts:
            with seeded(server) as seed:
                seed.cap("tenant", 1)
                seed.cap("host", 1)
                seed.running("holder", scopes=["host=full", "tenant=full"])
                seed.client.run(seed.client.calls.enqueue.many(waiting(seed, blocked)))
                while seed.claim(10).more:
                    pass
                empty = calls_of(seed.control, lambda s=seed: s.claim(10))  # type: ignore[misc]
                seed.enqueue(seed.job("beside", scopes=["tenant=free"]))
                found = calls_of(seed.control, lambda s=seed: s.claim(10))  # type: ignore[misc]
                yield (
                    f"{blocked:>7,} blocked in {waiting.__name__.replace('_', ' ')}:"
                    f" an empty claim {empty} calls, one that finds a job {found}"
                )


def completions(
    server: RedisServer, jobs: int, tenants: int, *, batch: int
) -> tuple[list[float], list[float]]:
    """Drain jobs under a cap of 1 per tenant and a cap of 10 of the task.

    Return the ``redis.call``s per completion and the server's µs, for each tenth of the jobs.
    """
    draw = random.Random(7)  # noqa: S311 - it shall repeat
    calls, micros = [], []
    with seeded(server) as seed:
        seed.cap("task=t", 10)
        seed.cap("tenant", 1)
        seed.client.run(
            seed.client.calls.enqueue.many(
                seed.job(f"j-{n}", scopes=["task=t", f"tenant=t{draw.randrange(tenants)}"])
                for n in range(jobs)
            )
        )
        running = deque(seed.claim(10).jobs)
        done = 0
        for tenth in range(1, 11):
            tally, start = Tally(seed.control), done
            with tally.counting():
                while done < jobs * tenth // 10:
                    ended = [running.popleft() for _ in range(min(batch, len(running)))]
                    seed.complete(*ended)
                    done += len(ended)
                    running.extend(seed.claim(10).jobs)
                    assert running or done == jobs, f"{done} done, and nothing runs"
                    assert len(running) <= 10, f"{len(running)} run"
            calls.append(tally.calls / (done - start))
            micros.append(tally.script_us / (done - start))
    return calls, micros


@click.command()
@click.option("--jobs", default=100_000, show_default=True)
@click.option("--tenants", default=2_000, show_default=True)
@click.option("--engine", type=click.Choice([each.name for each in engines()]), default="valkey")
def main(jobs: int, tenants: int, engine: str) -> None:
    """Check that a call does not make more ``redis.call``s if more jobs wait."""
    problems = []
    with directory() as place, served({e.name: e for e in engines()}[engine], place) as server:
        for line in itertools.chain(claim_costs(server, (0, 1_000, jobs)), beside(server, jobs)):
            click.echo(line)
        for batch in (1, 10):
            calls, micros = completions(server, jobs, tenants, batch=batch)
            click.echo(
                f"{jobs:,} jobs of {tenants:,} tenants, {batch} ended per turn: calls per completion by tenth"
                f" {' '.join(f'{c:.1f}' for c in calls)}; µs {' '.join(f'{u:.0f}' for u in micros)}"
            )
            if max(calls) > 1.2 * min(calls):
                problems.append("the calls per completion are not constant")
    close_reaper()
    for problem in problems:
        click.echo(f"FELL SHORT: {problem}", err=True)
    raise SystemExit(1 if problems else 0)


if __name__ == "__main__":
    main()
