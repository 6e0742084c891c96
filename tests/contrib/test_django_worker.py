"""`rq-core worker --django` on two projects: the example of the pages, and the project of the tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.docs.transcript import EXAMPLES
from tests.kit.command import command
from tests.kit.processes import ROOT, Child
from tests.kit.servers import RedisServer

SHOP = EXAMPLES / "django_shop"
PROJECT = Path(__file__).parent / "django_project"
WORKER = (sys.executable, "-m", "rq_core.cli", "worker", "--django")

VISIT = """
import time
from django.test import Client
from shop.models import Order

client = Client(headers={"host": "localhost"})
refused = client.post("/orders", {"to": "nobody"})
made = client.post("/orders", {"to": "a@b.c"})
until = time.monotonic() + 60
while True:
    mail = client.get(f"/mails/{made.json()['mail']}").json()
    counted = list(Order.objects.values_list("to", "is_counted"))
    if mail["value"] and counted[0][1] or time.monotonic() > until:
        break
    time.sleep(0.05)
print(repr((refused.status_code, made.status_code, mail, counted)))
"""


def manage(project: Path, variables: Mapping[str, str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "manage.py", *words],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_example_of_the_page_runs_from_the_migration_to_the_result(
    tmp_path: Path, valkey: RedisServer
) -> None:
    variables = {"SHOP_DATABASE": str(tmp_path / "shop.sqlite3"), "RQ_CORE_REDIS_URL": valkey.url}
    manage(SHOP, variables, "migrate")
    words = [*WORKER, "shop.settings", "--inbox", "default"]
    with Child(
        words, tmp_path / "worker.log", {**variables, "PYTHONPATH": str(ROOT)}, directory=SHOP
    ) as child:
        visited = manage(SHOP, variables, "shell", "--no-imports", "-c", VISIT)
        child.send_signal(signal.SIGTERM)
        assert 0 == child.wait(60), child.said()

    mail = {"status": "SUCCESSFUL", "value": "to a@b.c: thank you for order 1"}
    assert repr((422, 202, mail, [("a@b.c", True)])) == visited.splitlines()[-1]


@pytest.mark.slow
def test_supervised_workers_and_isolated_handlers_have_django(
    tmp_path: Path, valkey: RedisServer
) -> None:
    variables = {
        "SHOP_DATABASES": f"sqlite:{tmp_path}",
        "SHOP_PREFIX": f"t{uuid.uuid4().hex[:8]}",
        "SHOP_REDIS": valkey.url,
    }
    manage(PROJECT, variables, "migrate", "--run-syncdb")
    enqueue = "from shop.tasks import *; print(count_apart.enqueue().id, give_back.enqueue(5).id)"
    apart, back = manage(PROJECT, variables, "shell", "-c", enqueue).split()[-2:]

    words = [*WORKER, "project_settings", "--burst", "--processes", "2"]
    with Child(
        words, tmp_path / "worker.log", {**variables, "PYTHONPATH": str(ROOT)}, directory=PROJECT
    ) as child:
        assert 0 == child.wait(90), child.said()

    told = ("--redis", valkey.url, "--prefix", variables["SHOP_PREFIX"])
    assert "0 orders, claim 1" == json.loads(command("result", apart, *told).stdout)
    assert 5 == json.loads(command("result", back, *told).stdout)["value"]


INSTRUMENTOR = """
class DjangoInstrumentor:
    def instrument(self):
        pass
"""
TRACED = """
import asyncio, threading
from django.test import Client
from opentelemetry import trace
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from rq_core.contrib.django import app, database_url
from rq_core.worker import Worker, WorkerOptions
from sql_audit.inbox.service import run_relay

ended = InMemorySpanExporter()
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(ended))
with trace.get_tracer("request").start_as_current_span("POST /orders"):
    Client(headers={"host": "localhost"}).post("/orders", {"to": "a@b.c"})
