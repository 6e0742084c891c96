"""The command line ``python -m tests.rigs.lies``: see scripts/prove/lies."""

from __future__ import annotations

import faulthandler
import json
import logging
import signal
from pathlib import Path

import click

from tests.kit.reaper import close_reaper
from tests.rigs.lies import page
from tests.rigs.lies.run import Outcome, tell_all
from tests.rigs.lies.stage import staged


@click.command()
@click.option(
    "--on", "dialects", multiple=True, default=("sqlite", "postgresql"), help="On this database."
)
@click.option("--kind", help="Only lies whose kind has these words.")
@click.option(
    "--into",
    type=click.Path(path_type=Path),
    help="Keep the outcome in this file, and write no page.",
)
@click.option(
    "--outcomes",
    type=click.Path(path_type=Path, exists=True),
    multiple=True,
    help="Write the page from these files.",
)
def main(
    dialects: tuple[str, ...], kind: str | None, into: Path | None, outcomes: tuple[Path, ...]
) -> None:
    """Make all lies of all kinds, and write docs/lies.md from the findings."""
    faulthandler.register(signal.SIGUSR1)
    logging.disable(logging.CRITICAL)
    told: list[Outcome] = []
    for path in outcomes:
        told += [Outcome(*each) for each in json.loads(path.read_text())]
    for dialect in () if outcomes else dialects:
        with staged(dialect) as stage:
            for outcome in tell_all(stage, lambda lie: kind is None or kind in lie.kind):
                told.append(outcome)
                for crash in outcome.crashes:
                    click.echo(f"CRASH {dialect}: {outcome.line}: {crash}")
                if not outcome.refused and not outcome.found["verify"]:
                    click.echo(f"{dialect}: {outcome.line}")
    close_reaper()
    if into is not None:
        into.write_text(json.dumps(told))
    elif kind is None:
        page.PAGE.write_text(page.page(told), encoding="utf-8")


if __name__ == "__main__":
    main()
