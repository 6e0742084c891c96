"""Makes jobs from rows of the inbox.

Rows that rq-core inserts have the job's computed options in packed form. Other programs insert rows with the name of a
task and options; a relay packs these rows.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

from rq_core.app.producer import Producer
from rq_core.app.untyped_enqueue import Draft
from rq_core.connections.client import Client
from rq_core.errors import RqCoreError
from rq_core.model.job import NewJob
from rq_core.model.packed_job import Unreadable, pack, unpack
from sql_audit.inbox.session import InboxRow

_INSTANTS: Final = ("at", "expires")
"""The options that may be times. JSON has no times, so rows have them as texts."""
_OPTIONS: Final = (
    "delay", "at", "expires", "timeout", "priority", "max_attempts", "max_losses", "remember", "idempotency_key",
    "headers", "keep_result", "audit_result", "keys",
)  # fmt: skip
"""The job options that other programs may use in the rows that they insert."""


class PolicyNeeded(Exception):
    """Raised if a relay must first read a task's policy (its caps and options) from Redis, outside the transaction."""

    def __init__(self, task: str) -> None:
        super().__init__(task)
        self.task = task


class JobMaker:
    """Makes jobs from rows. ``client`` reads the tasks' policies, which workers have stored in Redis."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._producer = Producer(client.url, prefix=client.prefix)

    def learn(self, queue: str, task: str) -> None:
        """Read the policy of a task from Redis, and cache it for some seconds.

        Raise RqCoreError if the server does not answer, or if the policy cannot be read.
        """
        draft = self._draft(queue, task, {}, {})
        if draft.placing is None:
            draft.read(self._client.run(self._client.calls.caps.policy(queue, task)))

    def job(self, queue: str, row: InboxRow) -> NewJob:
        """Make the job of a row that has its options in packed form. Raise Unreadable if the row cannot be read."""
        _, job_id, task, args, _, packed, age_ms = row
        try:
            return unpack(
                packed or "", queue=queue, job_id=job_id, task=task, args=args, age_ms=age_ms
            )
        except Unreadable:
            # The reason is stored beside the row, so it must not repeat what no database takes.
            _check_unicode(row)
            raise

    def packed(self, queue: str, row: InboxRow) -> InboxRow:
        """Compute the job of a row that another program inserted, and return the row with the job's options in packed
        form.

        Raise Unreadable if the row cannot become a job, and PolicyNeeded if the task's policy must first be read from
        Redis.
        """
        _check_unicode(row)
        try:
            options = _options(row.options)
            keys = options.pop("keys", None)
            if "idempotency_key" not in options:
                options["id"] = row.job_id
            draft = self._draft(queue, row.task, _arguments(row.args), options)
            if draft.placing is None:
                raise PolicyNeeded(row.task)
            job = draft.job(keys)
        except (RqCoreError, TypeError) as error:
            raise Unreadable(str(error)) from None
        _check_heard(job)
        return row._replace(job_id=job.id, args=job.args_json, packed=pack(job))

    def _draft(
        self, queue: str, task: str, arguments: dict[str, Any], options: dict[str, Any]
    ) -> Draft:
        return Draft(self._producer, None, queue, task, arguments, options)  # type: ignore[arg-type]


def _check_unicode(row: InboxRow) -> None:
    """Raise Unreadable if a text of the row is not UTF-8, which SQLite allows."""
    for name, text in zip(row._fields, row, strict=True):
        if isinstance(text, str) and not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise Unreadable(f"{name} is not UTF-8") from None


def _check_heard(job: NewJob) -> None:
    """Raise Unreadable if a cap or a unique name of the task may reject the job. The producer has committed its row
    already and would not learn of the rejection.
    """
    if any(rule.startswith(("reject|", "most|")) for rule in job.full.split()):
        raise Unreadable(
            "a cap of its task rejects jobs or has max_waiting, and no producer would hear of that: do not use the"
            " inbox for it"
        )
    if '"unique":"reject"' in job.ties:
        raise Unreadable(
            "its task's unique name rejects jobs, and no producer would hear of that: do not use the inbox for it"
        )


def _object(column: str, text: str) -> dict[str, Any]:
    """Parse a JSON object. Raise Unreadable for other text, for a repeated key, and for NaN or Infinity."""

    def constant(name: str) -> None:
        raise Unreadable(f"{column} has {name}, which is not JSON")

    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise Unreadable(f"{column} names a key twice")
        return found

    try:
        value = json.loads(text, parse_constant=constant, object_pairs_hook=object_of)
    except Unreadable:
        raise
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{column} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Unreadable(f"{column} is not a JSON object")
    return value


def _arguments(text: str) -> dict[str, Any]:
    return _object("args", text)


def _options(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    options = _object("options", text)
    if "id" in options:
        raise Unreadable("options has id: the job's id belongs into the column job_id")
    for name in options:
        if name not in _OPTIONS:
            raise Unreadable(f"options has {name!r}: it may have {', '.join(_OPTIONS)}")
    for name in _INSTANTS:
        text = options.get(name)
        if isinstance(text, str):
            try:
                options[name] = datetime.fromisoformat(text)
            except ValueError:
                raise Unreadable(
                    f"options has {name}={text!r}, which is no time like 2026-11-21T10:00:00Z"
                ) from None
            if options[name].tzinfo is None:
                raise Unreadable(
                    f"options has {name}={text!r} without its offset: end it in Z, or in one as +01:00"
                )
    return options
