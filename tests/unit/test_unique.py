"""Unique names of jobs, and the answer to a producer if another job holds the name."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from rq_core import (
    App,
    Cap,
    Debounce,
    InvalidOption,
    InvalidTask,
    Latest,
    Throttle,
    Unique,
    UniqueHeld,
    testing,
)
from rq_core.model.settings import SLOT_ANSWER
from rq_core.model.unique_names import NAME_MAX, name_field, unique_name


@dataclass
class Row:
    tags: frozenset[str]
    of: dict[str, int]


def name_of(unique: Unique, *args: Any, **kwargs: Any) -> str:
    app = App()

    @app.task(unique=unique)
    def send(
        tenant: str, month: str = "now", tags: set[str] | None = None, row: Row | None = None,
        price: Decimal = Decimal(1),
    ) -> None: ...  # fmt: skip

    return send.job(*args, **kwargs).name


def test_a_unique_name_is_the_same_whether_a_default_is_passed_or_omitted() -> None:
    for unique in (Unique(), Unique(per=("tenant", "month", "price"))):
        names = {
            name_of(unique, "acme"),
            name_of(unique, tenant="acme", month="now"),
            name_of(unique, "acme", price=Decimal(1)),
        }
        assert 1 == len(names)
        assert name_of(unique, "acme", "then") not in names


def test_the_unique_name_does_not_depend_on_the_order_of_sets_and_keys() -> None:
    one = name_of(Unique(), "a", tags={"x", "y", "z"}, row=Row(frozenset("abc"), {"k": 1, "l": 2}))
    other = name_of(
        Unique(), "a", tags={"z", "y", "x"}, row=Row(frozenset("cba"), {"l": 2, "k": 1})
    )

    assert one == other


@pytest.mark.slow
def test_a_unique_name_is_the_same_in_every_process() -> None:
    """The order of a set of strings is different in each Python process."""
    program = (
        "from tests.unit.test_unique import *;"
        "print(name_of(Unique(), 'a', tags={str(n) for n in range(20)}))"
    )
    names = {
        subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
        ).stdout
        for _ in range(3)
    }

    assert 1 == len(names)


def test_a_unique_name_shows_the_values_of_arguments_only_if_per_names_them() -> None:
    assert "send/tenant=a%20b%2Fc" == name_of(Unique(per="tenant"), "a b/c")
    assert "send/tenant=acme,month=now" == name_of(Unique(per=("tenant", "month")), "acme")
    assert "acme" not in name_of(Unique(), "acme")


def test_texts_that_look_alike_have_different_unique_names() -> None:
    texts = ["1", 'a"b', "a\\b", "null", "ä", "a,b=c", "", "x" * 500, "x" * 501]
    names = [name_of(Unique(per="tenant"), text) for text in texts]

    assert len(set(names)) == len(texts)
    assert all(len(name) <= NAME_MAX + 40 and " " not in name and "|" not in name for name in names)


def test_values_of_different_types_have_different_unique_names() -> None:
    values = [None, 1, 1.5, 1e16, -2, True, [1], {"a": 1}]
    texts = [
        "null", "1", "1.5", "1e+16", "-2", "true", "[1]", '{"a":1}', "false", "NaN", "-Infinity", "{}",
        "007", "-", "1.", "Null", "", "a{", '"', '"1"', "%221%22",
    ]  # fmt: skip
    app = App()

    @app.task(unique=Unique(per="value"))
    def send(value: Any) -> None: ...

    names = [send.job(value).name for value in values + texts]
    assert len(set(names)) == len(names)
    assert ["send/value=007", "send/value=-", "send/value="] == [
        send.job(value).name for value in ("007", "-", "")
    ]


def test_a_producer_without_the_code_makes_the_same_unique_name_as_a_key_function() -> None:
    app = App()

    @app.task(unique=Unique(per=lambda value: value))
    def send(value: Any) -> None: ...

    naming = send.options.unique.naming(send.arguments)
    for value, key in ((7, "7"), ("7", "7"), ([1], "[1]"), ("acme", "acme"), (True, "true")):
        assert naming.name("send", {}, key) == send.job(value).name
    assert naming.name("send", {}, "null") != send.job(None).name


def test_no_unique_name_equals_the_field_of_a_call_slot() -> None:
    assert name_field(unique_name("a", {"b": "1"})) != f"unique{SLOT_ANSWER}"
    assert "/" in name_field(unique_name("a", None, digest="0"))


@pytest.mark.parametrize("options", [{"per": 5}, {"per": ()}, {"on_duplicate": "drop"}])
def test_an_invalid_option_of_unique_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        Unique(**options)


@pytest.mark.parametrize(
    ("unique", "caps"),
    [
        (Unique(per="nothing"), []),
        ("tenant", []),
        (Unique(on_duplicate="replace"), [Cap(1, on_full="discard")]),
        (Unique(on_duplicate="replace"), [Cap(1, max_waiting=3)]),
    ],
)
def test_a_task_whose_unique_option_does_not_fit_is_refused(unique: Any, caps: list[Cap]) -> None:
    app = App()

    def send(tenant: str) -> None: ...

    with pytest.raises(InvalidTask):
        app.task(unique=unique, caps=caps)(send)
    assert {} == app.tasks


@pytest.mark.parametrize("given", [Unique, Throttle, Debounce, Latest])
def test_an_option_that_is_a_class_is_refused_and_the_error_shows_how_to_write_an_instance(
    given: Any,
) -> None:
    with pytest.raises(
        InvalidOption, match=rf"unique='?{given.__name__}.*write unique={given.__name__}\(…\)"
    ):
        App().task(unique=given)


@pytest.mark.parametrize("how", ["keep", "replace", "reject"])
def test_the_answer_to_a_duplicate_call_follows_the_option_on_duplicate(how: Any) -> None:
    app = App()

    @app.task(queue="q", unique=Unique(on_duplicate=how))
    def send(tenant: str) -> None: ...

    with testing.fake(app):
        first = send.enqueue("acme")
        by_name = {"tenant": "acme"}
        if how == "reject":
            with pytest.raises(UniqueHeld, match=first.id):
                send.enqueue("acme")
            with pytest.raises(UniqueHeld):
                app.enqueue("q", "send", by_name)
            return
        second = send.with_options(expires=60).enqueue("acme")
        third = app.enqueue("q", "send", by_name)
        told = app.enqueue_many([send.job("acme"), send.job("umbrella")])

    if how == "keep":
        assert {first.id} == {second.id, third.id}
        assert [True, True] == [second.duplicate, third.duplicate]
        assert (1, 1) == (len(told.ids), len(told.held))
    else:
        assert [None, first.id, second.id] == [h.replaced for h in (first, second, third)]
        assert (2, third.id) == (len(told.ids), told.replaced[0][1])
