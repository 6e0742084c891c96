"""Spans of enqueues and claims, with real workers. The tests check how spans are related, and that no span is lost."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util._once import Once

from rq_core import App, InvalidOption, RetryPolicy, UsageError, testing
from rq_core.tracing import conventions, instrument, providers
from sql_audit.inbox import schema
from sql_audit.inbox.service import run_relay
from tests.kit import processes, traced
from tests.kit.processes import ROOT
from tests.kit.wait import wait_until, wait_until_async
from tests.kit.working import working

RELATIONS = ("auto", "parent", "link")
RUN = {
    "plain alone": "parent",
    "plain delayed": "link",
    "plain bulk": "link",
    "plain inbox": "link",
    "plain inbox, by name": "link",
    "plain inbox, without the code": "link",
    "failing_once 1": "parent",
    "failing_once 2": "link",
    "apart": "parent",
    "chosen parent": "parent",
    "chosen link": "link",
}
"""For each claim: how its span refers to the span of the enqueue if the app is instrumented with ``auto``."""


@pytest.fixture
def spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the file to which all processes append their spans."""
    path = tmp_path / "spans.jsonl"
    monkeypatch.setenv(traced.SPANS, str(path))
    return path


@pytest.fixture
def use_relation(
    valkey_url: str, spans: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], None]]:
    """Yield a function that imports the traced app again. The argument says how the app relates a claim's span to the
    enqueue.

    The processes of isolated handlers import the app with the same relation.
    """

    def use(relation: str) -> None:
        monkeypatch.setenv(traced.RELATION, relation)
        monkeypatch.setenv("RQ_CORE_REDIS_URL", valkey_url)
        traced.provider.shutdown()
        importlib.reload(traced)

    yield use
    traced.provider.shutdown()
    traced.app.close()


def finished(spans: Path) -> list[dict[str, Any]]:
    traced.provider.force_flush()
    return traced.spans_in(spans)


