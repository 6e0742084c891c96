"""A short form of scripts/measure/bench. Every measurement runs, and the report can be read.

No test checks the speed.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.rigs import budgets

ROOT = Path(__file__).parents[2]


def bench(tmp_path: Path, *words: str, seconds: float = 110) -> dict[str, Any]:
    path = tmp_path / "figures.json"
    command = [str(ROOT / "scripts" / "measure" / "bench"), "--tiny", "--json", str(path), *words]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert "floors of the same run" in done.stdout
    document: dict[str, Any] = json.loads(path.read_text())
    return {**document, "printed": done.stdout}


FIGURES = {
    "enqueue": """enqueue_bulk_per_s bulk_floor_per_s pipeline_floor_per_s enqueue_one_per_s
        evalsha_floor_per_s""",
    "work": """drain_async_per_s drain_threads_per_s drain_async_2w_per_s drain_floor_per_s
        latency_p50_ms latency_p99_ms latency_floor_ms""",
    "redis": """redis_us_per_job redis_us_per_job_capped redis_us_per_job_alone redis_us_bare_call
        redis_us_turn_saturated redis_turns_saturated_per_s redis_busy_percent_saturated
        redis_bytes_per_job depth_ratio script_max_ms""",
    "audit": """mirror_sqlite_per_s mirror_sqlite_floor_per_s end_to_end_sqlite_per_s
        mirror_postgres_per_s mirror_postgres_floor_per_s end_to_end_postgres_per_s""",
    "inbox": """inbox_sqlite_per_s inbox_sqlite_inserts_per_s inbox_sqlite_evalshas_per_s
        inbox_sqlite_hook_p50_ms inbox_sqlite_hook_p99_ms inbox_sqlite_hook_commit_ms
        inbox_sqlite_poll_p50_ms inbox_postgres_per_s inbox_postgres_hook_p50_ms
        inbox_postgres_hook_p99_ms inbox_postgres_poll_p50_ms""",
    "start": "import_ms help_ms",
    "far": """near_ping_ms far_ping_ms near_floor_p50_ms far_floor_p50_ms near_p50_ms near_p99_ms near_call_ms
        far_p50_ms far_p99_ms far_call_ms far_drain_per_s waiting_per_s idle_rss_mb busy_rss_mb""",
}


@pytest.mark.parametrize("part", FIGURES)
@pytest.mark.slow
def test_each_part_of_the_benchmark_measures_its_figures(tmp_path: Path, part: str) -> None:
    document = bench(tmp_path, "--only", part)

    assert document["failures"] == {}
    for figure in FIGURES[part].split():
        low, high = document["spread"][figure]
        assert 0 < low <= document[figure] <= high, figure
    if part == "work":
        assert document["idle_commands_per_s"] >= 0
    if part == "far":
        # A producer's call and a handler's start need at least one round trip of 2 ms.
        assert min(document["far_call_ms"], document["far_p50_ms"], document["far_ping_ms"]) > 2
        assert "| rq-core (log, caps, replay safety) |" in document["printed"]
    assert document["facts"]["sizes"] == "tiny"


def test_the_proxy_delays_both_directions_by_the_same_time_and_keeps_the_order_of_commands(
    valkey_url: str,
) -> None:
    """Checks 100 commands that are sent without a wait for the answers: all of them together take one round trip."""
    code = f"""
import delaying, socket, time
from urllib.parse import urlsplit
with delaying.delayed({valkey_url!r}, 0.05) as url:
    ping_ms = delaying.ping_ms(url, 3)
    with socket.create_connection(("127.0.0.1", urlsplit(url).port)) as end:
        began = time.monotonic()
        for number in range(100):
            end.sendall(f"ECHO {{number}}\\r\\n".encode())
        end.sendall(b"QUIT\\r\\n")
        answers = b"".join(iter(lambda: end.recv(65536), b""))
        took_s = time.monotonic() - began
