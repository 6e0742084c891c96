"""Describes every list of queues, workers, jobs, names, scopes and schedules: its query, columns and JSON document."""

from __future__ import annotations

from typing import Any, Final

from rq_core.views import jobs, queues, schedules, scopes
from rq_core.views.table import ListView
from rq_core.views.text import oldest, span, utc

LISTS: Final[dict[str, ListView[Any]]] = {
    "queues": ListView(
        queues.all_queues,
        {
            "queue": lambda row, _: row.queue,
            "ready": lambda row, _: row.ready_jobs,
            "scheduled": lambda row, _: row.scheduled,
            "parked": lambda row, _: row.parked,
            "running": lambda row, _: row.running,
            "dead": lambda row, _: row.dead,
            "audit": lambda row, _: "on" if row.audit else "off",
            "backlog": lambda row, _: row.backlog,
            "oldest": lambda row, _: oldest(row.oldest_ready_ms, exact=row.oldest_ready_exact),
            "": queues.queue_notes,
        },
        queues.queue_document,
        drop=("audit", "scheduled", "parked", "dead", "backlog", "oldest"),
    ),
    "workers": ListView(
        queues.workers_of,
        {
            "worker": lambda row, _: row.worker,
            "host": lambda row, _: row.says.host,
            "pid": lambda row, _: str(row.says.pid),
            "queues": lambda row, _: ",".join(row.says.queues),
            "busy": lambda row, _: row.says.busy,
            "places": lambda row, _: row.says.places,
            "code": lambda row, _: row.says.code,
            "version": lambda row, _: row.says.version,
            "since": lambda row, now: span(now - row.says.since_ms) if row.says.since_ms else "-",
            "": lambda row, _: f"silent for {span(row.silent_ms)}" if row.gone else "",
        },
        queues.worker_document,
        drop=("version", "since", "pid", "places", "code", "busy", "host"),
    ),
    "jobs": ListView(
        jobs.listed,
        {
            "job": lambda row, _: row.job.id,
            "state": lambda row, _: str(row.job.state),
            "for": lambda row, now: jobs.time_in_state(row.job, now),
            "task": lambda row, _: row.job.fields.get("task", "?"),
            "": jobs.notes,
        },
        jobs.listed_document,
        whole=("job", "state"),
        prose=True,
    ),
    "dead": ListView(
        jobs.dead_jobs,
        {
            "job": lambda row, _: row.id,
            "task": lambda row, _: row.fields.get("task", "?"),
            "died": lambda row, now: f"{span(now - (row.since_ms or 0))} ago",
            "reason": lambda row, _: row.fields.get("reason", "?"),
            "failures": lambda row, _: jobs.number(row, "failed"),
            "losses": lambda row, _: jobs.number(row, "lost"),
            "error": lambda row, _: jobs.died_of(row),
        },
        jobs.job_document,
        whole=("job",),
        prose=True,
    ),
    "unique": ListView(
        jobs.held_names,
        {
            "name": lambda row, _: row.name,
            "job": lambda row, _: row.job_id,
            "state": lambda row, _: jobs.holder_state(row),
            "for": lambda row, now: jobs.time_in_state(row.job, now),
            "until": lambda row, _: "" if row.until_ms is None else utc(row.until_ms),
        },
        jobs.name_document,
        whole=("name", "job"),
    ),
    "caps": ListView(
        scopes.scopes,
        {
            "scope": lambda row, _: row.scope,
            "cap": lambda row, _: scopes.limit_of(row),
            "holders": lambda row, _: scopes.holders_of(row),
            "waiting": lambda row, _: scopes.waiting_of(row),
            "oldest wait": lambda row, _: (
                "" if row.oldest_wait_ms is None else span(row.oldest_wait_ms)
            ),
            "": scopes.scope_notes,
        },
        scopes.scope_document,
    ),
    "schedules": ListView(
        schedules.schedules_of,
        {
            "queue": lambda row, _: row.queue,
            "schedule": lambda row, _: row.name,
            "when": lambda row, _: schedules.when(row),
            "next": schedules.next_due,
            "last": schedules.last_told,
            "": schedules.schedule_notes,
        },
        schedules.schedule_document,
        whole=("schedule",),
        drop=("last", "queue"),
    ),
}
"""The descriptions of the lists, by the name of the command that prints the list. (The list of `rq-core audit tail` is
not here.)"""
