"""``python -m tests.rigs.chaos``: see scripts/prove/chaos."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import click

from tests.kit.reaper import close_reaper
from tests.kit.servers import DurablePostgres, engines
from tests.rigs.chaos import chaos
from tests.rigs.chaos.nemesis import KINDS


@click.command()
@click.option("--minutes", default=1.0, show_default=True, help="How long faults are applied.")
@click.option("--seed", default=1, show_default=True, help="Of the faults and the load.")
@click.option("--rate", default=chaos.RATE, show_default=True, help="Jobs per second.")
@click.option("--audit", metavar="URL", help="An empty audit database; by default an SQLite file.")
@click.option(
    "--postgres", is_flag=True, help="A PostgreSQL of its own, instead of an SQLite file."
)
@click.option("--engine", type=click.Choice([each.name for each in engines()]), default="valkey")
@click.option("--keep", type=click.Path(path_type=Path), help="Directory for the records and logs.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(sorted(KINDS)), help="Only this.")
@click.option("--json", "as_json", is_flag=True, help="The last line is one JSON object.")
def main(
    minutes: float,
    seed: int,
    rate: float,
    audit: str | None,
    engine: str,
    keep: Path | None,
    kinds: tuple[str, ...],
    *,
    postgres: bool,
    as_json: bool,
) -> None:
    """Break everything under load, one thing at a time; then heal, drain, and say what came of every job.

    Ends with 0 only if nothing was lost unreported, nothing ran twice or beyond a cap unexplained, and
    ``audit verify`` holds. Gaps that it cannot see into are allowed where an outbox was emptied.
    """
    with tempfile.TemporaryDirectory(prefix="rq-core-chaos-") as name:
        place = keep or Path(name)
        place.mkdir(parents=True, exist_ok=True)
        if audit is not None and postgres:
            raise click.UsageError(
                "--audit names a database, --postgres makes one: give one of them"
            )
        database = DurablePostgres().start() if postgres else None
        if database is not None:
            audit = database.url(database.create_database())
        try:
            found = chaos.run(
                place,
                minutes=minutes,
                seed=seed,
                rate=rate,
                audit_url=audit or f"sqlite:///{place / 'audit.db'}",
                engine=next(each for each in engines() if each.name == engine),
                kinds=kinds or None,
                postgres=database,
                on_fault=lambda kind: click.echo(kind, err=True),
            )
        finally:
            if database is not None:
                database.stop()
            close_reaper()
    click.echo(found.table(), err=as_json)
    for problem in found.problems:
        click.echo(f"FELL SHORT: {problem}", err=True)
    document = found.document()
    click.echo(
        json.dumps(document) if as_json else "\n".join(f"{k}: {v}" for k, v in document.items())
    )
    raise SystemExit(0 if found.clean else 1)


if __name__ == "__main__":
    main()
