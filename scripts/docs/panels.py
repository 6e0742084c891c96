"""The Grafana dashboard: its panels for the metrics of :mod:`rq_core.metrics.table`."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple


class Panel(NamedTuple):
    """One panel of the Grafana dashboard."""

    title: str
    unit: str
    """Grafana's name of the unit."""
    shows: tuple[tuple[str, str], ...]
    """The expressions that the panel shows, each with its legend."""
    says: str = ""


_Q: Final = '{queue=~"$queue"}'


def _by_queue(expression: str) -> tuple[tuple[str, str], ...]:
    return ((expression, "{{queue}}"),)


def _average(seconds: str) -> str:
    """Return the Prometheus expression for the average seconds per ended claim. ``seconds`` is the name of a counter of
    seconds.
    """
    ended = f"sum by (queue) (rate(rqc_claims_ended_total{_Q}[5m]))"
    return f"sum by (queue) (rate({seconds}{_Q}[5m])) / {ended}"


def _percentile(histogram: str) -> str:
    rates = f"sum by (le, queue, task) (rate({histogram}_bucket{_Q}[5m]))"
    return f"histogram_quantile(0.95, {rates})"


ROWS: Final = (
    (
        "Is anything wrong",
        (
            Panel(
                "Redis answers",
                "short",
                (("rqc_up", "Redis"), ("rqc_refused", "refused"), ("rqc_audit_up", "audit")),
            ),
            Panel("Oldest ready job", "s", _by_queue(f"rqc_queue_oldest_ready_seconds{_Q}")),
            Panel("Oldest job that waits for a cap", "s", _by_queue(f"rqc_queue_oldest_blocked_seconds{_Q}")),
            Panel("Overdue", "s", _by_queue(f"rqc_queue_overdue_seconds{_Q}"), "0 while any worker claims"),
            Panel(
                "Leases that are over, queues that are not seen", "short",
                (
                    (f"rqc_queue_leases_over{_Q}", "{{queue}} leases"),
                    (f"rqc_queue_unreadable{_Q}", "{{queue}} unreadable"),
                    ("rqc_queues_left_out", "queues left out"),
                ),
            ),
            Panel("Look at Redis", "s", (("rqc_look_seconds", "took"),)),
        ),
    ),
    (
        "Jobs",
        (
            Panel("Jobs by state", "short", ((f"sum by (queue, state) (rqc_queue_jobs{_Q})", "{{queue}} {{state}}"),)),
            Panel("Ready jobs by priority", "short", ((f"rqc_queue_ready_jobs{_Q}", "{{queue}} {{priority}}"),)),
            Panel("Lanes", "short", ((f"rqc_queue_lanes{_Q}", "{{queue}} {{state}}"),)),
            Panel("Job that was parked first", "s", _by_queue(f"rqc_parked_oldest_seconds{_Q}")),
            Panel("Saved by durable jobs", "short", _by_queue(f"rqc_box_fields{_Q}")),
            Panel("Shown by jobs", "short", _by_queue(f"rqc_shown_fields{_Q}")),
            Panel("Paused", "short", _by_queue(f"rqc_queue_paused{_Q}")),
        ),
    ),
    (
        "Flow",
        (
            Panel(
                "Claims ended, from the log", "ops",
                ((f"sum by (queue, outcome) (rate(rqc_claims_ended_total{_Q}[5m]))", "{{queue}} {{outcome}}"),),
            ),
            Panel(
                "Average wait and run, from the log", "s",
                (
                    (_average("rqc_claims_waited_seconds_total"), "{{queue}} waited"),
                    (_average("rqc_claims_ran_seconds_total"), "{{queue}} ran"),
                ),
            ),
            Panel(
                "Claims settled, from workers", "ops",
                ((f"sum by (queue, outcome) (rate(rqc_worker_settled_total{_Q}[5m]))", "{{queue}} {{outcome}}"),),
            ),
            Panel("Claims taken", "ops", _by_queue(f"sum by (queue) (rate(rqc_worker_claims_total{_Q}[5m]))")),
            Panel(
                "Wait and run time, 95th percentile", "s",
                (
                    (_percentile("rqc_worker_wait_seconds"), "{{queue}} {{task}} waited"),
                    (_percentile("rqc_worker_run_seconds"), "{{queue}} {{task}} ran"),
                ),
            ),
        ),
    ),
    (
        "Workers",
        (
            Panel("Workers", "short", _by_queue(f"rqc_workers{_Q}")),
            Panel(
                "Places", "short",
                ((f"rqc_worker_places{_Q}", "{{queue}} places"), (f"rqc_worker_busy_places{_Q}", "{{queue}} busy")),
            ),
            Panel(
                "Jobs that workers gave back", "short", _by_queue(f"rqc_queue_unserved_jobs{_Q}"),
                "their code lacks the task, or refuses the arguments",
            ),
            Panel(
                "Different code", "short", _by_queue(f"rqc_worker_codes{_Q}"),
                "more than 1 while a deploy is under way",
            ),
            Panel(
                "Processes", "short",
                (
                    ("rqc_worker_processes", "{{instance}}"),
                    ("sum by (why) (increase(rqc_worker_processes_replaced_total[1h]))", "{{why}} in an hour"),
                ),
            ),
            Panel(
                "Event loop, and last claim", "s",
                (
                    ("rqc_worker_loop_lag_seconds", "{{instance}} loop is late"),
                    ("rqc_worker_claim_age_seconds", "{{instance}} last claim"),
                    (
                        "rate(rqc_worker_turns_seconds_total[5m]) / rate(rqc_worker_turns_total[5m])",
                        "{{instance}} round trip",
                    ),
                ),
                "a late loop holds up handlers and claims",
            ),
            Panel("Memory of workers", "bytes", (("rqc_worker_resident_bytes", "{{instance}}"),)),
        ),
    ),
    (
        "Caps",
        (
            Panel(
                "Holders and limit", "short",
                (
                    (f"rqc_scope_holders{_Q}", "{{queue}} {{scope}}"),
                    (f"rqc_scope_limit{_Q}", "{{queue}} {{scope}} limit"),
                ),
            ),
            Panel(
                "Full scopes, and lanes that wait for them", "short",
                (
                    (f"rqc_scope_full{_Q}", "{{queue}} {{scope}} full"),
                    (f"rqc_scope_blocked_lanes{_Q}", "{{queue}} {{scope}} lanes"),
                ),
            ),
            Panel(
                "Paused scopes", "short", ((f"rqc_scopes_paused{_Q}", "{{queue}} {{state}}"),),
            ),
            Panel(
                "Pauses in 10 minutes, from the log", "short",
                ((f"rqc_audit_scope_pauses{_Q}", "{{queue}} by {{cause}}"),),
            ),
        ),
    ),
    (
        "The log",
        (
            Panel(
                "Mirror lag", "s",
                (
                    (f"rqc_audit_lag_seconds{_Q}", "{{queue}} last mirrored"),
                    (f"rqc_backlog_oldest_seconds{_Q}", "{{queue}} oldest that waits"),
                ),
            ),
            Panel("Backlog", "percentunit", _by_queue(f"rqc_backlog_ratio{_Q}"), "at 100 % enqueuing is refused"),
            Panel(
                "Backlog, events and bytes", "short",
                ((f"rqc_backlog_events{_Q}", "{{queue}} events"), (f"rqc_backlog_bytes{_Q}", "{{queue}} bytes")),
            ),
            Panel("Events", "ops", _by_queue(f"rate(rqc_audit_events_total{_Q}[5m])")),
            Panel(
                "Losses, gaps, quarantine", "short",
                (
                    (f"rqc_audit_losses_total{_Q}", "{{queue}} losses"),
                    (f"rqc_audit_orphaned_events{_Q}", "{{queue}} orphaned events"),
                    (f"rqc_audit_gaps_total{_Q}", "{{queue}} gaps"),
                    (f"rqc_audit_quarantined_total{_Q}", "{{queue}} quarantined"),
                ),
            ),
            Panel(
                "Unproven", "short",
                (
                    (f"rqc_audit_unproven_events{_Q}", "{{queue}} events"),
                    (f"rqc_audit_proof_age_seconds{_Q}", "{{queue}} s since a proof"),
                ),
            ),
        ),
    ),
    (
        "Schedules",
        (
            Panel("Schedules that are on", "short", _by_queue(f"rqc_schedules{_Q}")),
            Panel("Latest schedule", "s", _by_queue(f"rqc_schedule_late_seconds{_Q}"), "0 if none is late"),
            Panel("Missed instants", "ops", _by_queue(f"rate(rqc_schedule_missed_total{_Q}[5m])")),
        ),
    ),
    (
        "Inbox",
        (
            Panel("Rows in the inbox", "short", _by_queue(f"rqc_inbox_rows{_Q}"), "from 10,000 on a lower bound"),
            Panel("Oldest row", "s", _by_queue(f"rqc_inbox_oldest_seconds{_Q}"), "0 if none waits"),
            Panel(
                "Handed over and parked", "short",
                (
                    (f"rate(rqc_inbox_relayed_total{_Q}[5m])", "{{queue}} handed over each second"),
                    (f"rqc_inbox_parked{_Q}", "{{queue}} parked"),
                ),
            ),
            Panel("The inbox answers", "short", (("rqc_inbox_up", "inbox"),)),
        ),
    ),
    (
        "Kept results",
        (
            Panel("Kept results", "bytes", _by_queue(f"rqc_kept_results_bytes{_Q}")),
            Panel(
                "Kept results, share of their bound", "percentunit", _by_queue(f"rqc_kept_results_ratio{_Q}"),
                "at 100 % those nearest their end lose their values",
            ),
            Panel("Evicted results", "ops", _by_queue(f"rate(rqc_kept_results_evicted_total{_Q}[5m])")),
        ),
    ),
    (
        "Redis",
        (
            Panel(
                "Memory", "bytes",
                (("rqc_redis_used_memory_bytes", "used"), ("rqc_redis_maxmemory_bytes", "maxmemory")),
            ),
            Panel("Memory, share", "percentunit", (("rqc_redis_memory_ratio", "used"),)),
        ),
    ),
)  # fmt: skip


