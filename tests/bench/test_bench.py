"""``scripts/bench`` works, with tiny numbers: every figure that it is read for is there. How fast, is not judged."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def bench(tmp_path: Path, *words: str, seconds: float = 110) -> dict[str, Any]:
    path = tmp_path / "figures.json"
    command = [str(ROOT / "scripts" / "bench"), "--tiny", "--json", str(path), *words]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert "floors of the same run" in done.stdout
    document: dict[str, Any] = json.loads(path.read_text())
    return document


FIGURES = {
    "enqueue": """enqueue_bulk_per_s bulk_floor_per_s pipeline_floor_per_s enqueue_one_per_s
        evalsha_floor_per_s""",
    "work": """drain_async_per_s drain_threads_per_s drain_async_2w_per_s drain_floor_per_s
        latency_p50_ms latency_p99_ms latency_floor_ms""",
    "redis": """redis_us_per_job redis_us_per_job_capped redis_us_per_job_alone redis_us_bare_call
        redis_bytes_per_job depth_ratio script_max_ms""",
    "audit": """mirror_sqlite_per_s mirror_sqlite_floor_per_s end_to_end_sqlite_per_s
        mirror_postgres_per_s mirror_postgres_floor_per_s end_to_end_postgres_per_s""",
    "start": "import_ms help_ms",
}


@pytest.mark.parametrize("part", FIGURES)
def test_a_part_measures_its_figures(tmp_path: Path, part: str) -> None:
    document = bench(tmp_path, "--only", part)

    assert document["failures"] == {}
    for figure in FIGURES[part].split():
        low, high = document["spread"][figure]
        assert 0 < low <= document[figure] <= high, figure
    if part == "work":
        assert document["idle_commands_per_s"] >= 0
    assert document["facts"]["sizes"] == "tiny"
