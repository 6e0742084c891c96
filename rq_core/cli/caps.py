"""Commands about caps: ``cap`` and ``caps``, and what ``job`` says of waiting."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

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
from rq_core.cli.text import ago, print_table, say, span
from rq_core.model.limits import DECLARED, read_limit, shown
from rq_core.model.scopes import WEIGHT, family_of, is_rate

if TYPE_CHECKING:
    from rq_core.model.limits import Limit
    from rq_core.protocol.scope_reads import ScopeStatus, Standing


@click.command()
@click.argument("queue")
@click.argument("scope")
@click.argument("limit", metavar="N|none|code")
@click.option("--force", is_flag=True, help="Also for a task that the queue has not seen yet.")
@click.option(
    "--version",
    type=click.IntRange(0),
    metavar="V",
    help="Only if the limit still has this version (0: none is stored).",
)
@audited_options
@server_options
@json_option
def cap(queue: str, scope: str, limit: str, **given: Any) -> None:
    """Change the limit of SCOPE in QUEUE, at once and for every worker.

    SCOPE is queue, task=NAME, a family of keys (the limit of each), or one key, like send.tenant=acme.
    The limit is a number; 0 stops the scope, and none lifts the limit. A rate reads 100/60s, or
    100/60s/5 with bursts of 5. Lowering a limit ends no running job. code ends a limit that was set
    live: the limit that the workers' code declares holds again, and one key follows its family.
    """
    with connect(given["redis_url"], given["prefix"]) as client:
        known_queues(client, queue)
        if not given["force"]:
            client.run(client.calls.caps.check_task(queue, scope))
        made = client.run(
            client.calls.caps.change(
                queue,
                scope,
                _wanted(limit),
                version=given["version"],
                by=actor(given["by"]),
                why=given["reason"],
            )
        )
    if given["as_json"]:
        print_json(
            {"queue": queue, "scope": scope, "limit": str(made.limit), "version": made.version}
            | {"outcome": made.outcome}
        )
        return
    done = "is now" if made.outcome == "changed" else "was already"
    # Without an entry of its own it follows its family.
    which = f"version {made.version}" if made.version else f"as {family_of(scope)}"
    if limit == DECLARED and made.version:
        which += ", from code"
    say(f"{scope} {done} {shown(made.limit)} ({which})")


def _wanted(text: str) -> Limit | int | Literal["code"] | None:
    if text == DECLARED:
        return DECLARED
    limit = read_limit(text)
    return limit if limit.window_ms else limit.most


@click.command()
@click.argument("queue")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    metavar="N",
    help="Most scopes to list.",
)
@server_options
@json_option
def caps(queue: str, limit: int, redis_url: str, prefix: str, *, as_json: bool) -> None:
    """Show what limits QUEUE's jobs: how many hold it, and how many wait for it.

    First the scopes with a limit of their own, then the keys that jobs hold or wait for, then the
    weights of a fair queue.
    """
    with connect(redis_url, prefix) as client:
        known_queues(client, queue)
        found = client.run(client.calls.reads.caps(queue, limit + 1))
    if as_json:
        print_json([_document(status) for status in found[:limit]])
        return
    now_ms = time.time() * 1000
    print_table(
        ("scope", "cap", "holders", "waiting", "oldest wait", ""),
        (
            (
                status.scope,
                _limit_of(status),
                "" if is_rate(status.scope) or _is_weight(status) else status.holders,
                "" if _is_weight(status) else f"{status.waiting:,}{'+' if status.partial else ''}",
                "" if status.oldest_wait_ms is None else span(status.oldest_wait_ms),
                _note(status, now_ms),
            )
            for status in found[:limit]
        ),
        empty=f"nothing limits the jobs of {queue}",
    )
    if len(found) > limit:
        say(f"the first {limit:,}; --limit shows more")


def _is_weight(status: ScopeStatus) -> bool:
    return family_of(status.scope) == WEIGHT


def _document(status: ScopeStatus) -> dict[str, Any]:
    declared = None if status.declared is None else str(status.declared)
    return status._asdict() | {"limit": str(status.limit), "declared": declared}


def _limit_of(status: ScopeStatus) -> str:
    if _is_weight(status):
        return f"weighs {status.limit}"
    whole_family = "=" not in status.scope and status.scope != "queue" and not status.keyless
    return shown(status.limit) + (" each" if whole_family else "")


def _note(status: ScopeStatus, now_ms: float) -> str:
    notes = []
    if status.resumes_ms is not None:
        first = "the first " if "=" not in status.scope else ""
        notes.append(f"{first}resumes {ago(status.resumes_ms, status.now_ms or now_ms)}")
    if status.source == "live":
        by = f" by {status.set_by}" if status.set_by else ""
        at = f" {ago(status.set_at_ms, now_ms)}" if status.set_at_ms else ""
        notes.append(f"set live{by}{at}")
        if status.declared is not None:
            notes.append(f"code says {shown(status.declared)}")
    elif status.source == "family":
        notes.append(f"as {family_of(status.scope)}")
    return "; ".join(notes)


def waiting_rows(standing: Standing, now_ms: float) -> list[tuple[str, str]]:
    """What `rq-core job` says of a job's lane and of what it waits for."""
    rows = [("lane", standing.lane)] if standing.lane else []
    if standing.paused and standing.job.state == "ready":
        rows.append(("waits for", "the queue, which is paused"))
    elif standing.scope is not None:
        rows.append(("waits for", standing.scope))
        if is_rate(standing.scope) and standing.limit.most:
            rows.append(("rate", shown(standing.limit)))
            if standing.resumes_ms is not None:
                rows.append(("resumes", ago(standing.resumes_ms, standing.now_ms or now_ms)))
        else:
            rows.append(("cap", f"{shown(standing.limit)}, held by {standing.holders:,}"))
            for holder in standing.shown:
                since = f", since {ago(holder.since_ms, now_ms)}" if holder.since_ms else ""
                rows.append(("held by", f"{holder.id} at {holder.worker or '?'}{since}"))
            if standing.holders > len(standing.shown) > 0:
                rows.append(("", f"and {standing.holders - len(standing.shown):,} more"))
    if standing.ahead:
        where = "in its lane" if standing.ahead_in == "lane" else "may run before it"
        least = "at least " if standing.ahead_at_least else ""
        rows.append(("ahead", f"{least}{standing.ahead:,} {where}"))
    return rows


def waiting_document(standing: Standing) -> dict[str, Any]:
    """The same, for programs."""
    return {
        "lane": standing.lane or None,
        "place": standing.place or None,
        "waits_for": standing.scope,
        "limit": None if standing.scope is None else str(standing.limit),
        "holders": standing.holders,
        "held_by": [
            {"id": holder.id, "worker": holder.worker, "since_ms": holder.since_ms}
            for holder in standing.shown
        ],
        "resumes_ms": standing.resumes_ms,
        "now_ms": standing.now_ms,
        "ahead": standing.ahead,
        "ahead_in": standing.ahead_in or None,
        "ahead_at_least": standing.ahead_at_least,
        "paused": standing.paused,
    }