def expressions() -> list[str]:
    """Return the Prometheus expressions of all panels."""
    return [e for _, panels in ROWS for panel in panels for e, _ in panel.shows]


def dashboard() -> str:
    """Return the dashboard in the format that Grafana imports."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS:
        panels.append({"type": "row", "title": title, "gridPos": _place(0, y, 24, 1)})
        y += 1
        for at, panel in enumerate(row):
            panels.append(_panel(panel, _place(8 * (at % 3), y + 8 * (at // 3), 8, 8)))
        y += 8 * -(-len(row) // 3)
    for number, each in enumerate(panels, 1):
        each["id"] = number
    document = {
        "title": "rq-core",
        "uid": "rq-core",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "tags": ["rq-core"],
        "templating": {"list": [_DATASOURCE, _QUEUES]},
        "panels": panels,
    }
    return json.dumps(document, indent=1) + "\n"


_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_DATASOURCE: Final = {"name": "datasource", "type": "datasource", "query": "prometheus"}
_QUEUES: Final = {
    "name": "queue",
    "type": "query",
    "datasource": _SOURCE,
    "query": {"query": "label_values(rqc_queue_jobs, queue)", "refId": "queues"},
    "refresh": 2,
    "multi": True,
    "includeAll": True,
    "allValue": ".*",
    "current": {"text": "All", "value": "$__all"},
}


def _place(x: int, y: int, w: int, h: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": w, "h": h}


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.says,
        "gridPos": place,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(65 + at), "expr": expr, "legendFormat": legend, "datasource": _SOURCE}
            for at, (expr, legend) in enumerate(panel.shows)
        ],
    }