def of_job(found: list[dict[str, Any]], job_id: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the span of a job's enqueue, and the spans of its claims in order."""
    mine = [each for each in found if each["attributes"].get(conventions.MESSAGE_ID) == job_id]
    [sent] = [each for each in mine if each["kind"] == "PRODUCER"]
    claims = [each for each in mine if each["kind"] == "CONSUMER"]
    return sent, sorted(claims, key=lambda each: each["attributes"][conventions.CLAIM])


def relation(span: dict[str, Any], to: dict[str, Any]) -> str:
    """Return how a span refers to another span: "parent" or "link". Raises AssertionError if it is both, or neither."""
    if span["parent"] == to["id"]:
        assert span["trace"] == to["trace"]
        assert [] == span["links"]
        return "parent"
    assert span["parent"] is None
    assert [[to["trace"], to["id"]]] == span["links"]
    assert span["trace"] != to["trace"]
    return "link"


@pytest.mark.parametrize("chosen", RELATIONS)
def test_the_span_of_a_claim_refers_to_the_span_of_the_enqueue_in_the_configured_way(
    chosen: str, use_relation: Callable[[str], None], spans: Path, tmp_path: Path
) -> None:
    use_relation(chosen)
    app, inbox = traced.app, tmp_path / "shop.db"
    schema.migrate(f"sqlite:///{inbox}")
    alone = traced.plain.enqueue()
    delayed = traced.plain.with_options(delay=0.05).enqueue()
    bulk = app.enqueue_many(traced.plain.job(n) for n in range(3)).ids
    batch = app.enqueue_many(traced.together.job(n=n) for n in range(2)).ids
    retried = traced.failing_once.enqueue()
    apart = traced.apart.enqueue()
    as_child = traced.plain.with_options(trace="parent", delay=0.05).enqueue()
    linked = traced.plain.with_options(trace="link").enqueue()
    with contextlib.closing(sqlite3.connect(inbox, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        row = traced.plain.within(connection).enqueue()
        by_name = app.within(connection).enqueue(traced.QUEUE, "plain", {"n": 1})
        foreign = App(app.redis_url)
        instrument(foreign, tracer_provider=traced.provider)
        unknown = foreign.within(connection).enqueue(traced.QUEUE, "plain", {"n": 2})
        connection.execute("COMMIT")
    stop = threading.Event()
    run_relay(app.redis_url, app.prefix, f"sqlite:///{inbox}", stop=stop, once=True)
    # Eleven jobs were enqueued alone, three in bulk, and one has two claims; the two of the batch have one span.
    claims = 8 + 3 + 1 + 2 + 1 - 1

    def all_but_the_isolated_ended() -> bool:
        ended = [each for each in finished(spans) if each["kind"] == "CONSUMER"]
        ticks = [each for each in ended if each["name"] == "process ticking"]
        return bool(ticks) and len(ended) - len(ticks) >= claims - 1

    def isolated_ended() -> bool:
        return apart.state() == "gone"

    async def work() -> None:
        async with working(app, queues=(traced.QUEUE, traced.BATCHES, traced.TICKS)):
            await wait_until_async(
                all_but_the_isolated_ended, "each claim has its span", timeout=60
            )
            await wait_until_async(isolated_ended, "the isolated handler has ended", timeout=60)

    asyncio.run(work())
    found = finished(spans)
    ticks = [each for each in found if each["name"] == "process ticking"]

    def said(handle_id: str, claim: int = 1) -> str:
        sent, claims = of_job(found, handle_id)
        return relation(claims[claim - 1], sent)

    [sent_many] = [
        each
        for each in found
        if each["attributes"].get(conventions.WAY) == "enqueue_many"
        and each["attributes"][conventions.TASK] == "plain"
    ]
    of_bulk = [each for each in found if each["attributes"].get(conventions.MESSAGE_ID) in bulk]
    assert len(of_bulk) == 3
    observed = {
        "plain alone": said(alone.id),
        "plain delayed": said(delayed.id),
        "plain inbox": said(row.id),
        "plain inbox, by name": said(by_name.id),
        "plain inbox, without the code": said(unknown.id),
        "failing_once 1": said(retried.id),
        "failing_once 2": said(retried.id, 2),
        "apart": said(apart.id),
        "chosen parent": said(as_child.id),
        "chosen link": said(linked.id),
    }
    [in_bulk] = {relation(each, sent_many) for each in of_bulk}
    expected = dict(RUN) if chosen == "auto" else dict.fromkeys(RUN, chosen)
    expected |= {"chosen parent": "parent", "chosen link": "link"}
    assert expected == observed | {"plain bulk": in_bulk}

    # A batch has jobs of several enqueues, and a tick has no enqueue.
    [together] = [each for each in found if each["name"] == "process together"]
    assert together["parent"] is None
    assert len(together["links"]) == len(batch) == together["attributes"][conventions.BATCH_COUNT]
    for tick in ticks:
        assert (None, []) == (tick["parent"], tick["links"])
        assert tick["attributes"][conventions.SCHEDULE] == "beat"

    # The failed claim says so, without the text of its error; the isolated handler's span is from its own process.
    _, (failed, repeated) = of_job(found, retried.id)
    assert ("ERROR", "UNSET") == (failed["status"], repeated["status"])
    assert failed["attributes"][conventions.ERROR_TYPE] == "ConnectionError"
    assert "secret" not in str(found)
    assert failed["pid"] == os.getpid() != of_job(found, apart.id)[1][0]["pid"]


def test_a_process_exports_its_spans_when_it_ends(spans: Path) -> None:
    """Checks a process that ends within the exporter's delay of a minute."""
    program = (
        "from rq_core import testing; from tests.kit import traced\n"
        "with testing.fake(traced.app): traced.plain.enqueue()"
    )
    environment = os.environ | {"OTEL_BSP_SCHEDULE_DELAY": "60000"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, timeout=60, check=False
    )

    assert done.returncode == 0
    assert ["enqueue plain"] == [each["name"] for each in traced.spans_in(spans)]


def run_program(program: str) -> str:
    """Run a program in a process of its own, which has no tracer provider yet. Return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=25,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_process_ends_though_its_exporter_of_spans_hangs() -> None:
    program = """
import threading
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from rq_core import App, testing
from rq_core.tracing import instrument

class Hanging(SpanExporter):
    def export(self, spans):
        print("exports", *(each.name for each in spans), flush=True)
        threading.Event().wait()

provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(BatchSpanProcessor(Hanging(), schedule_delay_millis=60_000))
trace.set_tracer_provider(provider)
app = App("redis://nowhere.invalid")
instrument(app)

@app.task
def send() -> None: ...

with testing.fake(app):
    send.enqueue()
"""
    assert "exports enqueue send\n" == run_program(program)


@pytest.mark.slow
def test_a_forked_process_exports_its_spans_too(spans: Path) -> None:
    """A server forks its processes after it has imported the app."""
    program = """
import os, sys
from rq_core import testing
from tests.kit import traced
if os.fork() == 0:
    with testing.fake(traced.app):
        traced.plain.enqueue()
    sys.exit()
_, status = os.wait()
sys.exit(os.waitstatus_to_exitcode(status))
"""
    run_program(program)

    assert ["enqueue plain"] == [each["name"] for each in traced.spans_in(spans)]


WITHOUT_PROVIDER = """
import sys
from collections import Counter
from contextlib import contextmanager
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from rq_core import App, testing
from rq_core.tracing import instrument

def made():
    app = App("redis://nowhere.invalid")
    @app.task(name="send")
    async def send(n: int) -> None: ...
    return app, send

def calls_of(do):
    # Which functions of rq_core and of OpenTelemetry are called, and how often.
    found = Counter()
    def note(frame, event, arg):
        code = frame.f_code
        if event == "call" and ("rq_core" in code.co_filename or "opentelemetry" in code.co_filename):
            found[code.co_filename.rpartition("/")[2], code.co_name] += 1
    sys.setprofile(note)
    try:
        do()
    finally:
        sys.setprofile(None)
    return found

def counted(app, send):
    with testing.fake(app) as jobs:
        # The first rounds fill caches.
        for n in range(4):
            calls = calls_of(lambda: send.enqueue(n)), calls_of(jobs.drain)
    return calls

(plain, first), (app, second) = made(), made()
instrument(app)
for without, instrumented in zip(counted(plain, first), counted(app, second)):
    assert without.total() > 50
    assert without == instrumented, (without - instrumented, instrumented - without)
assert not app.outgoing_functions and not app.surroundings.arounds

seen = []
@app.around
@contextmanager
def inner(job):
    seen.append(trace.get_current_span().name)
    yield
@app.outgoing
def headers(call):
    return {"traceparent": "mine"}
ended = InMemorySpanExporter()
provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(SimpleSpanProcessor(ended))
trace.set_tracer_provider(provider)
with testing.fake(app) as jobs:
    second.enqueue(1)
    [job] = jobs.enqueued()
    jobs.drain()
print([each.name for each in ended.get_finished_spans()], seen, job.headers["traceparent"])
"""


@pytest.mark.slow
def test_without_a_tracer_provider_no_span_is_made_and_a_provider_that_comes_later_is_used() -> (
    None
):
    printed = run_program(WITHOUT_PROVIDER)

    # What the program has registered since comes after the spans, as if there had been a provider from the beginning.
    assert "['enqueue send', 'process send'] ['process send'] mine\n" == printed


@pytest.mark.slow
def test_an_app_that_waits_for_a_tracer_provider_can_be_garbage_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[App] = []
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())
    app, forgotten = App("redis://nowhere.invalid"), App("redis://nowhere.invalid")
    for each in (app, forgotten):
        providers.when_provided(each, begun.append)
    assert [] == begun
    del each, forgotten
    gc.collect()

    trace.set_tracer_provider(TracerProvider(shutdown_on_exit=False))

    assert [app] == begun
    trace.set_tracer_provider(TracerProvider(shutdown_on_exit=False))  # is refused
    assert [app] == begun


def test_an_app_makes_spans_at_once_if_the_opentelemetry_version_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[str] = []
    monkeypatch.delattr(trace, "_set_tracer_provider")

    providers.when_provided("app", begun.append)

    assert ["app"] == begun


@pytest.mark.slow
def test_no_span_is_lost_when_processes_end_after_one_job(
    use_relation: Callable[[str], None], spans: Path, tmp_path: Path
) -> None:
    """Checks processes that end within the exporter's delay of a minute."""
    use_relation("auto")
    ids = {traced.plain.enqueue(n).id for n in range(5)} | {traced.apart.enqueue().id}
    options = ("--processes", "4", "--max-jobs", "1")
    variables = {"OTEL_BSP_SCHEDULE_DELAY": "60000"}

    def claimed() -> set[str]:
        return {
            each["attributes"][conventions.MESSAGE_ID]
            for each in traced.spans_in(spans)
            if each["kind"] == "CONSUMER"
        }

    with processes.worker(
        "tests.kit.traced:app",
        (traced.QUEUE,),
        traced.app.redis_url,
        *options,
        log=tmp_path / "workers.log",
        variables=variables,
    ) as child:
        wait_until(lambda: ids <= claimed(), "each job has its span", timeout=60)
        child.terminate()
        assert child.wait(60) == 0

    assert ids == claimed()


class _Refusing(TraceContextTextMapPropagator):
    """A propagator that raises an exception for headers that it cannot read."""

    def extract(self, carrier: Any, *given: Any, **options: Any) -> Any:
        int(str(carrier.get("traceparent")), 16)
        return super().extract(carrier, *given, **options)


@pytest.mark.parametrize("propagator", [None, _Refusing()])
@pytest.mark.parametrize("sent", ["junk", "", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_a_job_does_not_fail_if_its_trace_headers_cannot_be_read(
    propagator: _Refusing | None, sent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if propagator is not None:
        monkeypatch.setattr(propagate, "_HTTP_TEXT_FORMAT", propagator)
    app = App("redis://nowhere.invalid")
    ended = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(ended))
    instrument(app, tracer_provider=provider)

    @app.task(name="send", retry=RetryPolicy(max_attempts=1))
    def send() -> None:
        """Do nothing."""

    with testing.fake(app) as jobs:
        headers = {"traceparent": sent, "tracestate": "=" * 1_000, "rq-core-trace": "parent"}
        send.with_options(headers=headers).enqueue()
        (ran,) = jobs.drain()

    assert ran.outcome == "succeeded"
    [span] = [span for span in ended.get_finished_spans() if span.name == "process send"]
    assert (None, ()) == (span.parent, tuple(span.links))


def test_the_semantic_conventions_define_every_span_attribute_except_those_of_rq_core() -> None:
    from opentelemetry.semconv._incubating.attributes import messaging_attributes
    from opentelemetry.semconv.attributes import error_attributes
    from opentelemetry.semconv.schemas import Schemas

    known = {
        value
        for module in (messaging_attributes, error_attributes)
        for value in vars(module).values()
        if isinstance(value, str)
    }
    ours = {name for name in conventions.MEANING if not name.startswith("rq_core.")}
    assert set() == ours - known
    assert conventions.SCHEMA_URL in {schema.value for schema in Schemas}


def test_the_page_about_traces_lists_each_attribute_and_the_version_of_the_conventions() -> None:
    page = (ROOT / "docs" / "how-to" / "traces.md").read_text()
    rows = [
        line
        for line in page.splitlines()
        if line.startswith(("| `messaging", "| `error", "| `rq_core"))
    ]

    assert [f"| `{name}` | {says} |" for name, says in conventions.MEANING.items()] == rows
    assert f"semantic conventions {conventions.VERSION}" in page


def test_instrument_refuses_an_unknown_relation_and_a_second_call_with_other_options() -> None:
    app = App("redis://nowhere.invalid")
    wrong: Any = "child"
    with pytest.raises(InvalidOption, match=r"relation.*must be auto, parent or link"):
        instrument(app, wrong)
    with pytest.raises(InvalidOption, match=r"tasks.*must be auto, parent or link"):
        instrument(app, tasks={"send": wrong})
    assert [] == app.outgoing_functions
    provider = TracerProvider(shutdown_on_exit=False)
    for _ in range(2):
        instrument(app, tasks={"send": "link"}, tracer_provider=provider)
    assert len(app.outgoing_functions) == len(app.surroundings.arounds) == 1
    with pytest.raises(UsageError, match="instrumented already, in another way"):
        instrument(app)