run_relay(app.redis_url, app.prefix, database_url("default"), stop=threading.Event(), once=True)
asyncio.run(Worker(app, WorkerOptions(queues=("mail", "statistics"), burst=True)).run())
spans = ended.get_finished_spans()
print(repr((len({span.context.trace_id for span in spans}), sorted(span.name for span in spans))))
"""


@pytest.mark.slow
def test_in_the_traced_example_one_trace_leads_from_the_request_to_the_tasks(
    tmp_path: Path, valkey: RedisServer
) -> None:
    package = tmp_path / "opentelemetry" / "instrumentation" / "django"
    package.mkdir(parents=True)
    # The package that makes the span of a request is not among the dependencies of the tests.
    (package / "__init__.py").write_text(INSTRUMENTOR)
    traced = "from shop.settings import *\nINSTALLED_APPS = ['rq_core.contrib.django', 'shop.traced.ShopConfig']\n"
    prefix = f"RQ_CORE = {{**RQ_CORE, 'prefix': 't{uuid.uuid4().hex[:8]}'}}\n"
    (tmp_path / "traced_settings.py").write_text(traced + prefix)
    variables = {
        "DJANGO_SETTINGS_MODULE": "traced_settings",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
        "RQ_CORE_REDIS_URL": valkey.url,
        "SHOP_DATABASE": str(tmp_path / "shop.sqlite3"),
    }
    manage(SHOP, variables, "migrate")
    seen = manage(SHOP, variables, "shell", "--no-imports", "-c", TRACED).splitlines()

    tasks = ("count", "shop.tasks.send")
    names = [
        "POST /orders",
        *(f"{verb} {task}" for verb in ("enqueue", "process") for task in tasks),
    ]
    assert repr((1, names)) in seen


BROKEN = {
    "no_such.settings": "must be a module of settings, as shop.settings; there is no module no_such",
    "broken_settings": "module 'broken_settings' cannot be imported: ZeroDivisionError: division by zero",
    "odd_settings": "RQ_CORE has the unknown key 'server'; it may have redis, audit, inbox, prefix, ",
    "odd_tasks": "TASKS['default'] has the unknown option 'retries'",
    "lost_settings": "module 'lost.tasks' cannot be imported: ModuleNotFoundError: No module named 'no_such'",
    "odd_syntax": "module 'syntax.tasks' cannot be imported: SyntaxError",
    "no_alias": "RQ_CORE['inbox'] is 'defualt': that is no URL, no file, and no alias of DATABASES",
}


@pytest.mark.slow
@pytest.mark.parametrize("settings", BROKEN)
def test_the_error_of_unusable_django_settings_is_one_line(settings: str, tmp_path: Path) -> None:
    (tmp_path / "broken_settings.py").write_text("1 / 0\n")
    common = "INSTALLED_APPS = ['rq_core.contrib.django']\nSECRET_KEY = 'x'\n"
    (tmp_path / "odd_settings.py").write_text(common + "RQ_CORE = {'server': 'redis://x'}\n")
    (tmp_path / "no_alias.py").write_text(common + "RQ_CORE = {'inbox': 'defualt'}\n")
    for app, name, tasks in (
        ("lost", "lost_settings", "import no_such"),
        ("syntax", "odd_syntax", "a b"),
    ):
        (tmp_path / f"{name}.py").write_text(common + f"INSTALLED_APPS.append('{app}')\n")
        (tmp_path / app).mkdir()
        (tmp_path / app / "__init__.py").touch()
        (tmp_path / app / "tasks.py").write_text(f"{tasks}\n")
    backend = "{'BACKEND': 'rq_core.contrib.django.Backend', 'OPTIONS': {'retries': 1}}"
    (tmp_path / "odd_tasks.py").write_text(f"{common}TASKS = {{'default': {backend}}}\n")

    done = subprocess.run(
        [*WORKER, settings],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode in (1, 2)
    (line,) = done.stderr.splitlines()
    assert BROKEN[settings] in line


def test_a_worker_without_an_app_and_without_django_is_refused() -> None:
    done = command("worker")

    assert 2 == done.exit_code
    assert "Missing argument 'MODULE:APP'" in done.output
