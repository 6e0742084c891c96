"""Commands that pause and resume scopes. The log has each change, with the operator and the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from rq_core.cli.options import (
    actor,
    audited_options,
    connect,
    json_option,
    known_queues,
    print_json,
    server_options,
)
from rq_core.cli.text import say
from rq_core.model.limits.limit import FOREVER_MS
from rq_core.views.text import utc

if TYPE_CHECKING:
    from rq_core.protocol.calls.pauses import PauseChange


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    for decorate in (json_option, server_options, audited_options):
        function = decorate(function)
    return click.argument("queue")(click.argument("scope")(function))


@click.command("pause-scope")
@click.option(
    "--for",
    "seconds",
    type=click.FloatRange(min=0.001),
    metavar="SECONDS",
    help="How long the pause lasts; by default until resume-scope.",
)
@_options
def pause_scope(queue: str, scope: str, seconds: float | None, **given: Any) -> None:
    """Let no job of SCOPE in QUEUE begin for a while. Jobs that run already run on, and no attempt is spent.

    SCOPE is one key of a rate or a breaker, as `rq-core caps QUEUE` lists it. After the pause, the jobs of a rate begin
    one after the other, and a breaker awaits a probe. `rq-core cap QUEUE SCOPE 0` stops any scope.
    """
    from rq_core.model.lib.durations import ms_of

    for_ms = None if seconds is None else max(1, ms_of("for", seconds))
    with connect(given["redis_url"], given["prefix"]) as client:
        known_queues(client, queue)
        by, why = actor(given["by"]), given["reason"]
        plan = client.calls.pauses.pause(queue, scope, for_ms=for_ms, by=by, why=why)
        _print(queue, scope, client.run(plan), given)


@click.command("resume-scope")
@_options
def resume_scope(queue: str, scope: str, **given: Any) -> None:
    """End the pause of SCOPE in QUEUE, whoever paused it: its jobs may begin at once."""
    with connect(given["redis_url"], given["prefix"]) as client:
        known_queues(client, queue)
        plan = client.calls.pauses.resume(queue, scope, by=actor(given["by"]), why=given["reason"])
        _print(queue, scope, client.run(plan), given)


def _print(queue: str, scope: str, change: PauseChange, given: dict[str, Any]) -> None:
    if given["as_json"]:
        print_json({"queue": queue, "scope": scope, **change._asdict()})
        return
    until = "until resume-scope" if change.until_ms == FOREVER_MS else None
    if until is None and change.until_ms is not None:
        until = f"until {utc(change.until_ms)}"
    words = {
        "paused": f"is paused {until}",
        "kept": f"was paused already, {until}",
        "resumed": "is resumed",
        "open": "was not paused",
    }
    say(f"{scope} {words[change.outcome]}")
