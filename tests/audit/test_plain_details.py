"""`audit verify` does not apply its rules to an event's detail that a regular expression recognizes as right. So no
detail with a fault may match it, and the details that most events have should match it."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest

from rq_core.model.table.event_fields import JOB_EVENT_FIELDS
from rq_core.model.table.machine import Event
from sql_audit.mirror.field_types import KINDS, PLAIN_JSON
from sql_audit.proof.replay import contradictions

VALUES: tuple[Any, ...] = (
    None, True, 0, -0.0, -1, 1.5, 10**17, 10**18, 2**63, "", "a", "x" * 512, "x" * 513, "+" * 16_385, "normal", "soon",
    'say "yes"', "a\\b", "a\nb", "a\0b", "\x7f", "é", "\u2028", "\ufffd", ":", '":', [], {}, [["tenant=a", 1]],
)  # fmt: skip
"""Values that the mirror writes into some fields, and values that it never writes."""

ENQUEUED = '{"seq":7,"priority":"normal","max_attempts":3,"max_losses":3,"digest":"9f","lane":"2+tenant=a"}'


def is_plain(kind: str, detail: str) -> bool:
    return contradictions._PLAIN[kind](detail) is not None


def faults(kind: str, detail: str) -> list[Any]:
    return list(contradictions._of_event(kind, detail))


def right_value(name: str) -> Any:
    """Return a value that the field ``name`` may have."""
    values: tuple[Any, ...] = (7, "a", "normal", "ready")
    return next(value for value in values if name not in KINDS or KINDS[name]((value,)))


@pytest.mark.parametrize("event", JOB_EVENT_FIELDS)
def test_no_detail_with_a_fault_is_plain(event: Event) -> None:
    kind = str(event)
    right = {name: right_value(name) for name in contradictions._ALWAYS.get(event, ())}
    names = [field.name for field in JOB_EVENT_FIELDS[event]] + ["why", "bogus"]
    for name, value in product(names, VALUES):
        for facts in ({**right, name: value}, {name: value, **right}, {name: value}):
            for text in (
                json.dumps(facts, ensure_ascii=False, separators=(",", ":")),
                json.dumps(facts, separators=(",", ":")),
            ):
                assert not is_plain(kind, text) or not faults(kind, text), (kind, text[:100])


@pytest.mark.parametrize(
    "detail",
    [
        ENQUEUED.replace(":7", ":07"),
        ENQUEUED.replace(":7", ":7.0"),
        ENQUEUED.replace(":7", ":-7"),
        ENQUEUED.replace(":7", ": 7"),
        ENQUEUED.replace('"seq":7,', '"seq":7,"seq":7,'),
        ENQUEUED.replace("9f", "\\u0039f"),
        ENQUEUED.replace(',"lane"', ',"lane":"2+tenant=b","lane"'),
        ENQUEUED.replace("}", ",}"),
        ENQUEUED.replace(',"digest":"9f"', ""),
        ENQUEUED[:-1],
        ENQUEUED + " ",
        ENQUEUED + "\n",
        "{,}",
        "",
    ],
)
def test_a_text_that_the_mirror_does_not_write_is_not_plain(detail: str) -> None:
    assert not is_plain("enqueued", detail)


@pytest.mark.parametrize(
    ("kind", "detail"),
    [
        ("enqueued", ENQUEUED),
        ("enqueued", ENQUEUED.replace('"seq"', '"due_ms"').replace("}", ',"expires_ms":8}')),
        ("succeeded", '{"fence":"7-1"}'),
        ("succeeded", '{"fence":"7-1","value_digest":"9f"}'),
        ("promoted", '{"seq":7}'),
        ("claimed", "{}"),
        ("step_saved", '{"fence":"7-1","life":"9f","entry":1,"name":"a","digest":"9f"}'),
    ],
)
def test_a_common_detail_is_plain(kind: str, detail: str) -> None:
    assert faults(kind, detail) == []
    assert is_plain(kind, detail)


@pytest.mark.parametrize("check", PLAIN_JSON)
def test_the_plain_json_of_a_check_is_that_of_fields(check: Any) -> None:
    assert check in KINDS.values()
