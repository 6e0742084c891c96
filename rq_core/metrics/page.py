"""The page ``/metrics``, on the port where a worker answers health checks."""

from __future__ import annotations

from typing import Final

from rq_core.installing import pip_install
from rq_core.process.claim_totals import FlowTotals
from rq_core.process.health import Answer, Page

MISSING: Final = f"install the extra that shows metrics: {pip_install('metrics')}\n"


def worker_page(totals: FlowTotals) -> Page:
    """Return a function that makes the page of one ``rq-core worker``. The first request imports prometheus_client."""

    def page() -> Answer:
        try:
            from prometheus_client import CollectorRegistry
            from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
        except ImportError:
            return Answer(501, "text/plain; charset=utf-8", MISSING.encode())
        from rq_core.metrics.collector import WorkerCollector

        registry = CollectorRegistry()
        registry.register(WorkerCollector(totals))
        return Answer(200, CONTENT_TYPE_LATEST, generate_latest(registry))

    return page
