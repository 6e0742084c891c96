"""Names and keys. A name is checked before it becomes part of a key, and all keys of a queue have its hash tag."""

from typing import Any

import pytest

from rq_core import InvalidName
from rq_core.model.keys import KEYS, check_name, queue_keys, queues_key


@pytest.mark.parametrize("name", ["a", "mail.eu-1:x_Y", "9" * 128])
def test_check_name_returns_a_valid_name(name: str) -> None:
    assert check_name("queue", name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a b",
        "a{b}",
        "a|b",
        "a\n",
        "é",
        "x" * 129,
        "a/b",
        '"',
        "\ud800",
        None,
        5,
        b"mail",
        ["a"],
    ],
)
def test_the_error_of_an_invalid_name_states_the_rule_for_names(name: Any) -> None:
    with pytest.raises(InvalidName, match="use 1 to 128 of the characters") as caught:
        check_name("queue", name)

    assert caught.value.facts == {"kind": "queue", "name": name}


def test_all_keys_of_a_queue_share_its_hash_tag() -> None:
    names = queue_keys("mail", "p").all()

    assert len(names) == len(KEYS) == len(set(names))
    assert all(name.startswith("p:{mail}:") for name in names)


def test_the_name_of_an_unknown_redis_key_raises_an_error() -> None:
    with pytest.raises(KeyError):
        queue_keys("mail")("redy")


def test_the_key_of_the_list_of_queues_belongs_to_no_queue() -> None:
    assert queues_key("p") == "p:queues"
