"""Reads the data of a page from Redis, the audit log and the inbox, for the web page and for the tools of programs."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from rq_core.metrics.causes import Unread
from rq_core.model.plugins import InboxOverview
from rq_core.web.pages import Now, Page
from rq_core.web.search import PageQuery
from rq_core.web.sources import NO_LOG, WITHIN_S, ActingSources, Sources, strange
from rq_core.web.tokens import Access
from rq_core.web.views import Facts

T = TypeVar("T")

LEFT_OUT: Final = (
    ("logged",),
    ("found",),
    ("log", "logged"),
    ("state", "found"),
    ("state", "found", "log", "logged", "inbox"),
)
"""Data to leave out if a page cannot be made with all of it: first the fields of Facts in the first row, then those in
the second row, and so on."""


class Answers(NamedTuple):
    """The data that all sources returned for one page."""

    present: tuple[Any, Any]
    past: tuple[Any, Any]
    inbox: InboxOverview | Unread | None

    def facts(self, asked: PageQuery, access: Access, now_ms: int) -> Facts:
        """Return the data of the page for one viewer."""
        (state, found), (log, logged) = self.present, self.past
        return Facts(asked, access, now_ms, state, log, found, logged, self.inbox)


async def ask_sources(sources: Sources, page: Page, asked: PageQuery, now_ms: int) -> Answers:
    """Read all sources of a page at the same time, so that no source delays the others."""
    present, past, inbox = await asyncio.gather(
        _present(sources, page, asked, now_ms), _past(sources, page, asked, now_ms), sources.inbox()
    )
    return Answers(present, past, inbox)


async def _present(sources: Sources, page: Page, asked: PageQuery, now_ms: int) -> tuple[Any, Any]:
    """Return the shared state of all queues, and the further data that the page needs from Redis."""
    until = time.monotonic() + WITHIN_S
    state, plan = await sources.state(), page.redis
    if plan is None or isinstance(state, Unread):
        return state, None
    now = Now(asked, now_ms, state=state)
    left_s = until - time.monotonic()
    found = await sources.ask_redis(lambda calls: plan(calls, now), left_s=left_s)
    copies = page.copies
    if found is None and copies is not None and isinstance(sources, ActingSources):
        left_s = until - time.monotonic()
        found = await sources.ask_copies(lambda app, log: copies(app, log, now), left_s=left_s)
    return state, found


async def _past(sources: Sources, page: Page, asked: PageQuery, now_ms: int) -> tuple[Any, Any]:
    """Return the shared overview of the audit log, and the further data that the page needs from the log."""
    until = time.monotonic() + WITHIN_S
    log, question = await sources.log(), page.log
    if log is None:
        return None, NO_LOG if page.of_past or asked.of_ended else None
    if question is None or isinstance(log, Unread):
        return log, None
    now = Now(asked, now_ms, log=log)
    left_s = until - time.monotonic()
    return log, await sources.ask_log(lambda asks: question(asks, now), left_s=left_s)


def made_with(facts: Facts, make: Callable[[Facts], T]) -> T:
    """Return ``make(facts)``. If this raises an error, call ``make`` again without some of the data, as if a source had
    not answered."""
    try:
        return make(facts)
    except Exception as error:  # noqa: BLE001 - rows and keys may be forged
        wrong = error
    why = strange(wrong, "this cannot be shown")
    for names in LEFT_OUT:
        known: Any = {name: why for name in names if getattr(facts, name) is not None}
        with contextlib.suppress(Exception):
            return make(dataclasses.replace(facts, **known))
    raise wrong
