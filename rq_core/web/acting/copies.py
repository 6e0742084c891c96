"""Makes copies of many jobs on the page /bulk, in parts. ``bulk`` makes the other changes of many jobs.

The page first counts the jobs that died according to the audit log. Then each request copies a part of these jobs.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from rq_core.app.many.copying import COPIED, Copying, replay_name
from rq_core.errors import RqCoreError, UsageError
from rq_core.protocol.calls.bulk import BulkPlace, pause_after
from rq_core.web.acting.actions import MIRROR_S, By, check_is_there
from rq_core.web.acting.bulk import (
    CHANGE_S,
    CHANGED_MAX,
    COUNT_S,
    SAMPLE_MAX,
    BulkAsked,
    Seen,
    Stretch,
    asked_for,
)
from rq_core.web.acting.fields import Form, copy_args
from rq_core.web.search import behind_of, behind_text
from rq_core.web.words import word

if TYPE_CHECKING:
    from rq_core.app.app import App
    from rq_core.app.many.copying import CopiedPage
    from rq_core.model.filters.copy_reader import CopyReader

NO_LOG: Final = (
    "the audit log says which jobs died, and this page was given none: start it with --audit URL"
)


def seen_copies(app: App, log: CopyReader | None, form: Form, now_ms: int) -> Seen:
    """Count the jobs that can be copied among the deaths in the audit log, for at most COUNT_S seconds.

    If copying has already begun, the jobs are not counted again.
    """
    try:
        asked = asked_for(form, now_ms)
    except UsageError as error:
        return Seen(wrong=word(error, 600))
    if log is None:
        return Seen(wrong=NO_LOG)
    queue, calls = asked.filter.queue, app.client.calls
    if not app.client.run(calls.reads.is_there(queue)):
        return Seen(wrong=f"Redis has no queue {queue}")
    if asked.place is not None:
        return Seen(asked, begin=str(asked.place))
    copying, until = _copying(app, log, asked), time.monotonic() + COUNT_S
    place = asked.counted or app.client.run(calls.bulk.begin(queue))
    outcomes: Counter[str] = Counter()
    sample: list[tuple[str, str]] = []
    while True:
        page = copying.step(behind_of(place.at), None, dry_run=True)
        place = _after(place, page)
        outcomes.update(page.outcomes.values())
        ids = [job_id for job_id, outcome in page.outcomes.items() if outcome == COPIED]
        sample += [(job_id, "dead") for job_id in ids[: SAMPLE_MAX - len(sample)]]
        if page.next is None or time.monotonic() >= until:
            del outcomes[COPIED]
            return Seen(
                asked, begin=str(BulkPlace(place.id)), matched=place.changed, looked=place.looked,
                complete=page.next is None, states=dict(outcomes), sample=sample, counted=str(place),
            )  # fmt: skip


def copy_stretch(app: App, log: CopyReader | None, asked: BulkAsked, by: By) -> Stretch:
    """Copy jobs until the confirmed number is copied, CHANGED_MAX jobs were examined, or CHANGE_S seconds are over.
    Return the part that was made.

    Each job is copied only once, even if a request is repeated. If the answer to a copy was lost, the copy still
    counts, because the log has it with the id of this change. If a page of jobs fails, the result has the pages before
    it. An error in the first page is raised.
    """
    queue, calls = asked.filter.queue, app.client.calls
    app.client.run(check_is_there(calls, queue))
    begin = place = asked.place or app.client.run(calls.bulk.begin(queue))
    copying = _copying(app, log, asked, by, f"bulk {place.id}: ")
    until = time.monotonic() + CHANGE_S
    outcomes: Counter[str] = Counter()
    while True:
        since = time.monotonic()
        try:
            page = copying.step(behind_of(place.at), asked.number - place.changed, dry_run=False)
        except RqCoreError:
            if place == begin:
                raise
            return Stretch(place, False, dict(outcomes))
        place = _after(place, page)
        outcomes.update(page.outcomes.values())
        now, is_last = time.monotonic(), page.next is None or place.changed >= asked.number
        if not is_last:
            time.sleep(pause_after(now - since))
        if is_last or now >= until or outcomes.total() >= CHANGED_MAX:
            return Stretch(place, is_last, dict(outcomes))


def _copying(
    app: App, log: CopyReader | None, asked: BulkAsked, by: By | None = None, about: str = ""
) -> Copying:
    """Return the object that copies the jobs. Without ``by``, it only counts them. ``about``: the beginning of the
    copies' reason, with the id of this change."""
    args = copy_args(asked.form)
    name = replay_name(asked.form.get("name") or None, args)
    # Without ``by`` the jobs are only counted, so the log is taken as it is.
    return Copying(
        app, app.tasks, log, asked.filter.queue, name, args, asked.filter,
        by=by and by.name, reason=f"{about}{by.why}" if by else "", mine=about,
        wait_s=MIRROR_S if by else 0,
    )  # fmt: skip


def _after(place: BulkPlace, page: CopiedPage) -> BulkPlace:
    """Return the place that copying has reached after this page of jobs.

    Its ``changed`` is the number of copies so far.
    """
    said = list(page.outcomes.values())
    return replace(
        place,
        at=place.at if page.next is None else behind_text(page.next),
        looked=place.looked + len(said),
        matched=place.matched + len(said),
        changed=place.changed + said.count(COPIED),
    )
