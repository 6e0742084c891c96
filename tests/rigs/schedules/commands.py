"""The commands ``scripts/prove/live schedules``: the long form of the proofs of schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from tests.kit.servers import Engine, engines
from tests.rigs.schedules import declaring, many, minute, restarts
from tests.rigs.stage import directory, served

ENGINES: Final = {each.name: each for each in engines()}
WITHIN_MS: Final = 1_000
"""The longest allowed time (ms) from the beginning of a minute to the report of its last instant."""

engine: Final[Callable[[Any], Any]] = click.option(
    "--engine",
    type=click.Choice(list(ENGINES)),
    default=next(iter(ENGINES)),
    callback=lambda _context, _option, name: ENGINES[name],
    show_default=True,
)


def conclude(line: str, problems: Sequence[str]) -> None:
    """Print the figures and the problems, and exit with 1 if there are problems."""
    click.echo(line)
    for problem in problems:
        click.echo(f"FELL SHORT: {problem}", err=True)
    if problems:
        raise SystemExit(1)
    click.echo("all held")


@click.group()
def schedules() -> None:
    """Prove that each instant of a schedule happens once, or is reported as missed, even if workers restart."""


@schedules.command("many")
@click.option("--schedules", "count", default=100_000, show_default=True)
@click.option("--times", default=5, show_default=True)
@click.option(
    "--beside", default=100_000, show_default=True, help="Schedules beside claims; 0: count none."
)
@engine
def store_many(count: int, times: int, beside: int, engine: Engine) -> None:
    """Store very many schedules in one queue. A claim in it must not cost more than a claim in a queue with one delayed
    job.

    At least 15,000 schedules must be stored per second, and each may take 700 bytes at most. The instructions of claims
    are counted under valgrind, with redis-server.
    """
    with directory() as place, served(engine, place) as server:
        found = many.declare(server.url, count, times)
    lines, problems = [found.line()], found.problems
    if found.rate < many.RATE_MIN:
        problems.append(f"only {found.rate:,.0f} schedules a second were stored")
    if max(each.bytes_each for each in found.runs) > many.BYTES_MAX:
        problems.append("a schedule takes too many bytes")
    if beside:
        counted = many.claims(beside)
        lines.append(counted.line())
        problems += counted.problems
    conclude("\n".join(lines), problems)


@schedules.command("minute")
@click.option("--schedules", "count", default=10_000, show_default=True)
@click.option("--failover", is_flag=True, help="Kill the primary of a Sentinel in the middle.")
@engine
def fire_minute(count: int, engine: Engine, *, failover: bool) -> None:
    """Let two workers fire all schedules of one minute. Each schedule must be fired once, within a second.

    With ``--failover``, the primary is killed meanwhile. In the history that the new primary has, each schedule must
    still be fired once, but may be late.
    """
    with directory() as place:
        run = minute.fire_through_a_failover if failover else minute.fire
        found = run(place, engine, count)
    problems = found.problems
    if len(found.by) < 2:
        problems.append("only one worker took part")
    if not failover and found.last_ms > WITHIN_MS:
        problems.append(f"the last instant was reported {found.last_ms} ms after the minute")
    conclude(found.line(), problems)


@schedules.command("restarts")
@click.option("--restarts", "count", default=100, show_default=True)
@click.option("--seconds", default=5.0, show_default=True, help="How long a worker is away.")
@click.option("--every", default=10.0, show_default=True, help="Seconds between instants.")
@engine
def restart_workers(count: int, seconds: float, every: float, engine: Engine) -> None:
    """Fire one schedule while two workers are restarted or killed in turn. SQL must have each instant."""
    with directory() as place:
        found = restarts.restart(place, engine, count, seconds=seconds, every=every)
    conclude(found.line(), found.problems)


@schedules.command("declaring")
@click.option("--rounds", default=10_000, show_default=True)
@click.option("--clients", default=declaring.CLIENTS, show_default=True)
@engine
def declare_at_once(rounds: int, clients: int, engine: Engine) -> None:
    """Let old and new code declare one schedule at the same time, from two processes.

    Each round must make one version of the schedule, and the old definition must not come back.
    """
    with directory() as place, served(engine, place) as server:
        found = declaring.declare(server.url, rounds, clients)
    conclude(found.line(), found.problems)
