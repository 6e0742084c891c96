"""The command line ``python -m tests.rigs.inbox``: see scripts/prove/inbox."""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from tests.kit.inbox import Stage
from tests.kit.servers import DurablePostgres, Engine, RedisServer, engines
from tests.rigs.inbox import growth
from tests.rigs.inbox.losses import RUNS, Loss, directory, lose_at
from tests.rigs.inbox.points import POINTS, kill_at, stop_at
from tests.rigs.inbox.rig import Rig
from tests.rigs.inbox.worlds import Kind, run_world

DATABASES = ("sqlite", "postgresql")
only_option = click.option("--only", type=click.Choice(DATABASES), help="Use one database.")
Url = Callable[[], str]
"""A function that creates a new database and returns its URL."""


@click.group()
def main() -> None:
    """Prove the promises of the inbox. The exit status is 0 if all promises hold."""


@main.command()
@click.option("--transactions", default=10_000, show_default=True)
@click.option("--kills", default=300, show_default=True)
@click.option("--seed", default=1, show_default=True)
@only_option
def kills(transactions: int, kills: int, seed: int, only: str | None) -> None:
    """Kill relays of an inbox, first at each point of a turn, then at random moments. No job may be lost or run twice.

    A naive relay, which pushes rows to Redis and then deletes them, must run jobs twice here.
    """
    with _databases(only) as (place, kinds):
        _end([_kill(kind, url, place, transactions, kills, seed) for kind, url in kinds.items()])


@main.command()
@only_option
def losses(only: str | None) -> None:
    """Flush Redis, or let it fail over, at each point of a relay's turn."""
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
@click.option("--seeds", default=300, show_default=True, help="Worlds of each kind.")
@click.option("--first", default=1, show_default=True, help="The first seed.")
@only_option
def worlds(seeds: int, first: int, only: str | None) -> None:
    """Let several relays make their steps in a random order. Commits, kills and losses of data come in between."""
    held = []
    with _databases(only) as (place, kinds):
        for (name, url), kind in itertools.product(kinds.items(), Kind):
            with _served(engines()[0], place) as server:
                stage = Stage(url(), server.url)
                actions: Counter[str] = Counter()
                wrong = []
                for seed in range(first, first + seeds):
                    found = run_world(stage, kind, seed)
                    actions += Counter(jobs=found.jobs, again=found.again) + found.actions
                    if not found.holds:
                        wrong.append(found.document())
                stage.close()
            said = {"database": name, "kind": kind, "seeds": seeds, **actions, "wrong": wrong}
            held.append(_say({**said, "holds": not wrong}))
    _end(held)


@main.command()
@click.option("--rows", default=1_000_000, show_default=True)
@click.option(
    "--autovacuum", type=int,
    help="Leave VACUUM to PostgreSQL, which looks every so many seconds; its own default is 60.",
)  # fmt: skip
@only_option
def rows(rows: int, autovacuum: int | None, only: str | None) -> None:
    """Let rows go through an inbox. Its table and indexes must have the same size at the end as after a fifth of the
    rows."""
    off = {"autovacuum": "off"}
    settings = off if autovacuum is None else {"autovacuum_naptime": f"{autovacuum}s"}
    held = []
    with _databases(only, settings) as (place, kinds):
        for url in kinds.values():
            with _served(engines()[0], place) as server:
                found = growth.grow(
                    url(),
                    server.url,
                    rows,
                    on_fifth=lambda said: click.echo(said, err=True),
                    autovacuum=autovacuum is not None,
                )
                held.append(_say(found.document()))
    _end(held)


@main.command()
@click.option("--parked", default=1_000_000, show_default=True)
@click.option("--rows", default=20_000, show_default=True, help="Rows of each measurement.")
@only_option
def parked(parked: int, rows: int, only: str | None) -> None:
    """Measure two relays in turn: one beside very many parked rows, and one without parked rows."""
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
    only: str | None, settings: Mapping[str, str] = MappingProxyType({})
) -> Iterator[tuple[Path, dict[str, Url]]]:
    """Yield a directory, and for each kind of database a function that creates one and returns its URL."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        kinds: dict[str, Url] = {}
        if only != "postgresql":
            kinds["sqlite"] = lambda: f"sqlite:///{place / os.urandom(6).hex()}.db"
        if only == "sqlite":
            yield place, kinds
            return
        postgres = DurablePostgres()
        postgres.SETTINGS = {**postgres.SETTINGS, **settings}
        postgres.start()
        try:
            kinds["postgresql"] = lambda: postgres.url(postgres.create_database())
            yield place, kinds
        finally:
            postgres.stop()


@contextmanager
def _served(engine: Engine, place: Path) -> Iterator[RedisServer]:
    """Run a Redis server during the block. The server does not end with a child process that the rig kills."""
    server = RedisServer(engine, directory(place, "redis", engine.name))
    try:
        yield server.start()
    finally:
        server.stop()


if __name__ == "__main__":
    main()
