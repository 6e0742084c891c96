"""The commands ``scripts/prove/live parks``: the long form of the proofs of parked jobs."""

from __future__ import annotations

import contextlib

import click

from rq_core.model.durable.children import CHILDREN_MAX
from tests.kit.servers import DurablePostgres, Engine
from tests.rigs.parks import crowded, deploys, families, kills, stops, wide
from tests.rigs.schedules.commands import conclude, engine
from tests.rigs.stage import directory, served


@click.group()
def parks() -> None:
    """Prove that durable jobs sleep and wait safely.

    No signal is lost or taken twice, no job is woken early, and no step happens again after its save.
    """


@parks.command("signals")
@click.option("--signals", "count", default=1_000, show_default=True)
@click.option("--seed", default=1, show_default=True)
@engine
def send_signals(count: int, seed: int, engine: Engine) -> None:
    """Send very many signals to one job, half of them twice, while the job parks and wakes.

    The job must take each signal once, in the order in which they were sent.
    """
    with directory() as place, served(engine, place) as server:
        found = crowded.send(server.url, place, count, seed=seed)
    conclude(found.line(), found.problems)


@parks.command("deploys")
@click.option("--jobs", default=10_000, show_default=True)
@click.option("--deploys", "count", default=50, show_default=True)
@engine
def replace_workers(jobs: int, count: int, engine: Engine) -> None:
    """Replace the worker again and again while very many jobs sleep. Each job must be woken once, and not early."""
    with directory() as place, served(engine, place) as server:
        found = deploys.deploy(server.url, place, jobs, count)
    conclude(found.line(), found.problems)


@parks.command("kills")
@click.option("--jobs", default=200, show_default=True)
@click.option("--kills", "count", default=200, show_default=True)
@click.option("--seed", default=1, show_default=True)
@engine
def kill_workers(jobs: int, count: int, seed: int, engine: Engine) -> None:
    """Kill workers while their jobs park, wake and save steps. No job may be lost, and no saved step may happen
    again."""
    with directory() as place, served(engine, place) as server:
        found = kills.kill(server.url, place, jobs, count, seed=seed)
    conclude(found.line(), found.problems)


@parks.command("families")
@click.option("--parents", default=10, show_default=True)
@click.option("--children", default=1_000, show_default=True)
@click.option("--kills", "count", default=100, show_default=True)
@click.option("--seed", default=1, show_default=True)
@engine
def kill_families(parents: int, children: int, count: int, seed: int, engine: Engine) -> None:
    """Kill workers while jobs run children in another queue. Each child's result must count once in its parent."""
    with directory() as place, served(engine, place) as server:
        found = families.kill(server.url, place, parents, children, count, seed=seed)
    conclude(found.line(), found.problems)


@parks.command("wide")
@click.option("--children", "count", default=100_000, show_default=True)
@click.option("--width", default=CHILDREN_MAX, show_default=True, help="Children of one map.")
@click.option("--every", default=1.0, show_default=True, help="Seconds between two kills.")
@click.option("--processes", default=3, show_default=True, help="Workers that run.")
@click.option("--seconds", default=3_600.0, show_default=True, help="For which the job may run.")
@click.option("--database", type=click.Choice(["sqlite", "postgres"]), default="sqlite")
@engine
def kill_wide(
    count: int,
    width: int,
    every: float,
    processes: int,
    seconds: float,
    database: str,
    engine: Engine,
) -> None:
    """Kill a worker every second while one job runs very many children in another queue.

    The log must explain each run of a child, each child must count once, and ``audit verify`` must hold. A job with
    more children than ``--width`` maps groups, which map the children.
    """
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(directory())
        server = stack.enter_context(served(engine, place))
        audit_url = f"sqlite:///{place / 'audit.db'}"
        if database == "postgres":
            postgres = DurablePostgres().start()
            stack.callback(postgres.stop)
            audit_url = postgres.url(postgres.create_database())
        found = wide.kill(
            server.url,
            audit_url,
            place,
            count,
            width=width,
            every_s=every,
            processes=processes,
            seconds_max=seconds,
        )
    conclude(f"{engine.name} {engine.version()}, {database}: {found.line()}", found.problems)


@parks.command("stops")
@click.option("--stops", "count", default=20, show_default=True)
@engine
def stop_workers(count: int, engine: Engine) -> None:
    """Suspend workers within a step for twice their lease. Redis must then refuse to save the step."""
    with directory() as place, served(engine, place) as server:
        found = stops.stop(server.url, place, count)
    conclude(found.line(), found.problems)
