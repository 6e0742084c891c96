"""Each mutant applies to the current code, tests catch the quick mutants, and the runner reports no false catch."""

from __future__ import annotations

import ast
import itertools
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from tests.rigs.mutants import planting
from tests.rigs.mutants.planting import (
    ROOT,
    TABLE,
    DoesNotApply,
    Mutant,
    Runner,
    Verdict,
    load,
    row_start,
    rows_of,
)

MUTANTS = load()


def test_each_mutant_applies_to_the_current_code() -> None:
    """Fails if a change of the code removed the text that a mutant replaces."""
    texts = {each.file: (ROOT / each.file).read_text(encoding="utf-8") for each in MUTANTS}
    wrong = []
    for mutant in MUTANTS:
        try:
            changed = mutant.apply(texts[mutant.file])
            assert changed != texts[mutant.file], f"{mutant.name} changes nothing"
            if mutant.file.endswith(".py"):
                compile(changed, mutant.file, "exec")
        except (AssertionError, DoesNotApply, SyntaxError) as error:
            wrong.append(f"{mutant.name}: {error}")

    assert wrong == []


def test_the_mutants_have_unique_names_and_exactly_six_are_quick() -> None:
    names = [mutant.name for mutant in MUTANTS]

    assert len(set(names)) == len(names) >= 15
    assert sum(mutant.quick for mutant in MUTANTS) == 6


def is_slow(mark: ast.expr, case: str) -> bool:
    """Return whether a pytest mark makes one case of a test slow. ``case`` is the text in brackets after the test's
    name."""
    if not ast.unparse(mark).startswith("pytest.mark.parametrize"):
        return "mark.slow" in ast.unparse(mark)
    return any(
        isinstance(node, ast.Call)
        and ast.unparse(node.func) == "pytest.param"
        and "mark.slow" in ast.unparse(node)
        and isinstance(value := node.args[0], ast.Constant)
        and str(value.value) in case.split("-")
        for node in ast.walk(mark)
    )


def test_no_catcher_of_a_mutant_is_a_slow_test() -> None:
    """`scripts/test` omits slow tests, and must still catch every mutant."""
    names: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for mutant in MUTANTS:
        test, _, case = mutant.catcher.rstrip("]").partition("[")
        file, *_classes, name = test.split("::")
        names[file].add((name, case))
    slow = []
    for file, catchers in names.items():
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        marks = [
            n.value
            for n in tree.body
            if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "pytestmark"
        ]
        classes = [node.body for node in tree.body if isinstance(node, ast.ClassDef)]
        found = {
            node.name: node for node in itertools.chain(tree.body, *classes)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }  # fmt: skip
        assert {name for name, _ in catchers} <= found.keys(), file
        slow += [
            f"{file}::{name}[{case}]"
            for name, case in sorted(catchers)
            if any(is_slow(mark, case) for mark in (*marks, *found[name].decorator_list))
        ]

    assert slow == []


def test_the_page_of_mutants_lists_exactly_the_planted_mutants() -> None:
    rows = rows_of(TABLE.read_text(encoding="utf-8"))

    assert list(rows) == [mutant.name for mutant in MUTANTS], "run scripts/prove/mutants"


def test_each_row_on_the_page_of_mutants_agrees_with_the_list_of_mutants() -> None:
    rows = rows_of(TABLE.read_text(encoding="utf-8"))

    changed = [each.name for each in MUTANTS if not rows[each.name].startswith(row_start(each))]

    assert changed == [], "run scripts/prove/mutants with these names"


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_the_quick_mutants_are_caught() -> None:
    results = Runner(ROOT).run([mutant for mutant in MUTANTS if mutant.quick])

    missed = [each for each in results if each.verdict is not Verdict.CAUGHT]
    assert (len(results), missed) == (6, [])


# The runner, on a project of two lines.

MUTANT = Mutant(
    name="more", bug="two is three", file="sums/__init__.py", find="2", replace="3",
    catcher="tests/test_sums.py::test_two", sees="assert 3 == 2",
)  # fmt: skip


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    # Nothing but what the runner itself needs, so that a run takes half a second.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_timeout")
    (tmp_path / "sums").mkdir()
    (tmp_path / "sums" / "__init__.py").write_text("two = 1 + 1 if False else 2\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_sums.py").write_text(
        "import pytest, sums\n"
        "def test_two():\n    assert sums.two == 2\n"
        "def test_nothing():\n    assert sums\n"
        "@pytest.fixture\ndef broken():\n    assert sums.two == 2\n"
        "def test_around(broken):\n    pass\n"
    )
    return Runner(tmp_path, ("sums", "tests"))


FOOLED: list[tuple[dict[str, str], Verdict, str]] = [
    ({}, Verdict.CAUGHT, "assert 3 == 2"),
    ({"catcher": "tests/test_sums.py::test_nothing"}, Verdict.SURVIVED, "passes"),
    ({"catcher": "tests/test_sums.py::test_gone"}, Verdict.UNPROVEN, "nothing ran"),
    ({"catcher": "tests/test_sums.py::test_around"}, Verdict.BROKEN, "assert 3 == 2"),
    ({"sees": "assert 7"}, Verdict.BROKEN, "assert 3 == 2"),
]


@pytest.mark.slow
def test_a_mutant_counts_as_caught_only_if_its_catcher_fails_with_the_expected_words(
    runner: Runner,
) -> None:
    mutants = [replace(MUTANT, **changed) for changed, _, _ in FOOLED]  # type: ignore[arg-type]

    results = runner.run(mutants)

    assert [each.verdict for each in results] == [verdict for _, verdict, _ in FOOLED]
    for result, (_, _, seen) in zip(results, FOOLED, strict=True):
        assert seen in result.seen


@pytest.mark.parametrize("find", ["5", "1"])
def test_a_mutant_that_does_not_apply_is_an_error_before_any_test_runs(
    runner: Runner, find: str
) -> None:
    with pytest.raises(DoesNotApply, match="times, not once"):
        runner.run([MUTANT, replace(MUTANT, find=find)])


def test_the_page_of_mutants_contains_no_local_path() -> None:
    said = f"E  TimeoutExpired: Command '['{planting.ROOT}/.venv/bin/python', '-m', 'rq_core.cli']' timed out"

    assert (
        planting._line(said)
        == "TimeoutExpired: Command '['.venv/bin/python', '-m', 'rq_core.cli']' timed out"
    )
