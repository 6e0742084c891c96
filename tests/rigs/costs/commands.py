"""The commands ``scripts/prove/live costs``: the proofs of rates that count a unit, and of breakers, in their long
form."""

from __future__ import annotations

import contextlib

import click

from tests.kit.servers import DurablePostgres, Engine
from tests.rigs.costs import breaker as rig_of_breakers
from tests.rigs.costs import keys as rig_of_keys
from tests.rigs.costs import refusals
from tests.rigs.schedules.commands import conclude, engine
from tests.rigs.stage import DURABLE, directory, served


@click.group()
def costs() -> None:
    """Prove that rates in tokens and breakers hold: no job begins before the tokens of earlier jobs have come back, or
    in a pause."""


@costs.command("keys")
@click.option("--claims", default=100_000, show_default=True)
@click.option("--keys", default=1_000, show_default=True)
@click.option("--processes", default=4, show_default=True)
@click.option("--seed", default=1, show_default=True)
@engine
def spend(claims: int, keys: int, processes: int, seed: int, engine: Engine) -> None:
    """Let workers run very many jobs of many keys. Each job costs 1 token to 3 times the burst. No job may begin too
    early: by the handlers' own lines, by a bucket over the log, and by `audit verify`."""
    with directory() as place, served(engine, place) as server:
        found = rig_of_keys.spend(server.url, place, claims, keys, processes=processes, seed=seed)
    conclude(found.line(), found.problems)


@costs.command("pause")
@click.option("--jobs", default=1_000, show_default=True)
@click.option("--refusals", "count", default=50, show_default=True)
@engine
def pause(jobs: int, count: int, engine: Engine) -> None:
    """Let a service answer 429 while very many jobs of one key wait. No job may begin in a pause. After a pause, jobs
    may begin only as fast as the rate allows. No job may spend an attempt."""
    with directory() as place, served(engine, place) as server:
        found = refusals.refuse(server.url, place, jobs, count)
    conclude(found.line(), found.problems)


@costs.command("breaker")
@click.option(
    "--seconds", default=180.0, show_default=True, help="How long services fail and heal."
)
@click.option("--hosts", default=6, show_default=True, help="Services, each with a breaker.")
@click.option("--processes", default=3, show_default=True)
@click.option("--places", default=4, show_default=True, help="Jobs that a worker runs at once.")
@click.option("--every", default=1.5, show_default=True, help="Seconds from fault to fault.")
@click.option("--seed", default=1, show_default=True)
@click.option("--postgres", is_flag=True, help="A separate PostgreSQL, instead of an SQLite file.")
@engine
def strain(
    seconds: float,
    hosts: int,
    processes: int,
    places: int,
    every: float,
    seed: int,
    engine: Engine,
    *,
    postgres: bool,
) -> None:
    """Let services fail and heal while workers are killed, suspended and restarted, and Redis is restarted. No job may
    begin in a pause, and one probe may run at a time. At the end all jobs must succeed."""
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(directory())
        audit_url = None
        if postgres:
            database = DurablePostgres().start()
            stack.callback(database.stop)
            audit_url = database.url(database.create_database())
        server = stack.enter_context(served(engine, place, DURABLE))
        found = rig_of_breakers.strain(
            server,
            place,
            seconds,
            hosts_count=hosts,
            processes=processes,
            places=places,
            every_s=every,
            seed=seed,
            audit_url=audit_url,
        )
    conclude(found.line(), found.problems)
