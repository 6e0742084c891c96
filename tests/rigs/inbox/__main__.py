"""``python -m tests.rigs.inbox``: see scripts/prove/inbox."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from tests.kit.inbox import Stage
from tests.kit.servers import DurablePostgres, Engine, RedisServer, engines
from tests.rigs.inbox.points import POINTS, kill_at, stop_at
from tests.rigs.inbox.rig import Rig


@click.command()
@click.option("--transactions", default=10_000, show_default=True)
@click.option("--kills", default=300, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--only", type=click.Choice(("sqlite", "postgresql")), help="Use one database.")
def main(transactions: int, kills: int, seed: int, only: str | None) -> None:
    """Kill relays of an inbox: first at each point of a turn on each database and server, then all the time. A naive
    relay, which pushes and then deletes, must run jobs twice here."""
    holds = True
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        postgres = None if only == "sqlite" else DurablePostgres().start()
        kinds = {"sqlite": lambda n: f"sqlite:///{place / n}.db"}
        if postgres is not None:
            kinds["postgresql"] = lambda _: postgres.url(postgres.create_database())
        try:
            for kind, url in kinds.items():
                if only in (None, kind):
                    holds &= _prove(kind, url, place, transactions, kills, seed)
        finally:
            if postgres is not None:
                postgres.stop()
    sys.exit(0 if holds else 1)


def _prove(
    kind: str, url: Callable[[str], str], place: Path, transactions: int, kills: int, seed: int
) -> bool:
    for engine in engines():
        with _served(engine, place) as server:
            for point in POINTS:
                for way in (kill_at, stop_at):
                    stage = Stage(
                        url(f"{kind}-{engine.name}-{point.name}-{way.__name__}"), server.url
                    )
                    server.client().flushall()
                    way(stage, point)
                    stage.close()
            click.echo(f"{kind}, {engine.name}: each of {len(POINTS)} points, killed and stopped")
    holds = True
    for is_usual in (False, True):
        some = (transactions // 5, max(20, kills // 10)) if is_usual else (transactions, kills)
        name = f"{kind}-{'usual' if is_usual else 'ours'}"
        directory = place / name
        directory.mkdir()
        with _served(engines()[0], directory) as server:
            rig = Rig(url(name), server.url, directory, seed=seed, is_usual=is_usual)
            outcome = rig.run(*some)
        click.echo(json.dumps({"relay": "usual" if is_usual else "ours", **outcome.document()}))
        holds &= outcome.twice > 0 if is_usual else outcome.holds
    return holds


class _served:  # noqa: N801 - reads as a function
    """Yield a server during the block. It must not stop if a child of this process is killed."""

    def __init__(self, engine: Engine, place: Path) -> None:
        directory = place / f"redis-{engine.name}-{os.urandom(3).hex()}"
        directory.mkdir()
        self._server = RedisServer(engine, directory)

    def __enter__(self) -> RedisServer:
        return self._server.start()

    def __exit__(self, *_: object) -> None:
        self._server.stop()


if __name__ == "__main__":
    main()
