"""``python -m tests.rigs.inbox``: see scripts/prove/inbox."""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from tests.kit.inbox import Stage
from tests.kit.servers import DurablePostgres, Engine, RedisServer, engines
from tests.rigs.inbox import growth
from tests.rigs.inbox.losses import RUNS, Loss, directory, lose_at
from tests.rigs.inbox.points import POINTS, kill_at, stop_at
from tests.rigs.inbox.rig import Rig

DATABASES = ("sqlite", "postgresql")
only_option = click.option("--only", type=click.Choice(DATABASES), help="Use one database.")
Url = Callable[[], str]
"""Makes a new database, and returns its URL."""


@click.group()
def main() -> None:
    """Prove what the inbox promises. The status is 0 if all held."""


@main.command()
@click.option("--transactions", default=10_000, show_default=True)
@click.option("--kills", default=300, show_default=True)
@click.option("--seed", default=1, show_default=True)
@only_option
def kills(transactions: int, kills: int, seed: int, only: str | None) -> None:
    """Kill relays of an inbox: at each point on each database and server, then all the time. The usual relay, which
    pushes and then deletes, must run jobs twice here."""
    with _databases(only) as (place, kinds):
        _end([_kill(kind, url, place, transactions, kills, seed) for kind, url in kinds.items()])


@main.command()
@only_option
def losses(only: str | None) -> None:
    """Flush Redis, and let it fail over, at each point of a turn."""
    held = []
    with _databases(only) as (place, kinds):
        for (kind, url), engine in itertools.product(kinds.items(), engines()):
            cases = itertools.product(Loss, POINTS, RUNS)
            for loss, point, runs in cases:
                where = directory(place, engine.name, loss, point.name)
                found = lose_at(url(), engine, where, point, loss, runs=runs)
                held.append(_say({"database": kind, "engine": engine.name, **found.document()}))
    _end(held)


@main.command()
@click.option("--rows", default=1_000_000, show_default=True)
@click.option(
    "--naptime", default=1, show_default=True,
    help="Seconds between two looks of PostgreSQL's autovacuum; its own default is 60.",
)  # fmt: skip
@only_option
def rows(rows: int, naptime: int, only: str | None) -> None:
    """Let rows go through an inbox: the sizes of its table and indexes at a fifth of them and at the end are equal."""
    held = []
    with _databases(only, naptime) as (place, kinds):
        for url in kinds.values():
            with _served(engines()[0], place) as server:
                found = growth.grow(
                    url(), server.url, rows, on_fifth=lambda said: click.echo(said, err=True)
                )
                held.append(_say(found.document()))
    _end(held)


@main.command()
@click.option("--parked", default=1_000_000, show_default=True)
@click.option("--rows", default=20_000, show_default=True, help="Rows of each measurement.")
@only_option
def parked(parked: int, rows: int, only: str | None) -> None:
    """Measure a relay beside parked rows, in turn with one beside none."""
    held = []
    with _databases(only) as (place, kinds):
        for url in kinds.values():
            with _served(engines()[0], place) as server:
                found = growth.park((url(), url()), server.url, parked, rows)
                held.append(_say(found.document()))
    _end(held)


def _kill(kind: str, url: Url, place: Path, transactions: int, kills: int, seed: int) -> bool:
    for engine in engines():
        with _served(engine, place) as server:
            for point, way in itertools.product(POINTS, (kill_at, stop_at)):
                stage = Stage(url(), server.url)
                server.client().flushall()
                way(stage, point)
                stage.close()
            click.echo(f"{kind}, {engine.name}: each of {len(POINTS)} points, killed and stopped")
    holds = True
    for is_usual in (False, True):
        some = (transactions // 5, max(20, kills // 10)) if is_usual else (transactions, kills)
        where = directory(place, kind, "usual" if is_usual else "ours")
        with _served(engines()[0], where) as server:
            rig = Rig(url(), server.url, where, seed=seed, is_usual=is_usual)
            outcome = rig.run(*some)
        _say({"relay": "usual" if is_usual else "ours", **outcome.document()})
        holds &= outcome.twice > 0 if is_usual else outcome.holds
    return holds


def _say(document: dict[str, Any]) -> bool:
    click.echo(json.dumps(document))
    holds: bool = document["holds"]
    return holds


def _end(held: list[bool]) -> None:
    sys.exit(0 if held and all(held) else 1)


@contextmanager
def _databases(
    only: str | None, naptime: int | None = None
) -> Iterator[tuple[Path, dict[str, Url]]]:
    """A place for files, and for each database what makes a new one."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        kinds: dict[str, Url] = {}
        if only != "postgresql":
            kinds["sqlite"] = lambda: f"sqlite:///{place / os.urandom(6).hex()}.db"
        if only == "sqlite":
            yield place, kinds
            return
        postgres = DurablePostgres()
        if naptime is not None:
            postgres.SETTINGS = {**postgres.SETTINGS, "autovacuum_naptime": f"{naptime}s"}
        postgres.start()
        try:
            kinds["postgresql"] = lambda: postgres.url(postgres.create_database())
            yield place, kinds
        finally:
            postgres.stop()


@contextmanager
def _served(engine: Engine, place: Path) -> Iterator[RedisServer]:
    """A server during a block; a killed child of this process must not stop it."""
    server = RedisServer(engine, directory(place, "redis", engine.name))
    try:
        yield server.start()
    finally:
        server.stop()


if __name__ == "__main__":
    main()
