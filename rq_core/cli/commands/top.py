"""The command ``rq-core top``."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from rq_core.cli.options import (
    audit_url_option,
    inbox_url_option,
    json_option,
    print_json,
    server_options,
)
from rq_core.cli.text import terminal
from rq_core.model.lib.text import counted, shorten
from rq_core.views.text import fit, oldest, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import RenderableType
    from rich.text import Text

    from rq_core.metrics.causes import Cause, Unread
    from rq_core.metrics.shared import Shared
    from rq_core.model.plugins import InboxOverview, LogOverview
    from rq_core.protocol.reads.queue_load import Overview, QueueOverview

DROPPED: Final = (
    "ended/s", "scheduled", "parked", "ready/s", "backlog", "blocked lanes", "dead", "workers", "running", "oldest",
)  # fmt: skip
"""Columns to leave out on a narrow terminal, in this order. Columns that show a current problem are left out last."""
OF_CAUSE: Final = {
    "RqCoreNoWorker": "workers",
    "RqCoreNoClaims": "scheduled",
    "RqCoreTaskUnknown": "scheduled",
    "RqCoreLeasesOver": "running",
    "RqCoreJobsWait": "oldest",
    "RqCoreScopeFull": "blocked lanes",
    "RqCoreScopePaused": "blocked lanes",
    "RqCoreJobsDie": "dead",
    "RqCoreBacklogHalf": "backlog",
    "RqCoreMirrorBehind": "backlog",
    "RqCoreAuditDown": "backlog",
}
"""Name of an alert → the column that shows its cause."""
CAUSES_MAX: Final = 12
"""Maximum number of problems on a screen. With --once, all are printed."""
SAYS_MAX: Final = 400
"""Maximum number of characters of the text of a problem."""


class Frame(NamedTuple):
    """The contents of one screen: the state of the queues, of the audit log and of the inbox at one moment."""

    state: Overview | Unread
    log: LogOverview | Unread | None
    """The state of the audit log; None without --audit."""
    at: float
    """Time at which the state was read, in seconds of the monotonic clock."""
    inbox: InboxOverview | Unread | None = None
    """The state of the inbox; None without --inbox."""


@click.command()
@click.option("--once", is_flag=True, help="Show the state once, and exit.")
@click.option(
    "--every",
    type=click.FloatRange(min=0.5),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds between two reads of the state.",
)
@audit_url_option(
    "The audit database: adds the claims that ended per second, and whether the database answers."
)
@inbox_url_option("The database with the inbox: adds what is wrong there.")
@server_options
@json_option
@click.pass_context
def top(
    ctx: click.Context,
    audit_url: str | None,
    inbox_url: str | None,
    redis_url: str,
    prefix: str,
    every: float,
    *,
    once: bool,
    as_json: bool,
) -> None:
    """Show the state of the queues and what is wrong with them, until q or Ctrl-C. The command changes nothing.

    With --json, print one document and exit. The exit status of --json and --once is 1 if Redis does not answer, or
    refuses.
    """
    from rq_core.metrics.causes import Unread

    with _looking(redis_url, prefix, audit_url, inbox_url) as look:
        frame = look()
        if as_json:
            print_json(document_of(frame))
        elif once:
            terminal().print(render(frame, None, terminal().width))
        else:
            _watch(look, frame, every)
            return
    ctx.exit(1 if isinstance(frame.state, Unread) else 0)


@contextlib.contextmanager
def _looking(
    redis_url: str, prefix: str, audit_url: str | None, inbox_url: str | None
) -> Iterator[Callable[[], Frame]]:
    from rq_core.errors import RqCoreError
    from rq_core.metrics.causes import Unread
    from rq_core.metrics.shared import SharedOverview, shared_inbox, shared_log, viewer

    with contextlib.ExitStack() as stack:
        client = stack.enter_context(viewer(redis_url, prefix))
        overview = stack.enter_context(contextlib.closing(SharedOverview(client, shared_s=0.0)))
        log = inbox = None
        if audit_url is not None:
            log = stack.enter_context(shared_log(audit_url))
        if inbox_url is not None:
            inbox = stack.enter_context(shared_inbox(inbox_url))

        def read(what: Shared[Any] | None) -> Any:
            try:
                return None if what is None else what.get()
            except RqCoreError as error:
                return Unread.of(error)

        def look() -> Frame:
            for each in (log, inbox):
                # Begin to read the databases before Redis is read, so that a silent one does not hold up the others.
                if each is not None:
                    each.begin()
            return Frame(read(overview), read(log), time.monotonic(), read(inbox))

        yield look


def _watch(look: Callable[[], Frame], frame: Frame, every: float) -> None:
    from rich.live import Live

    console, before = terminal(), None
    with (
        _keys() as leaves_within,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while True:
            live.update(render(frame, before, console.width, console.height), refresh=True)
            if leaves_within(every):
                return
            before, frame = frame, look()


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Yield a function that waits for the key q for some seconds, and returns whether it was typed.

    If standard input is not a terminal, the function only waits.
    """
    if not sys.stdin.isatty():

        def only_waits(seconds: float) -> bool:
            time.sleep(seconds)
            return False

        yield only_waits
        return
    import select
    import termios
    import tty

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)

    def leaves_within(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if select.select([number], [], [], left)[0]:
                typed = os.read(number, 1_024)
                if not typed:
                    # The terminal is gone.
                    return True
                if b"q" in typed.lower():
                    return True
        return False

    # Keys come at once and are not shown; Ctrl-C still interrupts.
    tty.setcbreak(number)
    try:
        yield leaves_within
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def document_of(frame: Frame) -> dict[str, Any]:
    """Return a frame (the state at one moment) as a JSON document. Its durations are in ms."""
    from rq_core.metrics.causes import Unread, causes
    from rq_core.views.queues import queue_document

    state, log = frame.state, frame.log
    document: dict[str, Any] = {
        "up": not isinstance(state, Unread),
        "causes": [each._asdict() for each in causes(state, log, frame.inbox)],
        "queues": []
        if isinstance(state, Unread)
        else [queue_document(each) for each in state.queues],
    }
    if log is not None:
        up = not isinstance(log, Unread)
        document["audit_up"] = up
        document["log"] = [] if isinstance(log, Unread) else _log_document(log)
    if frame.inbox is not None:
        document["inbox_up"] = not isinstance(frame.inbox, Unread)
        rows = () if isinstance(frame.inbox, Unread) else frame.inbox.queues
        document["inbox"] = [dataclasses.asdict(each) for each in rows]
    return document


def _log_document(log: LogOverview) -> list[dict[str, Any]]:
    return [dataclasses.asdict(each) for each in log.queues]


def render(
    frame: Frame, before: Frame | None, width: int, height: int | None = None
) -> RenderableType:
    """Return a frame (the state at one moment) as text, ``width`` characters wide.

    ``height``: number of lines; queues and problems that do not fit are left out. None: no limit. Rates are averages
    since the frame ``before``.
    """
    from rich.console import Group
    from rich.text import Text

    from rq_core.metrics.causes import Unread, causes, unread_log

    found = causes(frame.state, frame.log, frame.inbox)
    unread = unread_log(frame.state, frame.log)
    causes_max = len(found) if height is None else CAUSES_MAX
    lines_of_causes = _causes(found, causes_max)
    parts: list[RenderableType] = [lines_of_causes]
    if not isinstance(frame.state, Unread):
        if unread:
            parts.append(Text(unread))
        parts.append(Text(_headline(frame.state), style="dim"))
        shown = list(frame.state.queues)
        if height is not None:
            # Five more lines: the table's head and foot, and the line about the queues that are left out.
            above = (lines_of_causes, Text(unread), Text(_headline(frame.state)))
            room = max(1, height - sum(_lines(text, width) for text in above) - 5)
            wrong = {each.queue for each in found}
            shown.sort(key=lambda queue: queue.queue not in wrong)
            shown = shown[:room]
        parts.append(_queues(frame, before, width, shown, [each.alert for each in found]))
        if left := len(frame.state.queues) - len(shown):
            parts.append(Text(f"and {counted(left, 'queue')} more; rq-core queues shows all"))
    return Group(*parts)


def _lines(text: Text, width: int) -> int:
    """Return how many lines a text takes if it is wrapped to ``width`` characters."""
    from rich.console import Console

    return len(text.wrap(Console(width=width), width)) if text else 0


def _causes(found: Sequence[Cause], most: int) -> Text:
    from rich.text import Text

    if not found:
        return Text("nothing is wrong\n", style="green")
    lines = Text()
    for each in found[:most]:
        where = f"{each.queue}: " if each.queue else ""
        lines.append("! ", style="bold red")
        lines.append(fit(where), style="bold")
        lines.append(one_line(shorten(each.says, SAYS_MAX)))
        lines.append(f"  {each.alert}", style="dim")
        lines.append("\n")
    if left := found[most:]:
        page = sum(each.pages for each in left)
        pages = "pages" if page == 1 else "page"
        lines.append(f"and {len(left):,} more; {page:,} of them {pages}\n")
    return lines


def _headline(state: Overview) -> str:
    workers = {each.worker: each.says for queue in state.queues for each in queue.present}
    busy, places = (sum(getattr(w, name) for w in workers.values()) for name in ("busy", "places"))
    words = [counted(len(state.queues), "queue"), counted(len(workers), "worker")]
    words.append(f"{busy:,} of {counted(places, 'place')} busy")
    if state.used_memory is not None:
        words.append(f"Redis {state.used_memory / 2**20:,.0f} MiB")
    return " · ".join(words)


def _queues(
    frame: Frame,
    before: Frame | None,
    width: int,
    shown: Sequence[QueueOverview],
    alerts: Sequence[str],
) -> RenderableType:
    """Return the table of queues. ``alerts``: the names of the alerts of all current problems."""
    from rq_core.cli.columns import Column, chosen, table_of

    columns = [
        # Numbers are shown whole; a long name of a queue is cut.
        Column(title, [fit(of(queue)) for queue in shown], right=at > 0, whole=at > 0, cut=at == 0)
        for at, (title, of) in enumerate(_columns(frame, before))
    ]
    of_causes = {OF_CAUSE[alert] for alert in alerts if alert in OF_CAUSE}
    drop = sorted(DROPPED, key=lambda title: title in of_causes)
    return table_of(chosen(columns, width, drop), width)


def _columns(
    frame: Frame, before: Frame | None
) -> list[tuple[str, Callable[[QueueOverview], str]]]:
    """Return (title, function) pairs for the table's columns. The function returns the cell for a queue."""
    earlier, rates = _earlier(before), _ended(frame, before)

    def change(queue: QueueOverview) -> str:
        was = earlier.get(queue.queue)
        seconds = 0.0 if before is None else frame.at - before.at
        return "" if was is None or not seconds else f"{(queue.ready_jobs - was) / seconds:+,.0f}"

    found: list[tuple[str, Callable[[QueueOverview], str]]] = [
        ("queue", lambda q: q.queue),
        ("ready", lambda q: f"{q.ready_jobs:,}"),
        ("ready/s", change),
        ("oldest", lambda q: oldest(q.oldest_ready_ms, exact=q.oldest_ready_exact)),
        ("running", lambda q: f"{q.running:,}"),
        ("dead", lambda q: f"{q.dead:,}"),
        ("workers", lambda q: f"{len(q.present):,}"),
        ("scheduled", lambda q: f"{q.scheduled:,}"),
        ("blocked lanes", lambda q: f"{q.blocked_lanes:,}"),
        ("backlog", lambda q: f"{q.backlog:,}" if q.audit else "off"),
    ]
    from rq_core.metrics.causes import Unread

    if not isinstance(frame.state, Unread) and any(each.parked for each in frame.state.queues):
        found.append(("parked", _parked))
    if rates is not None:
        found.append(("ended/s", lambda q: f"{rates.get(q.queue, 0.0):,.1f}"))
    return found


def _parked(queue: QueueOverview) -> str:
    """Return the number of a queue's parked jobs as text, with the time since the first of them was parked."""
    if queue.oldest_parked_ms is None:
        return f"{queue.parked:,}"
    return f"{queue.parked:,}, {oldest(queue.oldest_parked_ms, exact=True)}"


def _earlier(before: Frame | None) -> dict[str, int]:
    from rq_core.metrics.causes import Unread

    if before is None or isinstance(before.state, Unread):
        return {}
    return {queue.queue: queue.ready_jobs for queue in before.state.queues}


def _ended(frame: Frame, before: Frame | None) -> dict[str, float] | None:
    """Return queue → claims that ended per second between two frames; None if one of the frames lacks the state of the
    log."""
    from rq_core.metrics.causes import Unread

    if before is None or frame.log is None or before.log is None:
        return None
    if isinstance(frame.log, Unread) or isinstance(before.log, Unread):
        return None
    ended: dict[str, float] = {}
    for log, sign in ((frame.log, 1), (before.log, -1)):
        for each in log.claims:
            ended[each.queue] = ended.get(each.queue, 0.0) + sign * each.claims
    return {queue: count / (frame.at - before.at) for queue, count in ended.items()}
