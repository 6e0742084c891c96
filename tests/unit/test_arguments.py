"""Arguments. Each keeps its type on the way through JSON, or the call is refused."""

from __future__ import annotations

import dataclasses
import enum
import json
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rq_core import ArgumentsInvalid, InvalidTask
from rq_core.app.arguments import Arguments, dump_untyped

if TYPE_CHECKING:
    from pathlib import Path as OnlyForCheckers


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: float
    y: float
    label: bytes = b""


class Address(pydantic.BaseModel):
    street: str
    moved_in: date | None = None


class NotJson:
    pass


def everything(
    when: datetime,
    day: date,
    hour: time,
    span: timedelta,
    key: uuid.UUID,
    price: Decimal,
    raw: bytes,
    colour: Colour,
    points: list[Point],
    home: Address,
    tags: set[str],
    pairs: dict[int, tuple[str, Decimal]],
    kind: Literal["a", "b"],
    small: Annotated[int, pydantic.Field(lt=10)],
    nothing: None,
) -> None: ...


EVERYTHING = {
    "when": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    "day": date(2026, 1, 2),
    "hour": time(3, 4, 5, 6),
    "span": timedelta(days=-3, microseconds=7),
    "key": uuid.UUID(int=7),
    "price": Decimal("1.10"),
    "raw": bytes(range(256)),
    "colour": Colour.BLUE,
    "points": [Point(1.5, -2.0, b"\xff")],
    "home": Address(street="Rue de la Paix", moved_in=date(2020, 2, 29)),
    "tags": {"a", "b"},
    "pairs": {1: ("x", Decimal("0.1"))},
    "kind": "a",
    "small": 3,
    "nothing": None,
}


def trip(arguments: Arguments, **values: Any) -> dict[str, Any]:
    return arguments.load(arguments.dump((), values))


def problems(call: Callable[[], Any]) -> dict[str, str]:
    with pytest.raises(ArgumentsInvalid) as caught:
        call()
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    fields: dict[str, str] = caught.value.facts["fields"]
    return fields


def test_values_of_annotated_types_reach_the_worker_unchanged() -> None:
    loaded = trip(Arguments("everything", everything), **EVERYTHING)

    assert loaded == EVERYTHING
    assert {k: type(v) for k, v in loaded.items()} == {k: type(v) for k, v in EVERYTHING.items()}


Tz = st.integers(-23 * 60, 23 * 60).map(lambda m: timezone(timedelta(minutes=m)))


@pytest.mark.slow
@given(
    when=st.datetimes(timezones=st.none() | Tz),
    span=st.timedeltas(),
    price=st.decimals(allow_nan=False, allow_infinity=False),
    text=st.text(),
    number=st.integers(),
    ratio=st.floats(allow_nan=False, allow_infinity=False),
    raw=st.binary(),
    rows=st.dictionaries(st.text(), st.lists(st.uuids())),
)
def test_any_values_of_plain_types_reach_the_worker_unchanged(**values: Any) -> None:
    """No error would report a changed value."""

    def task(
        when: datetime,
        span: timedelta,
        price: Decimal,
        text: str,
        number: int,
        ratio: float,
        raw: bytes,
        rows: dict[str, list[uuid.UUID]],
    ) -> None: ...

    loaded = trip(Arguments("task", task), **values)

    assert loaded == values


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)  # fmt: skip


def unannotated(value, other=None): ...  # type: ignore[no-untyped-def]


@pytest.mark.slow
@given(JSON)
def test_an_argument_without_an_annotation_arrives_as_its_json_value(value: Any) -> None:
    loaded = trip(Arguments("unannotated", unannotated), value=value)

    assert loaded == {"value": value}


