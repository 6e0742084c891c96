"""Kept results: what each kind of end stores for waiting clients, and how much Redis keeps."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from rq_core.model.idempotency import load_of
from rq_core.model.outcome import (
    Cancelled,
    Expired,
    Failed,
    Gone,
    Kept,
    Outcome,
    Replaced,
    Succeeded,
)
from rq_core.model.result_encoding import pack_result
from rq_core.model.unique_names import digest_of
from rq_core.protocol.reads.result_reads import BYTES_MAX, Absent, Found
from rq_core.scripts.script import function
from tests.kit.consistency import assert_consistent
from tests.kit.seed import LEASE_MS, WORKER, Seed
from tests.lua.contents.entries import T
from tests.lua.contents.test_names import (
    end_by_a_final_failure,
    end_by_an_unknown_task,
    end_by_cancel,
    end_by_cancelling,
    end_by_cancelling_and_a_lost_lease,
    end_by_its_deadline,
    end_by_poison,
)

HOUR = 3_600_000
LANES = pytest.mark.parametrize("lane", ["", "2+host=h"])


def enqueue(seed: Seed, *ids: str, keep_ms: int = HOUR, **options: Any) -> Any:
    return seed.enqueue(*(seed.job(i, keep_ms=keep_ms, **options) for i in ids))


def look(seed: Seed, *ids: str) -> dict[str, Found]:
    return seed.client.run(seed.client.calls.endings.look("q", ids))


def succeed(seed: Seed, value: str = "", limit: int = 100) -> None:
    claims = seed.claim(limit).jobs
    values = dict.fromkeys(range(1, len(claims) + 1), value) if value else {}
    seed.complete(*claims, values=values)


@LANES
@pytest.mark.parametrize("turn", [False, True], ids=["complete", "turn"])
def test_a_success_stores_the_result_of_its_job(seed: Seed, lane: str, turn: bool) -> None:
    enqueue(seed, "a", lane=lane)
    (claim,) = seed.claim().jobs
    seed.advance(5)
    (seed.turn if turn else seed.complete)(claim, values={1: '"ü"'})
    after = seed.snapshot()

    line = f"succeeded at={T + 5} fence={claim.fence} task=t until={T + 5 + HOUR} bytes=4"
    assert {"a": line} == after["results"]
    assert {"a": '"ü"'} == after["returned"]
    assert {"a": T + 5 + HOUR} == after["kept"]
    assert str(load_of(line)) == after["meta"]["kept_bytes"]
    assert {"a": Succeeded("a", Kept('"ü"', "t"), None)} == look(seed, "a")


def test_enqueue_writes_the_retention_of_a_result_into_the_line_and_the_event(
    seed: Seed,
) -> None:
    enqueue(seed, "a")
    enqueue(seed, "b", unique="keep", name="t/b", expires_in_ms=HOUR)
    enqueue(seed, "c", remember_ms=HOUR)
    events = [e[1]["jobs"] for e in seed.snapshot()["outbox"] if e[1]["type"] == "enqueued"]

    assert f"ready task=t keep={HOUR} seq=1 since={T}" == seed.state("a")
    assert events[0].endswith(f",null,null,null,null,null,null,null,{HOUR}]]")
    assert events[1].endswith(f',null,null,{T + HOUR},"t/b",null,null,null,{HOUR}]]')
    assert events[2].endswith(f",null,null,null,null,{T + HOUR},null,null,{HOUR}]]")


@pytest.mark.parametrize("each", [1, 2])
def test_each_job_that_is_settled_in_a_call_stores_its_own_result(seed: Seed, each: int) -> None:
    """The call settles jobs with a result, jobs without one, and a job that another worker has settled before."""
    enqueue(seed, "a", "b", "c", "d")
    seed.enqueue("plain")
    claims = {claim.id: claim for claim in seed.claim().jobs}
    stolen = claims["d"]
    seed.complete(stolen, worker="w-2", values={1: '"stolen"'})
    held = [claims[i] for i in ("plain", "b", "d", "a", "c")]
    seed.complete(("d", "0-1"), *held, values={3: '"b"', 1: '"no"', 5: '"a"', 6: "!too_large"})

    assert {
        "a": Succeeded("a", Kept('"a"', "t"), None),
        "b": Succeeded("b", Kept('"b"', "t"), None),
        "c": Succeeded("c", missing="too_large"),
    } == look(seed, "a", "b", "c")
    assert {"a", "b"} == seed.snapshot()["returned"].keys()


@pytest.mark.parametrize("turn", [False, True], ids=["complete", "turn"])
def test_jobs_that_were_claimed_together_store_their_own_results(seed: Seed, turn: bool) -> None:
    """The state lines of the jobs begin with the same text. The jobs differ in tasks, in deadlines, and in how long
    results and ids are kept."""
    alike = [f"a{n}" for n in range(20)]
    enqueue(seed, *alike[:6])
    enqueue(seed, "until", expires_in_ms=HOUR)
    enqueue(seed, "once", remember_ms=2 * HOUR)
    seed.enqueue("plain")
    enqueue(seed, "longer", keep_ms=2 * HOUR)
    enqueue(seed, "other", task="u")
    seed.advance(3)
    enqueue(seed, *alike[6:])
    claims = seed.claim().jobs
    values = {claim.id: f'"{claim.id:>{7 + n // 4}}"' for n, claim in enumerate(claims)}
    values |= {"a3": "!too_large", "a9": "!not_json", "plain": ""}
    by_place = {
        n: value if value.startswith("!") else pack_result(value)
        for n, claim in enumerate(claims, 1)
        if (value := values[claim.id])
    }
    del by_place[next(n for n, claim in enumerate(claims, 1) if claim.id == "a12")]
    seed.advance(5)
    (seed.turn if turn else seed.complete)(*claims, values=by_place)
    after = seed.snapshot()

    ids = {*alike, "once", "until", "longer", "other"}
    without = {"a3": "too_large", "a9": "not_json", "a12": "not_kept"}
    assert ids == after["results"].keys()
    assert {i: values[i] for i in ids - without.keys()} == after["returned"]
    for i in ids:
        task, until = "u" if i == "other" else "t", T + 8 + (2 * HOUR if i == "longer" else HOUR)
        how = (
            f"value={without[i]} until={until}"
            if i in without
            else f"until={until} bytes={len(values[i])}"
        )
        once = f" once={T + 2 * HOUR}" if i == "once" else ""
        fence = next(claim.fence for claim in claims if claim.id == i)
        assert f"succeeded at={T + 8} fence={fence}{once} task={task} {how}" == after["results"][i]
        assert until == after["kept"][i]
    digests = {
        job[0]: job[2:]
        for e in after["outbox"]
        if e[1]["type"] == "succeeded"
        for job in json.loads(e[1]["jobs"])
    }
    assert {i: [digest_of(values[i])] if i in after["returned"] else [] for i in digests} == digests


@pytest.mark.parametrize("turn", [False, True], ids=["complete", "turn"])
@pytest.mark.parametrize("size", [1, 40], ids=["one success a call", "all in one call"])
def test_each_success_of_a_job_with_a_remembered_id_stores_the_digest_of_its_own_call_and_its_own_result(
    seed: Seed, turn: bool, size: int
) -> None:
    """The state lines of the jobs differ in the digests of their calls, in tasks, in deadlines, and in how long results
    and ids are kept. A success that is reported with others stores the same bytes as one that is reported alone."""
    told: dict[str, tuple[str, int, int]] = {}

    def add(job_id: str, call: str, once: int = 2 * HOUR, keep: int = HOUR, **options: Any) -> None:
        told[job_id] = call, once, keep
        job = seed.job(job_id, remember_ms=once, keep_ms=keep, call=f"={call}", **options)
        assert seed.enqueue(job).ids == (job_id,)

    for n in range(6):
        add(f"a{n}", f"{n:032x}")
    add("uncalled", "")
    add("uncalled-too", "")
    add("until", f"{7:032x}", expires_in_ms=HOUR)
    add("forgotten", f"{8:032x}", once=4)
    add("forgotten-too", f"{9:032x}", once=4)
    add("longer", f"{10:032x}", once=3 * HOUR)
    add("kept-longer", f"{11:032x}", keep=3 * HOUR)
    add("other", f"{12:032x}", task="u")
    for n in range(20, 26):
        add(f"a{n}", f"{n:032x}")
    claims = seed.claim().jobs
    values = {claim.id: f'"{claim.id:>{7 + n // 4}}"' for n, claim in enumerate(claims)}
    values |= {"a3": "!too_large", "a22": ""}
    seed.advance(5)
    for first in range(0, len(claims), size):
        part = claims[first : first + size]
        given = {
            n: value if value.startswith("!") else pack_result(value)
            for n, claim in enumerate(part, 1)
            if (value := values[claim.id])
        }
        (seed.turn if turn else seed.complete)(*part, values=given)
    after = seed.snapshot()

    without = {"a3": "too_large", "a22": "not_kept"}
    lines, kept = {}, {}
    for claim in claims:
        call, once, keep = told[claim.id]
        until, said = T + 5 + keep, ""
        if once > 5:
            said = f" once={T + once}" + (f" call={call}" if call else "")
        task, kept[claim.id] = "u" if claim.id == "other" else "t", until
        how = f"until={until} bytes={len(values[claim.id])}"
        if claim.id in without:
            how = f"value={without[claim.id]} until={until}"
            kept[claim.id] = max(until, T + once)
        lines[claim.id] = f"succeeded at={T + 5} fence={claim.fence}{said} task={task} {how}"
    assert lines == after["results"]
    assert kept == after["kept"]
    assert {i: v for i, v in values.items() if i not in without} == after["returned"]
    assert str(sum(map(len, lines.values()))) == after["meta"]["results_bytes"]
    assert str(sum(map(load_of, lines.values()))) == after["meta"]["kept_bytes"]
    assert_consistent(after)


def test_the_result_of_a_claim_that_is_no_longer_in_force_is_refused(seed: Seed) -> None:
    enqueue(seed, "a")
    (first,) = seed.claim().jobs
    seed.live(LEASE_MS)
    (second,) = seed.claim().jobs
    seed.complete(first, values={1: '"zombie"'})
    assert {} == seed.snapshot()["returned"] == look(seed, "a")
    seed.complete(second, values={1: '"true"'})
    seed.complete(first, values={1: '"zombie"'})

    assert {"a": Succeeded("a", Kept('"true"', "t"), None)} == look(seed, "a")


OTHER_ENDS: list[tuple[Callable[[Seed], None], Outcome[Any]]] = [
    (end_by_cancel, Cancelled("a")),
    (end_by_cancelling, Cancelled("a")),
    (end_by_cancelling_and_a_lost_lease, Cancelled("a")),
    (end_by_its_deadline, Expired("a")),
    (end_by_a_final_failure, Failed("a", "final")),
    (end_by_an_unknown_task, Failed("a", "unknown_task")),
    (end_by_poison, Failed("a", "poison")),
]


@LANES
@pytest.mark.parametrize("end, outcome", OTHER_ENDS, ids=lambda each: getattr(each, "__name__", ""))
def test_each_end_of_a_job_stores_its_outcome(
    seed: Seed, lane: str, end: Callable[[Seed], None], outcome: Outcome[Any]
) -> None:
    enqueue(seed, "a", lane=lane, expires_in_ms=86_400_000)
    end(seed)
    (found,) = look(seed, "a").values()

    assert outcome.__class__ is found.__class__
    assert getattr(outcome, "reason", "") == getattr(found, "reason", "")


def test_the_outcome_of_a_dead_job_keeps_the_reason_of_the_death_after_pruning(seed: Seed) -> None:
    enqueue(seed, "a")
    end_by_a_final_failure(seed)
    seed.prune("a")

    assert {"a": Failed("a", "final")} == look(seed, "a")


@pytest.mark.parametrize("remember_ms", [0, HOUR])
def test_the_outcome_of_a_replaced_job_names_the_new_job(seed: Seed, remember_ms: int) -> None:
    more = {"remember_ms": remember_ms} if remember_ms else {}
    enqueue(seed, "a", unique="replace", name="t/n", **more)
    enqueue(seed, "b", unique="replace", name="t/n")

    assert {"a": Replaced("a", "b")} == look(seed, "a")


def test_a_second_job_with_the_same_id_does_not_show_the_result_of_the_first_job(
    seed: Seed,
) -> None:
    """Checks a second job that keeps its result, and one that does not."""
    enqueue(seed, "a", "b")
    succeed(seed, '"old"')
    enqueue(seed, "a")
    seed.enqueue("b")
    assert {} == look(seed, "a", "b")
    assert {} == seed.snapshot()["returned"]
    seed.complete(*seed.claim().jobs)

    assert {"a": Succeeded("a"), "b": Absent(None)} == look(seed, "a", "b")


def test_a_result_is_forgotten_at_its_expiry(seed: Seed) -> None:
    enqueue(seed, "a", keep_ms=1_000)
    enqueue(seed, "b", keep_ms=2_000)
    succeed(seed, "1")
    seed.advance(1_000)
    seed.claim(0)
    assert {"b"} == seed.snapshot()["results"].keys() == seed.snapshot()["returned"].keys()
    seed.advance(1_000)
    seed.claim(0)
    after = seed.snapshot()

    assert {} == after["results"] == after["returned"] == after["kept"]
    assert ("0", "0") == (after["meta"]["results_bytes"], after["meta"]["kept_bytes"])


def test_a_sweep_that_reached_its_limit_reports_that_expired_results_are_left(seed: Seed) -> None:
    enqueue(seed, *map(str, range(5)), keep_ms=1_000)
    succeed(seed, "1")
    seed.advance(1_000)

    assert seed.claim(0, sweep_max=3).next_due_ms == seed.now
    assert 2 == len(seed.snapshot()["results"])


def test_the_remembered_id_and_the_result_of_a_job_may_have_different_expiries(seed: Seed) -> None:
    """Checks both orders of the two expiries. Each of the two stays until its own expiry."""
    enqueue(seed, "a", remember_ms=10_000, keep_ms=1_000)
    succeed(seed, "1")
    seed.advance(5_000)
    seed.claim(0)
    assert ("a",) == enqueue(seed, "a", remember_ms=10_000).duplicates
    seed.advance(5_000)
    assert ("a",) == enqueue(seed, "a", remember_ms=1_000, keep_ms=10_000).ids
    succeed(seed, "2")
    seed.advance(5_000)
    seed.claim(0)

    assert {"a": Succeeded("a", Kept("2", "t"), None)} == look(seed, "a")
    assert ("a",) == seed.enqueue("a").ids


def test_a_result_expires_before_a_remembered_id_with_a_later_expiry(seed: Seed) -> None:
    enqueue(seed, "a", "b", keep_ms=1_000, remember_ms=HOUR)
    (claim, other) = seed.claim().jobs
    seed.complete(claim, other, values={1: '"a"', 2: "!too_large"})
    assert {"a": T + 1_000, "b": T + HOUR} == seed.snapshot()["kept"]
    seed.advance(1_000)
    seed.claim()
    after = seed.snapshot()

    assert {} == after["returned"]
    assert {"a": T + HOUR, "b": T + HOUR} == after["kept"]
    assert {
        "a": Succeeded("a", missing="expired"),
        "b": Succeeded("b", missing="too_large"),
    } == look(seed, "a", "b")
    assert "evicted" not in after["meta"]
    assert ("a", "b") == enqueue(seed, "a", "b", remember_ms=HOUR).duplicates
    assert_consistent(after)
    seed.advance(HOUR - 1_000)
    seed.claim()
    assert {} == seed.snapshot()["results"] == seed.snapshot()["kept"]


@pytest.mark.parametrize("once", ["1e400", "9" * 400, "inf", "nan", "1e17", "-5", "1.5", ""])
def test_a_damaged_expiry_in_the_key_results_does_not_stop_a_claim(seed: Seed, once: str) -> None:
    """Redis refuses the damaged number as a score. A claim must not fail on it after its first write."""
    enqueue(seed, "a", keep_ms=1_000, remember_ms=HOUR)
    succeed(seed, pack_result('"a"'))
    line = seed.snapshot()["results"]["a"]
    damaged = line.replace(f" once={T + HOUR}", f" once={once}")
    seed.control.hset(seed.keys("results"), "a", damaged)
    seed.control.hset(seed.keys("meta"), "results_bytes", len(damaged))
    seed.enqueue("b")
    seed.advance(1_000)

    assert ["b"] == [claim.id for claim in seed.claim().jobs]
    assert (
        {} == seed.snapshot()["results"] == seed.snapshot()["returned"] == seed.snapshot()["kept"]
    )


@pytest.mark.parametrize("field", ["once", "keep"])
@pytest.mark.parametrize("value", ["1e400", "inf", "nan", "x", "1e17"])
def test_a_damaged_state_line_does_not_prevent_the_success_of_its_job(
    seed: Seed, field: str, value: str
) -> None:
    enqueue(seed, "a", remember_ms=HOUR)
    (claim,) = seed.claim().jobs
    line = re.sub(rf" {field}=\d+", f" {field}={value}", seed.state("a") or "")
    seed.control.hset(seed.keys("state"), "a", line)

    assert {} == seed.complete(claim, values={1: pack_result('"a"')})
    assert None is seed.state("a")
    seed.advance(2 * HOUR)
    seed.claim()
    assert {} == seed.snapshot()["kept"] == seed.snapshot()["results"]


def test_an_expired_result_is_removed_first_and_does_not_count_as_evicted(seed: Seed) -> None:
    enqueue(seed, "a", keep_ms=1_000, remember_ms=HOUR)
    enqueue(seed, "b", "c", keep_ms=1_000)
    enqueue(seed, "d")
    claims = {claim.id: claim for claim in seed.claim().jobs}
    for i in ("a", "b", "c"):
        seed.complete(claims[i], values={1: pack_result(f'"{i * 398}"')})
    bound(seed, 500)
    seed.advance(1_000)
    seed.complete(claims["d"], values={1: pack_result('"d"')})
    after = seed.snapshot()

    assert Succeeded("a", missing="expired") == look(seed, "a")["a"]
    assert {"d": '"d"'} == after["returned"]
    assert "evicted" not in after["meta"]


def test_a_request_to_log_one_whole_result_does_not_apply_to_the_other_results_of_the_call(
    seed: Seed,
) -> None:
    """The audit mark before a digest asks for the whole result in the log. Only the first result has the mark, and the
    texts of both digests have the same length."""
    seed.attach()
    enqueue(seed, "a", "b")
    claims = seed.claim().jobs
    digest = digest_of('"v"')
    packed = {1: f"+{digest[1:]}", 2: f"{digest}"}
    made = function("complete")
    args = {"slot": "s", "number": 1, "worker": WORKER}
    tail = {place: (note, '"v"') for place, note in packed.items()}
    held = [(claim.id, claim.fence) for claim in claims]
    command = made.filled(made.head(seed.keys, made.on_demand), args, held, tail)
    seed.control.execute_command(*made.loading)
    seed.control.execute_command(*command)

    lines = seed.snapshot()["results"]
    assert [True, False] == ["audit=full" in lines[i] for i in ("a", "b")]


@pytest.mark.parametrize("place", ["nan", "inf", "-1", "x", "1.5", "9", ""])
def test_a_result_is_ignored_if_its_number_belongs_to_no_job_of_the_call(
    seed: Seed, place: str
) -> None:
    enqueue(seed, "a")
    (claim,) = seed.claim().jobs
    made = function("complete")
    args = {"slot": "s", "number": 1, "worker": WORKER}
    head = made.head(seed.keys, made.on_demand)
    command = made.filled(head, args, [(claim.id, claim.fence)], {1: ("", '"v"')})
    command[-4] = place
    seed.control.execute_command(*made.loading)

    assert ["ok"] == seed.control.execute_command(*command)
    assert Succeeded("a", missing="not_kept") == look(seed, "a")["a"]


def test_a_waiting_job_has_no_state_line_if_keep_result_is_its_only_option(seed: Seed) -> None:
    enqueue(seed, "a")
    seed.enqueue(
        seed.job("b", keep_ms=HOUR, lane="2+host=h"), seed.job("c", keep_ms=HOUR, delay_ms=5)
    )
    after = seed.snapshot()

    assert {"b", "c"} == after["state"].keys()
    assert after["jobs"]["a"].startswith(f"task=t keep={HOUR} seq=1 since={T}\n")


def bound(seed: Seed, size: int) -> None:
    seed.client.run(seed.client.calls.admin.configure("q", {"kept_max_bytes": size}))


def test_the_result_that_expires_next_is_evicted_first(
    seed: Seed,
) -> None:
    for n in range(6):
        enqueue(seed, str(n), keep_ms=HOUR + n)
        succeed(seed, '"' + "x" * 998 + '"')
    bound(seed, int(seed.snapshot()["meta"]["kept_bytes"]))
    enqueue(seed, "late", keep_ms=HOUR)
    succeed(seed, '"' + "y" * 998 + '"')
    after = seed.snapshot()

    found = look(seed, *map(str, range(6)), "late")
    assert "evicted" == found["0"].missing  # type: ignore[union-attr]
    assert found["late"].missing is found["5"].missing is None  # type: ignore[union-attr]
    assert int(after["meta"]["kept_bytes"]) <= int(after["meta"]["kept_max_bytes"])
    evicted = [i for i, f in found.items() if f.missing == "evicted"]  # type: ignore[union-attr]
    assert evicted == [str(n) for n in range(len(evicted))]
    assert str(len(evicted)) == after["meta"]["evicted"]


def test_kept_results_stay_within_their_bound(seed: Seed) -> None:
    enqueue(seed, "first")
    bound(seed, 20_000)
    for n in range(60):
        enqueue(seed, *(f"{n}-{m}" for m in range(5)))
        succeed(seed, '"' + "x" * 98 + '"')
        after = seed.snapshot()
        assert int(after["meta"]["kept_bytes"]) <= 20_000
        assert all(look(seed, f"{n}-{m}")[f"{n}-{m}"].missing is None for m in range(5))  # type: ignore[union-attr]
        assert_consistent(after)

    assert len(after["results"]) <= 20_000 / 300


@pytest.mark.parametrize("remember_ms, size", [(0, 400), (HOUR, 1)])
def test_a_small_result_evicts_only_as_many_results_as_needed(
    seed: Seed, remember_ms: int, size: int
) -> None:
    """An evicted result leaves a word in its line, which makes the line longer. This must not evict further results."""
    enqueue(seed, "first")
    seed.cancel("first")
    bound(seed, 10 * size)
    for n in range(30):
        enqueue(seed, str(n), keep_ms=HOUR + n, remember_ms=remember_ms)
        succeed(seed, "1")
        after = seed.snapshot()

        assert look(seed, str(n))[str(n)].missing is None  # type: ignore[union-attr]
        assert int(after["meta"]["kept_bytes"]) <= 10 * size
        assert len(after["returned"]) >= min(n + 1, 8)


def test_an_id_is_still_remembered_after_the_result_of_its_job_was_evicted(seed: Seed) -> None:
    enqueue(seed, "a", remember_ms=HOUR)
    succeed(seed, '"' + "x" * 998 + '"')
    bound(seed, 1_500)
    for n in range(5):
        enqueue(seed, str(n))
        succeed(seed, '"' + "x" * 998 + '"')

    assert {"a": Succeeded("a", missing="evicted")} == look(seed, "a")
    assert ("a",) == enqueue(seed, "a", remember_ms=HOUR).duplicates


def test_a_result_larger_than_the_bound_is_not_stored(seed: Seed) -> None:
    enqueue(seed, "a", "b")
    bound(seed, 900)
    succeed(seed, '"' + "x" * 998 + '"')

    assert {"a": Succeeded("a", missing="full"), "b": Succeeded("b", missing="full")} == look(
        seed, "a", "b"
    )
    assert {} == seed.snapshot()["returned"]


def test_results_are_read_in_parts_of_bounded_size(seed: Seed) -> None:
    long = '"' + "x" * 65_000 + '"'
    ids = [f"{n:02}" for n in range(40)]
    for n in range(0, 40, 10):
        enqueue(seed, *ids[n : n + 10])
        succeed(seed, long)
    assert 40 * len(long) > 2 * BYTES_MAX

    assert {i: Succeeded(i, Kept(long, "t"), None) for i in ids} == look(seed, *ids)


def test_a_job_that_keeps_no_result_has_no_results_line_after_its_end(seed: Seed) -> None:
    seed.enqueue("a")
    succeed(seed)

    assert {"a": Absent(None)} == look(seed, "a")
    assert Gone is not Succeeded
