"""Reads a form that a browser sent, makes the change, and keeps the outcome for the page that the browser shows
next."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

from starlette.requests import Request

from rq_core.errors import InvalidOption, OutcomeUnknown, RqCoreError, ServerError, UsageError
from rq_core.web.acting import bulk
from rq_core.web.acting.actions import Action, ActionOutcome, By, by_of, carried_out, checked_form
from rq_core.web.acting.bulk import BulkAsked, Stretch
from rq_core.web.acting.copies import copy_stretch
from rq_core.web.search import BULK_FIELDS, NOT_SEARCHED
from rq_core.web.sources import ActingSources
from rq_core.web.tokens import Access
from rq_core.web.words import query, word

FORM_MAX: Final = 32_768
"""Maximum number of bytes of a form."""
FIELDS_MAX: Final = 40
FORM_TYPE: Final = "application/x-www-form-urlencoded"
KEPT_S: Final = 60.0
"""Seconds for which the outcome of an action can be shown."""
KEPT_MAX: Final = 1_000
"""Maximum number of outcomes that are kept."""


class FormRefused(Exception):
    """The error for a form that cannot be read. ``status``: the HTTP status of the answer."""

    def __init__(self, status: int, says: str) -> None:
        super().__init__(says)
        self.status = status


async def form_pairs(request: Request) -> list[tuple[str, str]]:
    """Return the (name, value) pairs of a form as they were sent. Raises FormRefused."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != FORM_TYPE:
        raise FormRefused(415, f"a form must be {FORM_TYPE}")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > FORM_MAX:
            raise FormRefused(413, "this form is too long")
    try:
        text = body.decode()
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX)
    except ValueError:
        raise FormRefused(400, "this form cannot be read") from None


class Outcomes:
    """The outcomes of recent actions, each for the page to which the browser is redirected.

    The page's address has a random word that names the outcome. So no link can make a page report something that did
    not happen.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[str, tuple[float, str, str]] = {}

    def keep(self, access: Access, says: str) -> str:
        """Keep the outcome ``says`` for a person. Return the random word that names it."""
        now = self._clock()
        if len(self._kept) >= KEPT_MAX:
            self._kept = {name: each for name, each in self._kept.items() if each[0] > now}
        while len(self._kept) >= KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        name = secrets.token_urlsafe(12)
        self._kept[name] = now + KEPT_S, access.name, says
        return name

    def get(self, access: Access, name: str) -> str:
        """Return the outcome with this random word; empty if it is unknown, too old, or another person's."""
        until, whose, says = self._kept.get(name, (0.0, "", ""))
        return says if until > self._clock() and whose == access.name else ""


class Acted(NamedTuple):
    """The answer to the form of an action: HTTP status and sentence."""

    status: int
    says: str
    back: str
    """The address of the page to show next: that of the changed object or, for a copy, of the new job. Empty if the
    form does not name the object."""


async def act(sources: ActingSources, action: Action, access: Access, request: Request) -> Acted:
    """Carry out the action of a form, and return the answer. Its status is 200 if the change was made, or if it was
    not needed, for example because a queue was paused already. Otherwise it is an error status."""
    back = ""
    try:
        form = checked_form(action, await form_pairs(request))
        back = action.back(form)
        by: By = by_of(access, form.get("reason", ""))
        copy = action.copy
        told: ActionOutcome
        if copy is not None:
            told = await sources.copy(lambda app, log: copy(app, log, form, by))
        else:
            told = await sources.change(lambda calls: carried_out(calls, action, form, by))
    except (FormRefused, RqCoreError) as error:
        return _refused(error, back)
    return Acted(200 if told.done else 409, told.says, told.leads_to or back)


def _refused(error: FormRefused | RqCoreError, back: str) -> Acted:
    """Return the answer to a form that raised ``error``: the change was refused, or its outcome is unknown. ``back``:
    the address of the page to return to."""
    if isinstance(error, FormRefused):
        return Acted(error.status, str(error), back)
    if isinstance(error, OutcomeUnknown):
        says = (
            "Redis gave no answer: the change may have been made, or may be when Redis continues. Look before you send"
            " the form again"
        )
        return Acted(503, says, back)
    status = (
        400 if isinstance(error, UsageError) else 503 if isinstance(error, ServerError) else 409
    )
    return Acted(status, f"Nothing is changed: {word(error, 1_000)}", back)


class ActedOnMany(NamedTuple):
    """The answer to a form that has made a part of a change of many jobs."""

    asked: BulkAsked
    made: Stretch


async def act_on_many(
    sources: ActingSources, access: Access, request: Request, now_ms: int
) -> ActedOnMany | Acted:
    """Make the next part of a change of many jobs. Return the part that was made, or the answer that refuses it.

    ``now_ms``: the present time (Unix ms).
    """
    form: dict[str, str] = {}
    try:
        for name, value in await form_pairs(request):
            if name not in bulk.FORM_FIELDS or name in form:
                must = "must be a field of this form, once"
                raise InvalidOption.of("field", word(name, 50), must)
            form[name] = value.strip()
        asked = bulk.asked_for(form, now_ms)
        if asked.filter.needs_spec and not access.see_arguments:
            # The number of changed jobs would disclose their headers and arguments.
            return Acted(403, NOT_SEARCHED, "")
        bulk.check_confirmed(asked)
        by = by_of(access, asked.reason)
        made: Stretch
        if asked.verb == bulk.COPY:
            made = await sources.copy(lambda app, log: copy_stretch(app, log, asked, by))
        else:
            made = await sources.change(lambda calls: bulk.stretch(calls, asked, by))
    except (FormRefused, RqCoreError) as error:
        return _refused(
            error, query(bulk.PATH, **{name: form.get(name, "") for name in BULK_FIELDS})
        )
    return ActedOnMany(asked, made)
