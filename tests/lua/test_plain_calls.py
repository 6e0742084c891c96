"""A queue that uses no feature. Its calls have the same bytes as if no feature existed."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import hiredis
import pytest

from rq_core.model.keys import queue_keys
from rq_core.scripts.script import Script
from tests.kit.clock import timed
from tests.kit.seed import WORKER, Seed
from tests.kit.transports import LossyTransport

PLAIN = "plain"
OF_A_LIFE = ("enqueue", "claim", "turn", "complete")


def packed(command: Sequence[Any]) -> bytes:
    """Return the bytes that a client sends for a call."""
    return bytes(hiredis.pack_command(tuple(command)))


def script_of(command: Sequence[Any]) -> Script:
    (found,) = (timed(name) for name in OF_A_LIFE if timed(name).function == command[1])
    return found


def live(seed: Seed, transport: LossyTransport, batch: str) -> list[Sequence[Any]]:
    """Enqueue, claim and complete five jobs, some of them in a turn. Return the calls."""
    transport.sent.clear()
    seed.enqueue(f"{batch}-1")
    seed.enqueue(*(f"{batch}-{n}" for n in range(2, 6)))
    held = seed.claim(1).jobs
    held = seed.turn(*held, limit=4).jobs
    seed.complete(*held)
    return transport.calls


def use_all(seed: Seed, transport: LossyTransport) -> list[Sequence[Any]]:
    """Use each feature in another queue, and return the calls.

    The features: names, remembered ids, kept results, deadlines, delays, priorities, steps, progress and caps.
    """
    other = seed.of("other")
    transport.sent.clear()
    other.cap("task=t", 5)
    other.enqueue(other.job("named", name="t/a=1"), other.job("low", priority="low", delay_ms=10))
    other.enqueue(other.job("once", remember_ms=60_000), other.job("late", expires_in_ms=60_000))
    other.enqueue(other.job("kept", keep_ms=60_000), other.job("capped", scopes=["task=t"]))
    held = other.claim().jobs
    other.save(held[0])
    other.show(held[0], says="1/2")
    other.turn(*held, values={1: "1"})
    return [call for call in transport.calls if "rqc:{other}:meta" in call]


@contextmanager
def recorded(url: str) -> Iterator[tuple[Seed, LossyTransport]]:
    transport = LossyTransport(url)
    with Seed(url, PLAIN, transport=transport) as seed:  # type: ignore[arg-type]
        yield seed, transport


def of_life(calls: Sequence[Sequence[Any]]) -> bytes:
    """Return the bytes of the calls that every job needs.

    The count at the end of a slot's name is left out. Calls that were repeated to load a function are left out, too.
    """
    found: list[bytes] = []
    for call in calls:
        at = 3 + int(call[2])
        sent = packed([*call[:at], str(call[at]).rpartition(".")[0], *call[at + 1 :]])
        if call[1] in {timed(name).function for name in OF_A_LIFE} and sent not in found[-1:]:
            found.append(sent)
    assert len(found) == len(OF_A_LIFE) + 1
    return b"".join(found)


def test_features_that_another_queue_uses_do_not_change_the_calls_to_a_plain_queue(
    valkey_url: str,
) -> None:
    with recorded(valkey_url) as (alone, transport):
        expected = of_life(live(alone, transport, "job"))
        alone.control.flushall()
    with recorded(valkey_url) as (beside, transport):
        others = use_all(beside, transport)
        found = of_life(live(beside, transport, "job"))

    turn = next(call for call in others if call[1] == timed("turn").function)
    assert turn[2] == len(timed("turn").all_keys), "the other queue's calls carry the keys"
    assert found == expected


@pytest.mark.parametrize("name", OF_A_LIFE)
def test_a_call_to_a_plain_queue_has_only_its_own_keys_arguments_and_records(
    valkey_url: str, name: str
) -> None:
    """The header of a script lists its keys, arguments and records. The call has no key on demand and no Tail."""
    with recorded(valkey_url) as (seed, transport):
        live(seed, transport, "first")
        calls = [call for call in live(seed, transport, "job") if script_of(call).name == name]

    made, keys = timed(name), queue_keys(PLAIN)
    records = {"enqueue": [1, 4], "claim": [0], "turn": [1], "complete": [4]}[name]
    assert len(calls) == len(records)
    for call, count in zip(calls, records, strict=True):
        behind = 3 + len(made.keys)
        head = ["FCALL", made.function, len(made.keys), *map(keys, made.keys)]
        assert packed(call[:behind]) == packed(head)
        assert len(call) == behind + len(made.args) + count * len(made.each)
        assert not {keys(key) for key in set(made.all_keys) - {*made.keys}} & set(map(str, call))
        args = dict(zip(made.args, call[behind:], strict=False))
        assert args.get("worker", WORKER) == WORKER
        if name == "enqueue":
            (kind,) = json.loads(args["kinds"])
            assert kind == [2, 0, "task=t", '"t","normal",3,3,"', ""]
            fields = list(
                zip(*[iter(call[behind + len(made.args) :])] * len(made.each), strict=True)
            )
            digests = {len(digest) for _, _, digest, _, _ in fields}
            assert [(kind, lane) for _, kind, _, lane, _ in fields] == [("1", "")] * count
            assert digests == {32}, "no name and nothing to compare by stands behind a digest"
