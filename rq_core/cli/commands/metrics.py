"""The command ``rq-core metrics``."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

import click

from rq_core.cli.options import audit_url_option, inbox_url_option, server_options
from rq_core.cli.text import print_table, say

if TYPE_CHECKING:
    from rq_core.metrics.table import Family


def _most(family: Family) -> str:
    """Return the maximum number of samples of a metric family as text, such as ``4 a queue``."""
    return f"{family.samples_max:,}{' a queue' if 'queue' in family.labels else ''}"


@click.command()
@click.option(
    "--listen",
    default="127.0.0.1:9464",
    show_default=True,
    metavar="[HOST:]PORT",
    help="The address at which Prometheus reads /metrics.",
)
@audit_url_option("The audit database, for metrics of the log.")
@inbox_url_option("The database with the inbox, for metrics of its rows.")
@click.option("--once", is_flag=True, help="Print the metrics once, and exit.")
@click.option(
    "--list",
    "listing",
    is_flag=True,
    help="Print a list of all metrics, with the most samples of each, and exit.",
)
@server_options
@click.pass_context
def metrics(
    ctx: click.Context,
    listen: str,
    audit_url: str | None,
    inbox_url: str | None,
    redis_url: str,
    prefix: str,
    *,
    once: bool,
    listing: bool,
) -> None:
    """Serve the state of the queues to Prometheus, until SIGTERM or Ctrl-C.

    With --once, the exit status is 1 if Redis does not answer or refuses, or if a queue cannot be read.

    Workers serve their own counts on another port: `rq-core worker --health`. Needs the extra `metrics`.
    """
    from rq_core.metrics.table import FAMILIES

    if listing:
        print_table(
            ("metric", "type", "labels", "of", "samples at most"),
            (
                (each.name, each.kind, " ".join(each.labels), each.source, _most(each))
                for each in FAMILIES
            ),
            empty="",
        )
        return
    try:
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import MetricsHandler, generate_latest
    except ImportError:
        from rq_core.metrics.page import MISSING

        raise click.ClickException(MISSING.strip()) from None
    from rq_core.metrics.collector import QueueCollector
    from rq_core.process.http_port import HttpPort, parse_address

    parse_address(listen, option="listen")
    registry = CollectorRegistry()
    with contextlib.closing(
        QueueCollector.at(redis_url, prefix=prefix, audit_url=audit_url, inbox_url=inbox_url)
    ) as collector:
        registry.register(collector)
        if once:
            click.echo(generate_latest(registry).decode(), nl=False)
            for why in collector.unreadable.values():
                say(f"rq-core: {why}", err=True)
            ctx.exit(0 if collector.is_read and not collector.unreadable else 1)
        # Threads that start after this do not receive the signals; this thread waits for them.
        signals = {signal.SIGTERM, signal.SIGINT}
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        handler = MetricsHandler.factory(registry)
        with contextlib.closing(HttpPort(listen, handler, option="listen")) as port:
            say(f"metrics at http://{port.host}:{port.port}/metrics")
            signal.sigwait(signals)
