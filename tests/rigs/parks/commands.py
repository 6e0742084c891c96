"""The commands ``scripts/prove/live parks``: the long form of the proofs of parked jobs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from rq_core.model.durable.children import CHILDREN_MAX
from tests.kit.clusters import RedisCluster
from tests.kit.servers import DurablePostgres, Engine
from tests.rigs.parks import crowded, deploys, families, kills, sharded, stops, wide
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
@click.option(
    "--shards",
    "kind",
    type=click.Choice(list(sharded.STRUCK)),
    help="Run on a cluster of three shards, and move slots, or lose the primary of the job's shard, of the children's,"
    " or of both.",
)
@click.option("--losses", default=1, show_default=True, help="Times that primaries are lost.")
@click.option(
    "--keep", type=click.Path(path_type=Path), help="Keep the database and the logs here."
)
@engine
def kill_wide(
    count: int,
    width: int,
    every: float,
    processes: int,
    seconds: float,
    database: str,
    kind: str | None,
    losses: int,
    keep: Path | None,
    engine: Engine,
) -> None:
    """Kill a worker every second while one job runs very many children in another queue.

    The log must explain each run of a child, each child must count once, and ``audit verify`` must hold. A job with
    more children than ``--width`` maps groups, which map the children.

    With ``--shards``, the job and its groups are on one shard of a cluster, and the children on another. After a loss,
    the rig runs ``audit restore``, ``doctor --repair`` and, if the job is dead, ``requeue``.
    """
    with contextlib.ExitStack() as stack:
        place = keep or stack.enter_context(directory())
        place.mkdir(parents=True, exist_ok=True)
        audit_url = f"sqlite:///{place / 'audit.db'}"
        if database == "postgres":
            postgres = DurablePostgres().start()
            stack.callback(postgres.stop)
            audit_url = postgres.url(postgres.create_database())
        options: Any = {
            "width": width,
            "every_s": every,
            "processes": processes,
            "seconds_max": seconds,
        }
        found: wide.Wide | sharded.Sharded
        if kind is not None:
            # While a large key moves, its shard does not answer: the others shall not replace the primary.
            patience = {"cluster-node-timeout": "15000"} if kind == "moves" else {}
            cluster = RedisCluster(engine, place, **patience)
            stack.callback(cluster.stop)
            found = sharded.strike(
                cluster.start(),
                audit_url,
                place,
                count,
                kind,
                times=losses,
                on_step=_say_step(),
                **options,
            )
        else:
            server = stack.enter_context(served(engine, place))
            found = wide.kill(server.url, audit_url, place, count, **options)
    conclude(f"{engine.name} {engine.version()}, {database}: {found.line()}", found.problems)


def _say_step() -> Callable[[str], None]:
    """Return a function that prints a step of the run, and the time (s) since this call."""
    began = time.monotonic()
    return lambda says: click.echo(f"{time.monotonic() - began:5.0f} s: {says}", err=True)


@parks.command("stops")
@click.option("--stops", "count", default=20, show_default=True)
@engine
def stop_workers(count: int, engine: Engine) -> None:
    """Suspend workers within a step for twice their lease. Redis must then refuse to save the step."""
    with directory() as place, served(engine, place) as server:
        found = stops.stop(server.url, place, count)
    conclude(found.line(), found.problems)