@given(
    st.recursive(
        st.floats() | st.text(st.characters()) | st.binary() | st.just(object()) | st.integers(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
        max_leaves=5,
    )
)
def test_any_argument_either_arrives_or_raises_a_typed_error(value: Any) -> None:
    """No error of pydantic or json reaches the caller, and a worker can load each accepted argument."""
    arguments = Arguments("unannotated", unannotated)
    try:
        dumped = arguments.dump((value,), {})
    except ArgumentsInvalid:
        return

    assert arguments.load(dumped).keys() == {"value"}
    assert json.loads(dumped, parse_constant=pytest.fail).keys() == {"value"}


def open_ones(value, rows: list[dict[str, Any]] = [], some: dict = {}) -> None: ...  # type: ignore[no-untyped-def, type-arg]  # noqa: B006 - as people write it


@pytest.mark.parametrize(
    ("given", "where", "words"),
    [
        ({"value": b"x"}, "value", "is a bytes, and would arrive as a str: annotate its type"),
        ({"value": [1, date(2026, 1, 1)]}, "value.1", "is a date, and would arrive as a str"),
        ({"rows": [{"at": datetime.now(UTC)}]}, "rows.0.at", "is a datetime, and would arrive as"),
        ({"some": {"ids": {1, 2}}}, "some.ids", "is a set, and would arrive as a list"),
        ({"some": {1: "x"}}, "some", "has keys that are no texts"),
        ({"value": Decimal("0.1")}, "value", "is a Decimal, and would arrive as a str"),
    ],
)
def test_a_value_whose_type_json_would_change_is_refused(
    given: dict[str, Any], where: str, words: str
) -> None:
    found = problems(lambda: Arguments("open_ones", open_ones).dump((), {"value": 1} | given))

    assert found.keys() == {where}
    assert words in found[where]


def mixed(a: int, b: str = "b", *, c: bool = False) -> None: ...


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((1,), {}, {"a": 1}),
        ((1, "x"), {"c": True}, {"a": 1, "b": "x", "c": True}),
        ((), {"b": "x", "a": 1}, {"b": "x", "a": 1}),
    ],
)
def test_arguments_that_are_not_passed_are_not_sent(
    args: tuple[Any, ...], kwargs: dict[str, Any], expected: dict[str, Any]
) -> None:
    """A deploy may change a default. Waiting jobs then use the new default, as a direct call does."""
    assert json.loads(Arguments("mixed", mixed).dump(args, kwargs)) == expected


@pytest.mark.parametrize(
    ("args", "kwargs", "fields"),
    [
        ((), {}, {"a": "is required"}),
        ((1,), {"a": 2}, {"a": "given twice"}),
        ((1, "b", True), {}, {"arguments": "at most 2 may be given by position, not 3"}),
        ((1,), {"d": 2}, {"d": "the task has no such argument"}),
    ],
)
def test_the_error_of_a_wrong_call_names_the_argument(
    args: tuple[Any, ...], kwargs: dict[str, Any], fields: dict[str, str]
) -> None:
    assert problems(lambda: Arguments("mixed", mixed).dump(args, kwargs)) == fields


def nested(rows: list[Point], price: float, note: Any = None) -> None: ...


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ({"rows": [{"x": 1, "y": "?"}]}, "rows.0.y", "valid number"),
        ({"price": float("nan")}, "price", "finite"),
        ({"price": "dear"}, "price", "valid number"),
        ({"rows": [Point(float("inf"), 1)]}, "rows.0.x", "NaN or an infinity"),
        ({"note": float("nan")}, "note", "NaN or an infinity"),
        ({"note": [{"deep": float("-inf")}]}, "note.0.deep", "NaN or an infinity"),
        ({"note": "\ud800"}, "note", "lone surrogate"),
        ({"note": {"\udfff": 1}}, "note", "lone surrogate"),
        ({"note": NotJson()}, "note", "no JSON form"),
        ({"note": {"a": [NotJson()]}}, "note.a.0", "is of type"),
        ({"note": LOOP}, "note.0", "contains itself"),
        ({"note": 10**5000}, "note", ""),
    ],
)
def test_the_error_of_an_invalid_value_names_its_field(
    values: dict[str, Any], field: str, words: str
) -> None:
    given = {"rows": [], "price": 1.0, **values}
    found = problems(lambda: Arguments("nested", nested).dump((), given))

    assert list(found) == [field]
    assert words in found[field]


