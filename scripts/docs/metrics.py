"""Creates the pages about metrics and alerts, and the alert rules for Prometheus, from the tables in
:mod:`rq_core.metrics`.
"""

from __future__ import annotations

import json
from textwrap import dedent
from typing import Final

from rq_core.metrics.alerts import ALERTS, Alert
from rq_core.metrics.table import BY_NAME, FAMILIES, LABELS, TASKS_MAX, Family
from rq_core.worker.claim_counters import BOUNDS_S
from scripts.docs.pages import NOTICE, code, page, table

RUNBOOK: Final = "how-to/alerts.md"
SOURCES: Final = {
    "state": ("State of the queues", "`rq-core metrics`: one look at Redis, at most a second old."),
    "log": ("The log", "`rq-core metrics --audit URL`: the audit database."),
    "inbox": ("The inbox", "`rq-core metrics --inbox URL`: the database with the inbox."),
    "worker": (
        "Flow of the workers",
        "`/metrics` on the port of `rq-core worker --health`: what the worker processes of one machine count.",
    ),
}


def rules() -> str:
    """Return the alert rules in Prometheus' format."""
    lines = [f"# {NOTICE.strip('<!-> ')}", "groups:", "  - name: rq-core", "    rules:"]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            "        expr: |",
            *(f"          {line}" for line in alert.expr.splitlines()),
            f"        for: {alert.for_s}s",
            "        labels:",
            f"          severity: {alert.severity}",
            "        annotations:",
            f"          summary: {json.dumps(_summary(alert))}",
            f"          description: {json.dumps(alert.summary)}",
            f"          runbook: {json.dumps(f'docs/{RUNBOOK}#{alert.anchor}')}",
        ]
    return "\n".join(lines) + "\n"


def _summary(alert: Alert) -> str:
    by_queue = all("queue" in BY_NAME[when.family].labels for when in alert.all_of)
    return f"{alert.title}: queue {{{{ $labels.queue }}}}" if by_queue else alert.title


def metrics_md() -> str:
    """Return the page of all metrics."""
    parts = ["# Metrics", dedent(_INTRODUCTION).strip()]
    for source, (title, where) in SOURCES.items():
        rows = [_row(family) for family in FAMILIES if family.source == source]
        parts += [f"## {title}", where, table(("metric", "type", "labels", "says"), rows)]
    buckets = ", ".join(f"{bound:g}" for bound in BOUNDS_S)
    parts.append(
        f"The buckets of `rqc_worker_wait_seconds` and `rqc_worker_run_seconds`, in seconds: {buckets}."
    )
    parts += [
        "## Labels",
        dedent(_LABELS).strip().format(labels=code(sorted(LABELS)), most=TASKS_MAX),
    ]
    parts += ["## Several exporters", dedent(_SEVERAL).strip()]
    return page(*parts)


def runbook_md() -> str:
    """Return the runbook (``docs/how-to/alerts.md``), with one section for each alert."""
    parts = ["# Alerts", dedent(_RUNBOOK).strip()]
    rows = [
        (
            f"[{a.title}](#{a.anchor})",
            f"`{a.name}`",
            a.severity,
            f"{a.for_s} s" if a.for_s else "at once",
        )
        for a in ALERTS
    ]
    parts.append(table(("alert", "name", "severity", "after"), rows))
    for alert in ALERTS:
        parts += [
            f"## {alert.title}",
            f"`{alert.name}` ({alert.severity}), {_when(alert.for_s)}:",
            f"```text\n{alert.expr}\n```",
            f"**What it means.** {alert.summary}",
            "**What to look at.**",
            "```console\n" + "\n".join(f"$ {line}" for line in alert.look) + "\n```",
            "**What to do.**",
            dedent(alert.do).strip(),
        ]
    return page(*parts)


def _when(for_s: int) -> str:
    return f"if this holds for {for_s} s" if for_s else "as soon as this holds"


def _row(family: Family) -> tuple[str, ...]:
    return (f"`{family.name}`", family.kind, code(family.labels), family.says)


_INTRODUCTION: Final = """
    Prometheus asks in two places, and no metric is in both:

    ```console
    $ pip install 'rq-core[metrics]'
    $ rq-core metrics --listen 0.0.0.0:9464 --audit postgresql://audit@db/audit
    $ rq-core worker tasks:app --processes 8 --health 0.0.0.0:8080
    ```

    `rq-core metrics` shows the state: it reads and never counts, so it may be restarted at any time. A scrape costs
    Redis four round trips, whether ten jobs wait or ten million, and shows a look that is at most a second old. If
    Redis does not answer, `rqc_up` is 0 within two seconds; if a database does not, `rqc_audit_up` or `rqc_inbox_up`
    is 0 and the rest is whole. With a million jobs in 50,000 lanes a look takes 0.15 ms of Redis
    (`scripts/measure/once/run scrape-cost`).

    The workers' port shows the flow, at `/metrics`: all processes of one `rq-core worker` together. No counter
    falls when a process is replaced or killed; what a killed process had not counted yet is missing there, and
    stands in the log's `rqc_claims_ended_total`. Counting takes 0.3 µs of the 11 µs of processor time that an empty
    job costs its worker, and asks Redis nothing.

    A registry of your own may have both, too:

    ```python
    from prometheus_client import REGISTRY
    from rq_core.metrics.collector import QueueCollector

    REGISTRY.register(QueueCollector.at("redis://localhost:6379/0"))
    ```

    Rules for alerts are in `docs/grafana/alerts.yml`, explained in [Alerts](../how-to/alerts.md), and a dashboard
    is in `docs/grafana/rq-core.json`. [How to watch queues](../how-to/watch.md) sets them up.
"""

_LABELS: Final = """
    There are no others than {labels}. A job, a worker, the text of an error or the value in a scope (`acme` in
    `tenant=acme`) is never one: there are too many of them, and a value may be the name of a customer. The label
    `scope` is `queue`, `task=send`, or a family such as `tenant` as a whole. Of a queue's scopes with a limit, those
    that jobs wait for come first, nine at most. At most {most} tasks are named; the others are counted under
    `(other)`.
"""

_SEVERAL: Final = """
    Several `rq-core metrics` for one Redis show the same numbers: join them with `max`, not with `sum`. The
    workers' ports of several machines each show their own part: join those with `sum`, and the lag of the loop and
    the age of the last claim, which are those of the worst process, with `max`.
"""

_RUNBOOK: Final = """
    What each alert of `docs/grafana/alerts.yml` means, what to look at, and what to type. `rq-core top` names the
    same causes as soon as it sees them. Put the name of the queue in the place of QUEUE.
    `--audit URL` takes the URL of the audit database; leave it out where `RQ_CORE_AUDIT_URL` is set.
    `rq-core queues` says whether a queue has an audit log.

    `page`: an operator has to look now. `ticket`: within a working day.
"""
