"""An app with spans of OpenTelemetry. Its processes append their spans to a file, one JSON document on each line.

The environment variable in SPANS has the path of the file. The variable in RELATION has the argument ``relation`` of
`instrument`. A process exports its spans when it ends, or after the time in OTEL_BSP_SCHEDULE_DELAY.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from rq_core import App, Batch, Job, RetryPolicy, current_job
from rq_core.tracing import instrument

SPANS: Final = "RQ_CORE_TEST_SPANS"
RELATION: Final = "RQ_CORE_TEST_RELATION"
QUEUE: Final = "traced"
BATCHES: Final = "traced-batches"
TICKS: Final = "traced-ticks"


def fields_of(span: ReadableSpan) -> dict[str, Any]:
    """Return the parts of a span that tests check, as a dict."""
    context = span.get_span_context()
    assert context is not None
    return {
        "name": span.name,
        "trace": context.trace_id,
        "id": context.span_id,
        "parent": span.parent.span_id if span.parent is not None else None,
        "links": [[each.context.trace_id, each.context.span_id] for each in span.links],
        "attributes": dict(span.attributes or {}),
        "kind": span.kind.name,
        "status": span.status.status_code.name,
        "pid": os.getpid(),
    }


class FileExporter(SpanExporter):
    """Appends spans to the file that the environment variable in SPANS names."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        path = os.environ.get(SPANS)
        if path is not None:
            lines = "".join(json.dumps(fields_of(span)) + "\n" for span in spans)
            with Path(path).open("a") as file:
                file.write(lines)
        return SpanExportResult.SUCCESS


provider = TracerProvider(shutdown_on_exit=False)  # so that instrument() must export the last spans
provider.add_span_processor(BatchSpanProcessor(FileExporter()))
app = App()
instrument(app, os.environ.get(RELATION, "auto"), tracer_provider=provider)  # type: ignore[arg-type]  # a test's own


@app.task(queue=QUEUE)
async def plain(n: int = 0) -> None:
    """Do nothing."""


@app.task(queue=QUEUE, retry=RetryPolicy(max_attempts=2, base=0.01))
def failing_once() -> None:
    if current_job().claim == 1:
        raise ConnectionError("a secret of the handler")


@app.task(queue=QUEUE, isolation="process")
def apart() -> None:
    """Do nothing."""


@dataclass
class Number:
    n: int


@app.task(queue=BATCHES, batch=Batch(10, linger=0.2))
def together(jobs: list[Job[Number]]) -> None:
    """Do nothing."""


@app.task(queue=TICKS)
def ticking() -> None:
    """Do nothing."""


app.schedule("beat", ticking.job(), every=1.0)


def spans_in(path: Path) -> list[dict[str, Any]]:
    """Return the spans in a file, each as a dict."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]
