"""``python -m tests.rigs.once``: see scripts/prove/once."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from rq_core.model.values import DIGEST, FULL, VALUE_MAX
from tests.kit.reaper import close_reaper
from tests.kit.servers import RedisServer, engines
from tests.rigs.once import expiring, keeping
from tests.rigs.once import race as once_race


@contextlib.contextmanager
def stage() -> Iterator[tuple[RedisServer, Path]]:
    """A server and a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="rq-core-once-") as name:
        server = RedisServer(engines()[0], Path(name)).start()
        try:
            yield server, Path(name)
        finally:
            server.kill()
            close_reaper()


def conclude(problems: Sequence[str]) -> None:
    """End with status 1 if anything fell short."""
    for problem in problems:
        click.echo(f"FELL SHORT: {problem}", err=True)
    if problems:
        raise SystemExit(1)
    click.echo("all held")


@click.group()
def main() -> None:
    """Show that names are held once, and that deadlines of jobs and of results keep up.

    Each part ends with status 1 if one falls short."""


@main.command()
@click.option("--enqueues", default=100_000, show_default=True)
@click.option("--kills", default=200, show_default=True)
def race(enqueues: int, kills: int) -> None:
    """50 producers ask for one name while workers are killed."""
    with stage() as (server, place):
        found = once_race.race(server.url, place, enqueues, kills)
    click.echo(found.line())
    conclude([*found.problems, *found.names.breaches])


@main.command()
@click.option("--rate", default=10_000, show_default=True, help="Jobs a second.")
@click.option("--seconds", default=60, show_default=True)
def expiry(rate: int, seconds: int) -> None:
    """Jobs expire as fast as they come, half of them delayed, half in 250 lanes, and memory stays flat."""
    with stage() as (server, place):
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


@main.command()
@click.option("--seconds", default=60, show_default=True, help="Of each of the three.")
def kept(seconds: int) -> None:
    """Results kept for a second come at full speed, and memory stays flat: short ones, ones of 64 KiB, and these in the
    log as well. No call takes Redis 10 ms."""
    problems = []
    for size, chunk, log in ((60, 250, DIGEST), (VALUE_MAX, 16, DIGEST), (VALUE_MAX, 16, FULL)):
        with stage() as (server, _):
            found = keeping.keep(server.url, seconds, size, log=log, chunk=chunk)
        click.echo(f"{size:,} bytes ({log}): {found.line()}")
        if found.growth > 1.1:
            problems.append(f"memory grows by values of {size:,} bytes")
        if found.left:
            problems.append(f"{found.left} results were left")
        if found.calls_ms[0] > keeping.CALL_MS:
            problems.append(f"a call took Redis {found.calls_ms[0]:.1f} ms")
    conclude(problems)


if __name__ == "__main__":
    main()
