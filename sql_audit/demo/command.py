"""The command ``rq-core demo``: its options and its exit status. It imports ``run`` only when it runs."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import click


@click.command(name="demo")
@click.option(
    "--path",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=None,
    help="Directory whose files are hashed.  [default: this Python's standard library]",
)
@click.option(
    "--redis", "redis_url", default=None, help="A server's URL.  [default: an embedded one]"
)
@click.option("--audit", "audit_url", default=None, help="An audit database.  [default: SQLite]")
@click.option("--workers", type=click.IntRange(2, 32), default=2, show_default=True)
@click.option("--keep", is_flag=True, help="Keep the server and the database to look inside.")
@click.option(
    "--web",
    is_flag=False,
    flag_value="127.0.0.1:8900",
    default=None,
    metavar="[HOST:PORT]",
    help="Also serve the web page, until Ctrl-C.  [default: 127.0.0.1:8900]",
)
@click.option("--json", "as_json", is_flag=True, help="End with one line of JSON.")
def demo(
    path: Path | None,
    redis_url: str | None,
    audit_url: str | None,
    workers: int,
    keep: bool,
    web: str | None,
    as_json: bool,
) -> None:
    """Hash Python's library files, kill a worker, prove that each job succeeded once.

    Each file of a directory is one job. The larger files are compressed as well, at most two at once. Half-way one of
    the worker processes is killed while it holds jobs. The exit status is 0 only if the files, the records that the
    jobs wrote, and SQL agree.
    """
    from sqlalchemy.exc import SQLAlchemyError

    from rq_core.errors import RqCoreError
    from sql_audit.demo.run import run_demo
    from sql_audit.demo.stage import DemoFailed
    from sql_audit.store.connection.driver_errors import describe_error

    root = path or Path(sysconfig.get_path("stdlib"))
    try:
        outcome = run_demo(root, redis_url, audit_url, workers, keep=keep, web=web)
    except (RqCoreError, DemoFailed, OSError, SQLAlchemyError) as error:
        click.echo(f"demo: {describe_error(error)}", err=True)
        sys.exit(1)
    if outcome.duplicates:
        click.echo(
            f"{outcome.duplicates} files were hashed twice: the worker was killed before it could settle their jobs."
        )
    for problem in outcome.problems:
        click.echo(f"does not agree: {problem}", err=True)
    if not outcome.problems:
        click.echo("All agree: the files, what the jobs wrote down, and SQL.")
    if as_json:
        click.echo(outcome.line())
    sys.exit(1 if outcome.problems else 0)
