"""Each end of a child at each moment in its parent's life, on a real server.

Each row of the table is an end and a moment. In the test of a row, a parent has one child, and the child ends in this
way at this moment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import pytest

from rq_core.model.durable.children import child_id
from rq_core.model.job import Claim
from tests.kit.families import LOOK_MS, PARENT, PARENTS, PARTS, Family, family


class End(NamedTuple):
    """A way in which a child ends, and the outcome that its parent gets."""

    name: str
    is_claimed: bool
    """True if a worker runs the child before it ends."""
    outcome: str
    """The class of the outcome that the parent gets."""
    is_told: bool
    """True if a worker tells the parent at once. Otherwise the parent finds the end by itself."""
    is_requeued: bool
    """True if a requeue of the dead parent lets the child run again."""
    after_cancel: str
    """The class of the child's outcome if its parent is cancelled before the child ends."""


ENDS: Final = (
    End("success", True, "Succeeded", True, False, "Succeeded"),
    End("death", True, "Failed", True, True, "Cancelled"),
    End("too many losses", True, "Failed", False, True, "Cancelled"),
    End("expiry", False, "Expired", False, False, "Cancelled"),
    End("cancel", False, "Cancelled", False, False, "Cancelled"),
    End("prune", True, "Failed", True, False, "Cancelled"),
    End("delete of its queue", False, "Gone", False, False, "Absent"),
)
BEFORE: Final = ("before it waits", "before it parks", "while it is parked")
"""The moments at which the parent is alive."""
AFTER: Final = ("after it died", "after it was cancelled")
WORDS: Final = {"Absent": "nothing: Redis does not know it", "Gone": "`Gone`"}
PAGE: Final = Path(__file__).parents[2] / "docs/how-to/children.md"
ROWS: Final = [(end, moment) for end in ENDS for moment in (*BEFORE, *AFTER)]


def row_of(end: End) -> str:
    """Return the row of the page's table for an end."""
    found = f"`{end.outcome}`"
    again = "it runs again" if end.is_requeued else found
    after = WORDS.get(end.after_cancel, f"`{end.after_cancel}`")
    return f"| {end.name} | {found} | {'at once' if end.is_told else 'when it looks'} | {again} | {after} |"


def finish(of: Family, end: End, claim: Claim | None) -> None:
    """End the child. ``claim`` is the claim of the child, or None if no worker has claimed it."""
    match end.name:
        case "success":
            of.succeed(claim)
        case "death":
            of.fail(claim)
        case "too many losses":
            of.lose()
        case "expiry":
            of.expire()
        case "cancel":
            of.run(of.client.calls.admin.cancel(PARTS, [child_of(of)]))
        case "prune":
            of.fail(claim)
            of.run(of.client.calls.admin.prune(PARTS, [child_of(of)]))
        case _:
            of.delete_parts()


def child_of(of: Family) -> str:
    """Return the id of the parent's child."""
    (life,) = {key for key in of.control.hkeys(f"rqc:{{{PARENTS}}}:boxes") if len(key) == 16}
    return child_id(life, "pages", 0)


def ended_at(of: Family, end: End, moment: str) -> tuple[str, bool]:
    """Let the child end at this moment of its parent's life, and then let the parent run on.

    Returns the child's id, and whether the parent learned of the end without reading the child's state by itself.
    """
    child: list[str] = []

    def happen() -> None:
        child.append(child_of(of))
        finish(of, end, of.claim(PARTS) if end.is_claimed else None)

    if moment in BEFORE:
        of.moments[moment] = happen
        of.run_parent()
        of.at("while it is parked")
        return child[0], of.work_off()
    of.run_parent()
    assert "parked" == of.parent
    child.append(child_of(of))
    families = of.client.calls.families
    if moment == "after it was cancelled":
        claim = of.claim(PARTS) if end.is_claimed else None
        assert {PARENT: "cancelled"} == of.run(families.cancel(PARENTS, [PARENT]))
        finish(of, end, claim)
        return child[0], True
    of.fails_next = True
    of.pass_time(LOOK_MS)
    assert of.run_parent()
    assert "dead" == of.parent
    happen()
    assert {PARENT: "requeued"} == of.run(families.requeue(PARENTS, [PARENT]))
    if end.is_requeued:
        of.run_parent()
        of.succeed(of.claim(PARTS))
    return child[0], of.work_off()


@pytest.mark.parametrize(("end", "moment"), ROWS, ids=[f"{e.name}, {m}" for e, m in ROWS])
def test_a_parent_gets_the_right_outcome_of_a_child_whenever_the_child_ends(
    redis_url: str, end: End, moment: str
) -> None:
    # A parent that dies must do so before its child's deadline; another must not look before.
    expires_s = 20.0 if moment == "after it died" else 2.0
    with family(redis_url, expires_s=expires_s) as of:
        child, needs_no_look = ended_at(of, end, moment)
        parent, part = of.events(PARENTS, PARENT), of.events(PARTS, child)

        if moment == "after it was cancelled":
            assert not of.run_parent()
            assert (0, 1, []) == (parent["succeeded"], parent["cancelled"], of.got)
            assert end.after_cancel == of.outcome(PARTS, child)
        else:
            again = moment == "after it died" and end.is_requeued
            assert [["Succeeded" if again else end.outcome]] == of.got
            assert needs_no_look is (end.is_told or moment == "after it died")
            assert (1, 0) == (parent["succeeded"], parent["cancelled"])
            assert int(end.outcome == "Succeeded" or again) == part["succeeded"]
        if end.outcome != "Gone":
            assert 1 == part["enqueued"]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_parent_gets_the_outcome_of_each_of_its_children_once(redis_url: str, count: int) -> None:
    with family(redis_url, count) as of:
        of.run_parent()
        for _ in range(count):
            of.succeed(of.claim(PARTS))
        of.work_off()

        assert [["Succeeded"] * count] == of.got
        # Of each child, of the call that enqueued them, and the waits.
        assert count + 1 <= of.events(PARENTS, PARENT)["step_saved"] <= count + 1 + count


def test_the_docs_page_about_children_has_the_table_of_the_ends_of_a_child() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    first = lines.index(row_of(ENDS[0]))

    assert [row_of(end) for end in ENDS] == lines[first : first + len(ENDS)]


def test_a_map_without_calls_ends_in_the_first_run(redis_url: str) -> None:
    with family(redis_url, 0) as of:
        of.run_parent()

        assert ("succeeded", [[]]) == (of.parent, of.got)
