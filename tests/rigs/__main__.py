"""The command line ``python -m tests.rigs SCENARIO``. scripts/prove/live and scripts/prove/chaos call it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click
import redis

from rq_core.connections.client import Client
from rq_core.model.result_encoding import DIGEST, FULL, VALUE_MAX
from tests.kit.processes import ROOT
from tests.kit.reaper import close_reaper
from tests.kit.servers import DurablePostgres, Engine, RedisServer, engines
from tests.rigs import outages as rig_of_outages
from tests.rigs import page as rig_of_pages
from tests.rigs import shards
from tests.rigs import stuck as rig_of_scenes
from tests.rigs.chaos import chaos as rig_of_chaos
from tests.rigs.chaos import measured
from tests.rigs.chaos.nemesis import KINDS
from tests.rigs.costs.commands import costs
from tests.rigs.judge.times import percentile
from tests.rigs.live import exact as live_exact
from tests.rigs.live import faults as live_faults
from tests.rigs.live import tasks, wakeups
from tests.rigs.live.crew import crew
from tests.rigs.once import expiring, keeping
from tests.rigs.once import race as once_race
from tests.rigs.parks.commands import parks
from tests.rigs.schedules.commands import schedules
from tests.rigs.stage import directory, served
from tests.rigs.waits.stages import SECONDS_MAX, STAGES, prove

ENGINES: Final = {each.name: each for each in engines()}

engine: Final = click.option(
    "--engine",
    type=click.Choice(list(ENGINES)),
    callback=lambda _context, _option, name: ENGINES.get(name),
    help="Of the servers; by default the first.",
)


@click.group()
def main() -> None:
    """Test a promise with real processes on real servers. Exit with 1 if a figure misses its bound."""
    click.get_current_context().call_on_close(close_reaper)


for group in (costs, parks, schedules):
    main.add_command(group)


@contextlib.contextmanager
def alone(engine: Engine | None) -> Iterator[tuple[RedisServer, Path]]:
    """Yield a new server and a directory for its files. The directory is removed at the end."""
    with directory() as place, served(engine or engines()[0], place) as server:
        yield server, place


@contextlib.contextmanager
def capped(engine: Engine | None) -> Iterator[tuple[RedisServer, Client, Path]]:
    """Yield a new server, a client of the app in tests/rigs/live/tasks.py, and a directory."""
    with alone(engine) as (server, place):
        tasks.app.connect_to(server.url)
        try:
            yield server, tasks.app.client, place
        finally:
            tasks.app.close()


def fell_short(problems: Sequence[str]) -> None:
    for problem in problems:
        click.echo(f"FELL SHORT: {problem}", err=True)


def conclude(problems: Sequence[str]) -> None:
    """Print the promises that were not met, and exit with 1 if there are any."""
    fell_short(problems)
    if problems:
        raise SystemExit(1)
    click.echo("all held")


@main.group()
def caps() -> None:
    """Show that caps hold. (scripts/measure/once/run measures their costs.)"""


@caps.command()
@click.option("--jobs", default=1_000, show_default=True, help="Per queue.")
@click.option("--processes", default=4, show_default=True)
@engine
def exact(jobs: int, processes: int, engine: Engine | None) -> None:
    """Show that exactly N jobs run at once, for N = 1, 2, 3 and 10.

    N is the cap of a task, of a key, of the queue, or of all three.
    """
    problems = []
    with capped(engine) as (_, client, place):
        queues = [tasks.queue_of(kind, n) for kind, n in tasks.exact]
        with crew(client.url, place, queues, processes) as running:
            for kind, n in tasks.exact:
                found = live_exact.drain(client, running, kind, n, jobs, timeout=600)
                click.echo(found.line())
                problems += found.problems
                if percentile(found.refilled_ms, 0.99) > 50:
                    problems.append(f"{kind} {n}: N was reached again too late")
    conclude(problems)


@caps.command("race")
@click.option("--rounds", default=100_000, show_default=True)
@click.option("--processes", default=2, show_default=True)
@click.option("--seed", default=1, show_default=True)
@engine
def caps_race(rounds: int, processes: int, seed: int, engine: Engine | None) -> None:
    """Show that no wake-up is lost if a job is enqueued or cancelled while the last holder of a cap ends."""
    problems = []
    with (
        capped(engine) as (_, client, place),
        crew(client.url, place, ["race", "turns"], processes, concurrency=2),
    ):
        for run, share in ((wakeups.race, 0.8), (wakeups.turns, 0.2)):
            found = run(client, int(rounds * share), seed=seed)
            click.echo(f"{run.__name__}: {found.line()}")
            problems += found.stuck + found.replay.breaches
            if max(found.replay.room_ms) > wakeups.LIMIT_S * 1000:
                problems.append("room stood empty for more than a second")
    conclude(problems)


@caps.command()
@click.option("--kills", default=30, show_default=True)
@click.option("--zombies", default=11, show_default=True)
@engine
def faults(kills: int, zombies: int, engine: Engine | None) -> None:
    """Kill some workers, and suspend other workers until their leases have expired. Caps must hold in both cases."""
    problems = []
    with capped(engine) as (_, client, place):
        killed = live_faults.kill_workers(client, place, kills)
        click.echo(killed.line())
        problems += killed.problems
    with capped(engine) as (_, client, place):
        back = live_faults.stop_and_continue(client, place, zombies)
        click.echo(back.line())
        problems += back.problems
        if (back.refused, back.most) != (zombies, 1):
            problems.append("a worker that came back was not refused, or the cap did not hold")
    conclude(problems)


@main.group()
def once() -> None:
    """Show that only one live job holds a unique name, and that jobs and results expire as fast as they come."""


@once.command("race")
@click.option("--enqueues", default=100_000, show_default=True)
@click.option("--kills", default=200, show_default=True)
@engine
def name_race(enqueues: int, kills: int, engine: Engine | None) -> None:
    """Let 50 producers enqueue jobs with the same unique name while workers are killed."""
    with alone(engine) as (server, place):
        found = once_race.race(server.url, place, enqueues, kills)
    click.echo(found.line())
    conclude([*found.problems, *found.names.breaches])


@once.command()
@click.option("--rate", default=10_000, show_default=True, help="Jobs a second.")
@click.option("--seconds", default=60, show_default=True)
@engine
def expiry(rate: int, seconds: int, engine: Engine | None) -> None:
    """Let jobs expire as fast as producers enqueue them. Redis' memory must not grow.

    Half of the jobs are delayed, and half wait in 250 lanes.
    """
    with alone(engine) as (server, place):
        found = expiring.expire(server.url, place, rate, seconds)
    click.echo(found.line())
    problems = list(found.left)
    if found.rate < 0.95 * rate:
        problems.append(f"only {found.rate:,.0f} jobs a second were enqueued")
    if max(second.jobs for second in found.seconds) > 2 * rate:
        problems.append("jobs pile up")
    if found.growth > 1.1:
        problems.append("memory grows")
    conclude(problems)


@once.command()
@click.option("--seconds", default=60, show_default=True, help="Of each of the three.")
@engine
def kept(seconds: int, engine: Engine | None) -> None:
    """Keep each result for a second, at full speed. Redis' memory must not grow, and no call may take Redis more than
    10 ms.

    There are three rounds: with short results, with results of 64 KiB, and with results of 64 KiB that are also logged.
    """
    problems = []
    for size, chunk, log in ((60, 250, DIGEST), (VALUE_MAX, 16, DIGEST), (VALUE_MAX, 16, FULL)):
        with alone(engine) as (server, _):
            found = keeping.keep(server.url, seconds, size, log=log, chunk=chunk)
        click.echo(f"{size:,} bytes ({log}): {found.line()}")
        if found.growth > 1.1:
            problems.append(f"memory grows by values of {size:,} bytes")
        if found.left:
            problems.append(f"{found.left} results were left")
        if found.calls_ms[0] > keeping.CALL_MS:
            problems.append(f"a call took Redis {found.calls_ms[0]:.1f} ms")
    conclude(problems)


@main.command()
@click.argument("names", nargs=-1, type=click.Choice(list(STAGES)))
@click.option("--jobs", default=100_000, show_default=True, help="Waits of each stage.")
@click.option(
    "--callers", default=16, show_default=True, help="Callers that wait at the same time."
)
@click.option("--seconds", default=SECONDS_MAX, show_default=True, help="Of each stage, at most.")
@engine
def waits(
    names: Sequence[str], jobs: int, callers: int, seconds: float, engine: Engine | None
) -> None:
    """Show that no wait for a job's end is lost, and that waits end soon. Without NAMES, all stages are run.

    Each stage has another fault: no fault, connections that are killed every 50 ms, failing primaries, a moving cluster
    slot, or a missing right to the channel.
    """
    problems: list[str] = []
    for name in names or STAGES:
        with directory() as place:
            found, short = prove(
                name, engine or engines()[0], place, jobs, callers=callers, seconds_max=seconds
            )
        click.echo(found.line(name))
        problems += [f"{name}: {each}" for each in short]
    conclude(problems)


OUTAGES: Final = (*rig_of_outages.KINDS, rig_of_outages.FAILOVER, *shards.KINDS)


@main.command()
@click.option("--times", default=20, show_default=True, help="Of each kind.")
@click.option("--seconds", default=2.0, show_default=True, help="Length; up to 2: at most.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(OUTAGES), help="By default all.")
@click.option("--parallel", default=3, show_default=True, help="Kinds at a time.")
@click.option("--seed", default=0, show_default=True)
@click.option("--processes", default=1, show_default=True, help="Of the worker.")
@click.option("--json", "as_json", is_flag=True, help="The last line is one JSON object.")
@engine
def outages(
    kinds: tuple[str, ...],
    times: int,
    seconds: float,
    engine: Engine | None,
    parallel: int,
    *,
    as_json: bool,
    **options: int,
) -> None:
    """Interrupt Redis again and again while a worker runs. The worker must claim again soon, and no job may be lost.

    Each kind of outage has its own servers and worker. The last four kinds apply a fault to a cluster or to Sentinel
    under load. They run on both engines unless ``--engine`` names one. They also report how long the queues of other
    shards were idle, and a producer's longest call.
    """

    def say(each: object) -> None:
        click.echo(each, err=True)

    asked = list(dict.fromkeys(kinds or OUTAGES))
    by_kind, wrong = rig_of_outages.every(
        [kind for kind in asked if kind not in shards.KINDS],
        parallel,
        times=times,
        seconds=seconds,
        engine=engine,
        on_outage=say,
        **options,
    )
    strikes = shards.run(
        [kind for kind in asked if kind in shards.KINDS],
        times=times,
        seconds=max(seconds, shards.SECONDS_MIN),
        on=[engine] if engine else None,
        on_strike=say,
    )
    wrong += shards.problems(strikes)
    said = [rig_of_outages.summary(kind, found) for kind, found in by_kind.items()]
    click.echo("\n".join([rig_of_outages.HEAD, *map(rig_of_outages.row, said)]), err=as_json)
    fell_short(wrong)
    if as_json:
        document = {
            "seed": options["seed"],
            "seconds": seconds,
            "kinds": said,
            "problems": wrong,
            "each": [asdict(each) for found in by_kind.values() for each in found],
            "strikes": [asdict(each) for each in strikes],
        }
        click.echo(json.dumps(document))
    raise SystemExit(1 if wrong else 0)


def at_length(test: str, variable: str, jobs: int) -> None:
    """Run a pytest test with this number of jobs, and exit with the status of pytest."""
    words = [sys.executable, "-m", "pytest", test, "-q", "-s", "-n", "0"]
    done = subprocess.run(words, env={**os.environ, variable: str(jobs)}, check=False, cwd=ROOT)
    raise SystemExit(done.returncode)


@main.command()
@click.argument("jobs", default=10_000)
def sessions(jobs: int) -> None:
    """Run handlers with database sessions on a real PostgreSQL, and kill workers.

    At the end no database connection may be open.
    """
    at_length("tests/worker/test_sessions.py", "RQ_CORE_SESSIONS_JOBS", jobs)


@main.command()
@click.argument("jobs", default=10_000)
def witness(jobs: int) -> None:
    """Count jobs in four ways while worker processes are replaced and killed.

    The counts come from the workers' metrics, the log, the jobs' own records, and the producer. No counter may fall,
    and the totals of the log must be exact.
    """
    at_length("tests/metrics/test_witness.py", "RQ_CORE_WITNESS_JOBS", jobs)


@main.command()
@click.argument("scene", type=click.Choice(list(rig_of_scenes.SCENES)))
@click.option("--redis", "url", default="redis://localhost:6379/0", show_default=True)
def stuck(scene: str, url: str) -> None:
    """Make a queue that is stuck for a known cause, on an empty server, to see which cause rq-core reports."""
    with redis.Redis.from_url(url) as control:
        if control.dbsize():
            raise click.UsageError("that server is not empty")
    with rig_of_scenes.scene(url, scene):
        click.echo(f"made; now run: rq-core top --redis {url}")


@main.command()
@click.argument("states", nargs=-1, type=click.Choice(list(rig_of_pages.STATES)))
@click.option("--pictures", default=ROOT / "build" / "page", type=click.Path(path_type=Path))
def page(states: tuple[str, ...], pictures: Path) -> None:
    """Check the web page in Chromium, in each state of a server, and save pictures of each page.

    Needs Debian's chromium, and Playwright: .ci/run installs both.
    """
    problems = []
    for state, wrong in rig_of_pages.look_at(list(states or rig_of_pages.STATES), pictures):
        click.echo(f"{state}: {len(wrong) or 'nothing'} wrong")
        problems += wrong
    conclude(problems)


@main.command()
@click.option("--minutes", default=1.0, show_default=True, help="How long faults are applied.")
@click.option("--seed", default=1, show_default=True, help="Of the faults and the load.")
@click.option("--rate", default=rig_of_chaos.RATE, show_default=True, help="Jobs per second.")
@click.option("--audit", metavar="URL", help="An empty audit database; by default an SQLite file.")
@click.option(
    "--postgres", is_flag=True, help="A PostgreSQL of its own, instead of an SQLite file."
)
@click.option("--keep", type=click.Path(path_type=Path), help="Directory for the records and logs.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(sorted(KINDS)), help="Only this.")
@click.option("--far", is_flag=True, help="Far from Redis, where idle workers arm their claims.")
@click.option("--json", "as_json", is_flag=True, help="The last line is one JSON object.")
@engine
def chaos(
    minutes: float,
    seed: int,
    rate: float,
    audit: str | None,
    engine: Engine | None,
    keep: Path | None,
    kinds: tuple[str, ...],
    *,
    postgres: bool,
    far: bool,
    as_json: bool,
) -> None:
    """Apply faults under load, one after another. Then let all jobs end, and report what became of each job.

    Exits with 0 only if the log reports each lost job and explains each second run. Caps must hold, and ``audit
    verify`` must prove the log. The log may have gaps if a fault emptied an outbox.
    """
    if audit is not None and postgres:
        raise click.UsageError("--audit names a database, --postgres makes one: give one of them")
    with contextlib.ExitStack() as stack:
        place = keep or stack.enter_context(directory())
        place.mkdir(parents=True, exist_ok=True)
        database = DurablePostgres().start() if postgres else None
        if database is not None:
            stack.callback(database.stop)
            audit = database.url(database.create_database())
        found = rig_of_chaos.run(
            place,
            minutes=minutes,
            seed=seed,
            rate=rate,
            audit_url=audit or f"sqlite:///{place / 'audit.db'}",
            engine=engine or engines()[0],
            kinds=kinds or None,
            postgres=database,
            far=far,
            on_fault=lambda kind: click.echo(kind, err=True),
        )
    click.echo(found.table(), err=as_json)
    fell_short(found.problems)
    document = found.document()
    click.echo(
        json.dumps(document) if as_json else "\n".join(f"{k}: {v}" for k, v in document.items())
    )
    raise SystemExit(0 if found.clean else 1)


@main.command()
@click.option("--minutes", default=0.5, show_default=True, help="Of each kind.")
@click.option("--seed", default=1, show_default=True)
@click.option("--parallel", default=2, show_default=True, help="Kinds at a time.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(sorted(KINDS)))
@click.option(
    "--into", type=click.Path(path_type=Path), default=measured.FILE, help="Where the table goes."
)
@engine
def reliability(
    minutes: float,
    seed: int,
    parallel: int,
    kinds: tuple[str, ...],
    into: Path,
    engine: Engine | None,
) -> None:
    """Measure each kind of fault in a chaos run of its own.

    If all kinds were measured, write the table into docs/reliability.md.
    """
    words = ["--minutes", str(minutes), "--seed", str(seed)]
    words += ["--engine", engine.name] if engine else []
    chosen = kinds or tuple(sorted(KINDS))
    conclude(measured.measure(chosen, words, parallel, None if kinds else into))


if __name__ == "__main__":
    main()