print(json.dumps([ping_ms, took_s, answers.decode().split()[1:-1:2]]))
"""

    ping_ms, took_s, answers = run_in_bench(code, {})

    assert ping_ms >= 100
    assert 0.1 <= took_s < 100 * 0.1
    assert answers == [str(number) for number in range(100)]


@pytest.fixture
def figures() -> dict[str, Any]:
    """Return invented figures of a run."""
    found = {
        "enqueue_bulk_per_s": 250_000.0, "drain_async_per_s": 80_000.0, "latency_p50_ms": 0.2, "latency_floor_ms": 0.1,
    }  # fmt: skip
    return {
        **found,
        "spread": {name: [value, value] for name, value in found.items()},
        "repeats": dict.fromkeys(found, 1),
        "peers": {"other": {"enqueue_bulk_per_s": 130_000.0, "drain_threads_per_s": 9_000.0}},
        "failures": {},
        "facts": {},
    }


def run_in_bench(code: str, figures: dict[str, Any]) -> Any:
    """Run code that imports the benchmark's modules. Return what it computes from the figures."""
    path = str(ROOT / "scripts" / "measure" / "benchmarks")
    source = f"import json, sys; sys.path.insert(0, {path!r}); d = json.load(sys.stdin); {code}"
    done = subprocess.run(
        [sys.executable, "-c", source],
        input=json.dumps(figures), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def test_a_target_is_met_only_if_all_its_parts_are_met(
    figures: dict[str, Any],
) -> None:
    """Checks 250,000 jobs per second. This meets the first part of the target, and is less than twice the best peer's
    figure."""
    code = "import targets; print(json.dumps([(r[0], r[4]) for r in targets.aimed_rows(d)]))"

    rows = dict(run_in_bench(code, figures))

    assert rows["enqueue in bulk, one producer"] == "not met"
    assert rows["drain, `async def`, one worker"] == "met"
    assert rows["latency, p50"] == "met"
    assert rows["latency, p50, beside the floor"] == "not met"


def test_the_benchmark_promises_only_targets_that_were_met_and_have_a_budget(
    figures: dict[str, Any],
) -> None:
    """Checks a target that the run misses. The report does not promise it.

    A target without a budget is never promised.
    """
    code = """
import targets
rows = lambda d: [[r[:2] for r in part(d)] for part in (targets.promised_rows, targets.aimed_rows)]
slow = {**d, "latency_p50_ms": 0.5}
print(json.dumps([rows({**d, "latency_p50_ms": 0.155}), rows(slow)]))
"""
    bound = ["latency, p50, beside the floor", "≤ 1.6 bare wakes with two round trips"]

    (promised, aimed), (promised_slow, aimed_slow) = run_in_bench(code, figures)

    assert promised == [bound]
    assert promised_slow == []
    assert bound not in aimed
    assert bound in aimed_slow
    assert ["latency, p50", "≤ 0.25 ms"] in aimed, "nothing holds it"


def test_the_budgets_of_promised_targets_exist(figures: dict[str, Any]) -> None:
    code = "import targets; print(json.dumps([t.held for t in targets.TARGETS if t.held]))"

    held = [row.split(" ", 1) for rows in run_in_bench(code, figures) for row in rows.split(", ")]

    assert len(held) > 5
    for section, name in held:
        assert name in budgets.table()[section]


def test_the_table_of_inboxes_has_the_best_run(
    figures: dict[str, Any],
) -> None:
    found = {
        "inbox_sqlite_per_s": 41_000, "inbox_sqlite_hook_p50_ms": 3.0, "inbox_sqlite_inserts_per_s": 700,
    }  # fmt: skip
    spread = {"inbox_sqlite_per_s": [30_000, 44_000], "inbox_sqlite_hook_p50_ms": [2.0, 6.0]}
    spread["inbox_sqlite_inserts_per_s"] = [600, 800]
    run = {**figures, **found, "spread": figures["spread"] | spread}
    code = (
        "import targets; print(json.dumps([list(rows(d)) for rows in"
        " (targets.inbox_rows, targets.aimed_rows, targets.floor_rows)]))"
    )

    (jobs, latency, inserts), *others = run_in_bench(code, run)

    assert jobs[1:4] == ["≥ 40,000", "44,000/s", "41,000/s"]
    assert latency[1:4] == ["≤ 5 ms", "2 ms", "3 ms"]
    assert inserts[1:] == ["", "", "700", "600 to 800"]
    assert not any("inbox" in row[0] for rows in others for row in rows)


def test_the_report_of_a_benchmark_replaces_only_text_between_its_markers(
    figures: dict[str, Any],
) -> None:
    text = "before\n<!-- bench: peers -->\nold\n<!-- bench: end peers -->\nafter\n"
    code = f"import report; print(json.dumps(report.between({text!r}, 'peers', chr(10).join(report._peers(d)))))"

    after = run_in_bench(code, figures)

    assert after.startswith("before\n<!-- bench: peers -->\n|  | enqueue one/s |")
    assert after.endswith("|\n<!-- bench: end peers -->\nafter\n")
    assert "| other | none | 130,000 | 9,000 | none |" in after
    assert "old" not in after


def test_a_table_that_two_documents_contain_is_updated_in_both_documents(
    tmp_path: Path, figures: dict[str, Any]
) -> None:
    """Checks that the table in the README gets the new figures, too."""
    for name in ("docs/performance.md", "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        part = "peers-short" if name == "README.md" else "peers"
        (tmp_path / name).write_text(f"<!-- bench: {part} -->\nold\n<!-- bench: end {part} -->\n")
    code = (
        f"import pathlib, report; report.ROOT = pathlib.Path({str(tmp_path)!r})"
        "; report._facts = lambda d: ''; report._redis = report._stages = lambda d: []"
        "; print(json.dumps([str(p.relative_to(report.ROOT)) for p in report.write(d)]))"
    )

    assert run_in_bench(code, figures) == ["docs/performance.md", "README.md"]

    assert "130,000" in (tmp_path / "docs/performance.md").read_text()
    assert "rq-core" in (tmp_path / "README.md").read_text()
    assert "130,000" not in (tmp_path / "README.md").read_text(), (
        "a queue that README does not name"
    )


def test_the_tables_of_the_benchmark_show_the_spread_of_each_figure(
    figures: dict[str, Any],
) -> None:
    """Checks a run that measured one peer. For a figure that the peer lacks, the tables say `none`."""
    run = {
        **dict.fromkeys(
            ("near_ping_ms", "near_floor_p50_ms", "far_floor_p50_ms", "near_p50_ms"), 0.5
        ),
        "far_ping_ms": 2.1,
        "spread": {"far_ping_ms": [2.0, 2.5], "near_p50_ms": [0.4, 0.7]},
        "peers": {"other": {"far_p50_ms": 3.0}},
        "peers_spread": {"other": {"far_p50_ms": [2.8, 3.5]}},
    }
    code = (
        "import report; report._facts = lambda d: ''; print(json.dumps([*report.side_by_side(d)]))"
    )

    lines = run_in_bench(code, {**figures, **run})
    apart = run_in_bench(code, {**figures, "far": {**figures, **run}})

    assert (
        "| rq-core (log, caps, replay safety) | 0.5 (0.4 to 0.7) | none | none | none |" in lines[6]
    )
    assert lines[7].startswith("| other | none | none | none | 3 (2.8 to 3.5) | none |")
    assert apart == lines
    assert run_in_bench(code, figures) == []


def test_the_readme_has_the_markers_for_its_table_of_figures() -> None:
    text = (ROOT / "README.md").read_text()

    assert (
        1
        == text.count("<!-- bench: peers-short -->")
        == text.count("<!-- bench: end peers-short -->")
    )


@pytest.mark.parametrize(
    "part",
    ["facts", "promised", "aimed", "floors", "inbox", "redis", "microsecond", "peers", "far"],
)
def test_the_performance_page_has_the_markers_for_each_of_its_tables(part: str) -> None:
    text = (ROOT / "docs/performance.md").read_text()

    assert 1 == text.count(f"<!-- bench: {part} -->") == text.count(f"<!-- bench: end {part} -->")
