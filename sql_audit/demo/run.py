"""One run of the demo: finds the files, starts the processes, shows the progress, and prints the report."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click

from rq_core.connections.client import Client
from rq_core.protocol.engine.plan import Patience
from sql_audit.cli.report import print_report
from sql_audit.demo import tasks
from sql_audit.demo.stage import (
    Deed,
    DemoFailed,
    DemoOutcome,
    Stage,
    compare_records,
    find_files,
    larger,
)
from sql_audit.queries import reports
from sql_audit.store import migrate
from sql_audit.store.connection.database import Database

FILES_MIN: Final = 50


def run_demo(
    root: Path,
    redis_url: str | None,
    audit_url: str | None,
    workers: int,
    *,
    keep: bool,
    web: str | None = None,
) -> DemoOutcome:
    """Run the demo, print each step, and return the findings.

    ``web`` is the address of the web page, which is served until Ctrl-C. None: no page. Raise DemoFailed, RqCoreError
    or SQLAlchemyError if the demo could not be carried out.
    """
    with _place(keep) as place:
        return _perform(root, place, redis_url, audit_url, workers, keep=keep, web=web)


@contextlib.contextmanager
def _place(keep: bool) -> Iterator[Path]:
    """Yield a new directory for the demo's server, database and files. Remove the directory afterwards, unless
    ``keep``.
    """
    if keep:
        yield Path(tempfile.mkdtemp(prefix="rq-core-demo-"))
        return
    with tempfile.TemporaryDirectory(prefix="rq-core-demo-") as name:
        yield Path(name)


@contextlib.contextmanager
def _server(place: Path, url: str | None, *, keep: bool) -> Iterator[str]:
    """Yield ``url``. Without ``url``, start an embedded server, yield its URL, and stop it afterwards unless
    ``keep``.
    """
    if url is not None:
        yield url
        return
    from rq_core.embedded import server

    try:
        yield server.ensure_server(place / "server")
    finally:
        if not keep:
            server.stop_server(place / "server")


def _perform(
    root: Path,
    place: Path,
    redis_url: str | None,
    audit_url: str | None,
    workers: int,
    *,
    keep: bool,
    web: str | None,
) -> DemoOutcome:
    files = find_files(root)
    if len(files) < FILES_MIN:
        raise DemoFailed(f"{root} has {len(files)} files; the demo wants at least {FILES_MIN}")
    audit = audit_url or f"sqlite:///{place / 'audit.db'}"
    database = Database(audit)
    migrate.ensure_schema(database)
    engine = database.readers
    with (
        _server(place, redis_url, keep=keep) as url,
        Client(url, patience=Patience(unsent=2.0)) as client,
        contextlib.ExitStack() as pages,
    ):
        stage = Stage(
            client=client,
            redis_url=url,
            audit_url=audit,
            queue=tasks.QUEUE,
            witness=place / "witness.jsonl",
            log=place / "processes.log",
        )
        click.echo(
            f"{len(files)} files below {root}, {len(larger(files))} of the larger to compress as well;"
            f" {workers} worker processes, a lease of 2 s"
        )
        page = None
        if web is not None:
            page = pages.enter_context(stage.page(web))
            click.echo(f"the web page is at http://{web}/")
        try:
            deed = _work(stage, files, workers)
        except BaseException:
            _show_log(stage.log)
            if keep:
                _show_keys(place, stage, own=redis_url is None)
            raise
        report = reports.report(engine, stage.queue)
        print_report(report)
        outcome = compare_records(engine, stage.queue, deed, stage.witness)
        _show_files(report, deed, root)
        click.echo(
            f"{outcome.compressed} larger files were compressed, {outcome.size / 1e6:.1f} MB to"
            f" {outcome.packed / 1e6:.1f} MB. The cap of {tasks.COMPRESS_CAP} held: by the log at most"
            f" {outcome.compressing} ran at once."
            if outcome.compressing <= tasks.COMPRESS_CAP
            else f"The cap of {tasks.COMPRESS_CAP} did not hold: by the log {outcome.compressing} ran at once."
        )
        click.echo(
            f"{outcome.lease_expired} leases of the killed worker expired; the last of these jobs was claimed again"
            f" {outcome.again_ms / 1000:.1f} s after the kill."
        )
        if page is not None:
            # The sentence asks for Ctrl-C, so Ctrl-C must be awaited before it is printed.
            with contextlib.suppress(KeyboardInterrupt):
                click.echo(f"The web page stays at http://{web}/ until Ctrl-C.")
                page.wait()
                _show_log(stage.log)
            pages.close()
        if keep:
            _show_keys(place, stage, own=redis_url is None)
        else:
            stage.forget()
    database.close()
    return outcome


def _work(stage: Stage, files: list[Path], workers: int) -> Deed:
    large = larger(files)
    jobs = len(files) + len(large)
    with stage.mirror(), _progress(jobs) as (enqueued, done, say):
        started = time.monotonic()
        large_ids = stage.enqueue(tasks.compress, large, enqueued)
        ids = stage.enqueue(tasks.digest, files, enqueued)
        with stage.crew(workers) as crew:
            stage.wait_until_done(jobs, done, jobs // 2)
            pid, held = stage.kill_one(crew)
            killed_at_ms = stage.now_ms()
            say(f"killed worker process {pid} (SIGKILL) while it held {held} claims")
            stage.wait_until_done(jobs, done, jobs)
            seconds = time.monotonic() - started
    return Deed(files, ids, large, large_ids, seconds, killed_at_ms)


def _show_files(report: reports.Report, deed: Deed, root: Path) -> None:
    """Print the names of the files that the slowest jobs hashed. (The report from SQL has only digests of the
    arguments.)
    """
    names = dict(zip([*deed.ids, *deed.larger_ids], [*deed.files, *deed.larger], strict=True))
    click.echo("slowest files")
    for job in report.slowest:
        if job.job_id in names:
            click.echo(f"  {job.ran_ms or 0:>6} ms  {names[job.job_id].relative_to(root)}")


@contextlib.contextmanager
def _progress(
    total: int,
) -> Iterator[tuple[Callable[[int], None], Callable[[int], None], Callable[[str], None]]]:
    """Show two progress bars: one of the enqueued jobs, one of the finished jobs. Yield three functions.

    The first function adds to the enqueued jobs. The second sets the number of finished jobs. The third prints a line
    above the bars.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console()
    columns: list[Any] = [
        TextColumn("{task.description:<9}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    ]
    with Progress(*columns, console=console) as progress:
        enqueueing = progress.add_task("enqueued", total=total)
        running = progress.add_task("done", total=total)
        yield (
            lambda step: progress.advance(enqueueing, step),
            lambda done: progress.update(running, completed=done),
            lambda text: console.print(text, highlight=False),
        )


def _show_log(log: Path) -> None:
    if log.exists():
        click.echo("the last lines of the processes' log:", err=True)
        for line in log.read_text(errors="replace").splitlines()[-15:]:
            click.echo(f"  {line}", err=True)


def _show_keys(place: Path, stage: Stage, *, own: bool) -> None:
    click.echo(f"Kept in {place}. Look inside:")
    url = stage.redis_url
    if url.startswith("unix:"):
        click.echo(f"  redis-cli -s {url.removeprefix('unix://').partition('?')[0]} --scan")
    click.echo(f"  rq-core audit report --audit {stage.audit_url} --queue {stage.queue}")
    if own:
        click.echo(f"  rq-core server stop --dir {place / 'server'}")