def test_deep_nesting_is_refused_by_the_producer_not_by_the_worker() -> None:
    deep: list[Any] = []
    for _ in range(1_000):
        deep = [deep]

    assert problems(lambda: Arguments("unannotated", unannotated).dump((deep,), {}))


def test_a_long_integer_is_refused_by_the_producer_not_by_the_worker() -> None:
    def task(number: int) -> None: ...

    assert problems(lambda: Arguments("task", task).dump((10**5000,), {}))


@pytest.mark.parametrize(
    "args_json",
    ["[1]", "null", "{", '{"a":', '{"a":"x"}', '{"a":1,"z":1}', "{}", '{"a":1,"b":"\udc80"}', ""],
)
def test_arguments_that_a_task_cannot_load_raise_a_typed_error(args_json: str) -> None:
    assert problems(lambda: Arguments("mixed", mixed).load(args_json))


def test_the_error_of_invalid_arguments_names_the_task_the_fields_and_the_problems() -> None:
    with pytest.raises(ArgumentsInvalid) as caught:
        Arguments("mixed", mixed).dump((), {"b": 5})

    expected = (
        "arguments of task 'mixed' are not valid: a: is required; b: Input should be a valid string"
    )
    assert str(caught.value) == expected
    assert caught.value.facts["task"] == "mixed"
    assert "a: is required" in caught.value.facts["problems"]


def positional_only(a: int, /) -> None: ...
def any_number(*rows: int) -> None: ...
def any_names(**rows: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (positional_only, "remove the '/'"),
        (any_number, "take one list"),
        (any_names, "take one dict"),
    ],
)
def test_signatures_whose_arguments_cannot_be_sent_by_name_are_refused(
    function: Callable[..., None], words: str
) -> None:
    with pytest.raises(InvalidTask, match=words):
        Arguments("task", function)


def of_arbitrary_type(fine: int, odd: NotJson) -> None: ...
def of_nested_arbitrary_type(odd: dict[str, list[NotJson]]) -> None: ...
def of_unimported_type(path: OnlyForCheckers) -> None: ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (of_arbitrary_type, "its argument odd is a NotJson"),
        (of_nested_arbitrary_type, "its argument odd is a"),
        (of_unimported_type, "cannot be resolved.*TYPE_CHECKING"),
    ],
)
def test_unusable_annotations_are_refused_at_the_first_use_of_a_task(
    function: Callable[..., None], words: str
) -> None:
    arguments = Arguments("task", function)

    for call in (arguments.check, lambda: arguments.dump((), {}), lambda: arguments.load("{}")):
        with pytest.raises(InvalidTask, match=words):
            call()


def returns_unresolvable(a: int) -> OnlyForCheckers:
    raise AssertionError("nothing calls it")


def test_the_return_annotation_of_a_task_need_not_resolve() -> None:
    assert trip(Arguments("task", returns_unresolvable), a=1) == {"a": 1}


@pytest.mark.slow
@given(st.dictionaries(st.text(min_size=1), JSON, max_size=4))
def test_enqueue_by_name_encodes_untyped_arguments_as_json(values: dict[str, Any]) -> None:
    assert json.loads(dump_untyped("task", values)) == values


def test_a_task_reads_arguments_that_a_producer_without_the_code_has_sent() -> None:
    """JSON lacks some types. Producers encode these types in the same way with and without the task's code."""
    dumped = dump_untyped(
        "everything", {**EVERYTHING, "points": [{"x": 1.5, "y": -2, "label": ""}]}
    )

    loaded = Arguments("everything", everything).load(dumped)

    assert loaded == {**EVERYTHING, "points": [Point(1.5, -2.0)]}


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"fine": 1, "bad": float("nan")}, "bad"),
        ({"bad": "\ud800"}, "bad"),
        ({"bad": NotJson()}, "bad"),
        ({1: 2}, "1"),
        ([1], "arguments"),
        ("text", "arguments"),
    ],
)
def test_enqueue_by_name_refuses_arguments_that_json_cannot_encode(values: Any, field: str) -> None:
    assert list(problems(lambda: dump_untyped("task", values))) == [field]
