"""``python -m tests.rigs.live``: see scripts/prove/caps-live."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from rq_core.connections.client import Client
from tests.kit.reaper import close_reaper
from tests.kit.servers import RedisServer, engines
from tests.rigs.judge.times import percentile
from tests.rigs.live import changes as live_changes
from tests.rigs.live import exact as live_exact
from tests.rigs.live import faults as live_faults
from tests.rigs.live import flat as live_flat
from tests.rigs.live import tasks, wakeups
from tests.rigs.live.processes import crew


@contextlib.contextmanager
def stage() -> Iterator[tuple[RedisServer, Client, Path]]:
    """A server and a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="rq-core-live-") as name:
        server = RedisServer(engines()[0], Path(name)).start()
        try:
            tasks.app.connect_to(server.url)
            yield server, tasks.app.client, Path(name)
        finally:
            tasks.app.close()
            server.kill()
            close_reaper()


@click.group()
def main() -> None:
    """Show that caps hold. Each part prints its figures and ends with status 1 if one falls short."""


def conclude(problems: list[str]) -> None:
    for problem in problems:
        click.echo(f"FELL SHORT: {problem}", err=True)
    if problems:
        raise SystemExit(1)
    click.echo("all held")


@main.command()
@click.option("--jobs", default=1_000, show_default=True, help="Per queue.")
@click.option("--processes", default=4, show_default=True)
def exact(jobs: int, processes: int) -> None:
    """N run at once: N in 1, 2, 3, 10; per task, per key, per queue, and all three together."""
    problems = []
    with stage() as (_, client, place):
        queues = [tasks.queue_of(kind, n) for kind, n in tasks.exact]
        with crew(client.url, place, queues, processes) as running:
            for kind, n in tasks.exact:
                found = live_exact.drain(client, running, kind, n, jobs, timeout=600)
                click.echo(found.line())
                problems += found.problems
                if percentile(found.refilled_ms, 0.99) > 50:
                    problems.append(f"{kind} {n}: N was reached again too late")
    conclude(problems)


@main.command()
@click.option("--rounds", default=100_000, show_default=True)
@click.option("--processes", default=2, show_default=True)
@click.option("--seed", default=1, show_default=True)
def race(rounds: int, processes: int, seed: int) -> None:
    """No wake-up is lost when an enqueue or a cancel races with the end of the last holder."""
    problems = []
    with (
        stage() as (_, client, place),
        crew(client.url, place, ["race", "turns"], processes, concurrency=2),
    ):
        for run, share in ((wakeups.race, 0.8), (wakeups.turns, 0.2)):
            found = run(client, int(rounds * share), seed=seed)
            click.echo(f"{run.__name__}: {found.line()}")
            problems += found.stuck + found.replay.breaches
            if max(found.replay.room_ms) > wakeups.LIMIT_S * 1000:
                problems.append("room stood empty for more than a second")
    conclude(problems)


@main.command()
@click.option("--jobs", default=1_000_000, show_default=True)
@click.option("--lanes", default=100_000, show_default=True)
def changes(jobs: int, lanes: int) -> None:
    """A cap is raised or removed while very many jobs wait."""
    with stage() as (server, _, _):
        for found in live_changes.all_changes(server, jobs, lanes):
            click.echo(found.line())


@main.command()
@click.option("--jobs", default=100_000, show_default=True)
@click.option("--tenants", default=2_000, show_default=True)
def flat(jobs: int, tenants: int) -> None:
    """Nothing costs more because more waits: counted in calls that the scripts make."""
    problems = []
    with stage() as (server, _, _):
        for line in live_flat.claim_costs(server, (0, 1_000, jobs)):
            click.echo(line)
        for line in live_flat.beside(server, jobs):
            click.echo(line)
        for batch in (1, 10):
            calls, micros = live_flat.completions(server, jobs, tenants, batch=batch)
            click.echo(
                f"{jobs:,} jobs of {tenants:,} tenants, {batch} ended per turn: calls per completion by tenth"
                f" {' '.join(f'{c:.1f}' for c in calls)}; µs {' '.join(f'{u:.0f}' for u in micros)}"
            )
            if max(calls) > 1.2 * min(calls):
                problems.append("the calls per completion are not constant")
    conclude(problems)


@main.command()
@click.option("--kills", default=30, show_default=True)
@click.option("--zombies", default=11, show_default=True)
def faults(kills: int, zombies: int) -> None:
    """Workers that are killed, and workers that come back after their lease."""
    problems = []
    with stage() as (_, client, place):
        killed = live_faults.kill_workers(client, place, kills)
        click.echo(killed.line())
        problems += killed.problems
    with stage() as (_, client, place):
        back = live_faults.stop_and_continue(client, place, zombies)
        click.echo(back.line())
        problems += back.problems
        if (back.refused, back.most) != (zombies, 1):
            problems.append("a worker that came back was not refused, or the cap did not hold")
    conclude(problems)


if __name__ == "__main__":
    main()
