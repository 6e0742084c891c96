"""``python -m tests.rigs.waits``: see scripts/prove/waits."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from tests.kit.reaper import close_reaper
from tests.kit.servers import Engine, engines
from tests.rigs.waits import crowd
from tests.rigs.waits.crowd import Found, fell_short
from tests.rigs.waits.stages import ALONE, STAGES, Striker

SECONDS_MAX = 600.0
ALONE_SHARE = 20
"""A lone caller waits for so much fewer jobs: it has one under way."""


def prove(
    name: str,
    engine: Engine,
    place: Path,
    jobs: int,
    *,
    faults: int = 1,
    callers: int = 16,
    seconds_max: float = SECONDS_MAX,
) -> tuple[Found, Sequence[str]]:
    """Let callers wait ``jobs`` times on this stage, and until it has seen so many faults. Returns what was seen, and
    what fell short."""
    if name == ALONE:
        jobs, callers = jobs // ALONE_SHARE, 1
    where = place / "servers"
    where.mkdir()
    with STAGES[name](engine, where) as stage:
        striker = Striker(stage)
        striker.start()
        try:
            found = crowd.run(
                stage.waits_at,
                stage.settles_at,
                place,
                jobs,
                callers=callers,
                subscribed=stage.subscribed,
                seconds_max=seconds_max,
                more=lambda: bool(stage.every) and striker.is_alive() and striker.count < faults,
            )
        finally:
            striker.stop()
    found.faults = striker.count
    return found, fell_short(found, alone=name == ALONE, may_forget=stage.may_forget)


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(STAGES)))
@click.option("--jobs", default=100_000, show_default=True, help="Waits of each stage.")
@click.option(
    "--callers", default=16, show_default=True, help="Callers that wait at the same time."
)
@click.option("--seconds", default=SECONDS_MAX, show_default=True, help="Of each stage, at most.")
def main(names: Sequence[str], jobs: int, callers: int, seconds: float) -> None:
    """Show that no wait is lost, on each stage or those NAMED. Ends with status 1 if something falls short."""
    problems: list[str] = []
    try:
        for name in names or STAGES:
            with tempfile.TemporaryDirectory(prefix="rq-core-waits-") as place:
                found, short = prove(
                    name, engines()[0], Path(place), jobs, callers=callers, seconds_max=seconds
                )
            click.echo(found.line(name))
            problems += [f"{name}: {each}" for each in short]
    finally:
        close_reaper()
    for problem in problems:
        click.echo(f"FELL SHORT: {problem}", err=True)
    if problems:
        raise SystemExit(1)
    click.echo("all held")


if __name__ == "__main__":
    main()
