"""The diagram of job states, which agrees with the table of transitions, and needs no script and no other host."""

from xml.etree import ElementTree as ET

import pytest

from rq_core.model.table.machine import TRANSITIONS, State
from scripts.docs import diagram
from scripts.docs.site import foreign

_SVG = "{http://www.w3.org/2000/svg}"


def test_each_transition_of_the_table_is_an_arrow_of_the_diagram_with_its_events() -> None:
    tree = ET.fromstring(diagram.svg())  # noqa: S314 - it is our own
    words = [span.text for span in tree.iter(f"{_SVG}tspan")]
    pairs = {(t.source, t.target, t.event) for t in TRANSITIONS}

    assert sorted(str(event) for _, _, event in pairs) == sorted(map(str, words))
    paths = [p for p in tree.iter(f"{_SVG}path") if p.get("marker-end")]
    assert len(paths) == len({(source, target) for source, target, _ in pairs})
    assert {str(state) for state in State} <= {text.text for text in tree.iter(f"{_SVG}text")}


def test_the_diagram_refuses_a_transition_that_it_cannot_draw() -> None:
    found = diagram.arrows()

    with pytest.raises(ValueError, match=r"no way, or one too many, for \[\('dead', 'running'\)\]"):
        diagram.svg(found | {("dead", "running"): ["claimed"]})
    with pytest.raises(ValueError, match=r"\('scheduled', 'ready'\)"):
        diagram.svg({ends: names for ends, names in found.items() if "promoted" not in names})


def test_the_diagram_contains_no_script_and_loads_nothing_from_other_hosts() -> None:
    picture = diagram.svg()

    assert "<script" not in picture
    assert [] == list(foreign(picture))
