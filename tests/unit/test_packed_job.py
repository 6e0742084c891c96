"""Jobs that are packed into rows of an inbox, and unpacked again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rq_core import App, Cap, Debounce, NewJob, Priority, Unique
from rq_core.model.job import profile
from rq_core.model.packed_job import Unreadable, pack, unpack
from rq_core.protocol.calls.enqueue import pack_jobs

app = App(audit_payload="full")


@app.task(
    queue="mail",
    caps=[Cap(3, per="tenant"), Cap(9, on_full="discard")],
    unique=Unique("tenant"),
    keep_result=60,
    audit_result="full",
    timeout=30,
)
def send(tenant: str, to: str) -> str:
    return to


@app.task(unique=Debounce(5, per="n"))
def index(n: int) -> None: ...


def read(job: NewJob, packed: str | None = None, **changed: Any) -> NewJob:
    columns: dict[str, Any] = {
        "queue": job.queue, "job_id": job.id, "task": job.profile.task, "args": job.args_json,
    }  # fmt: skip
    return unpack(pack(job) if packed is None else packed, **(columns | changed))


FULL = send.with_options(
    priority="high",
    max_attempts=7,
    max_losses=9,
    id="order-1",
    remember=900,
    expires=3600,
    headers={"trace": "é"},
)
JOBS = {
    "plain": NewJob("j-1", "mail", profile("send"), "{}"),
    "everything": FULL.job("a cmé/+", to="x@y.z"),
    "debounced": index.job(7),
    "limits that the worker decides": NewJob(
        "j-2", "mail", profile("send", Priority.LOW, None, None, 1), '{"a":"\\n"}', due_ms=10**13
    ),
    "delayed": NewJob("j-3", "mail", profile("send"), "{}", delay_ms=1000, call="=", ties='{"remember":5}'),
}  # fmt: skip


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_unpacking_a_row_of_an_inbox_gives_the_job_that_was_packed_into_the_row(
    job: NewJob,
) -> None:
    assert job == read(job)
    assert pack_jobs([job]) == pack_jobs([read(job)])


def test_the_packed_form_of_a_job_without_options_is_empty() -> None:
    assert "{}" == pack(JOBS["plain"])


def test_a_delay_and_a_deadline_of_a_packed_job_count_from_the_insert() -> None:
    job = NewJob("j-1", "mail", profile("send"), "{}", 60_000, ties='{"expires_in":90000,"keep":5}')

    read_later = [read(job, age_ms=age) for age in (-5, 0, 45_000, 60_000, 100_000)]

    assert [60_000, 60_000, 15_000, 0, 0] == [each.delay_ms for each in read_later]
    assert [90_000, 90_000, 45_000, 30_000, 1] == [
        json.loads(each.ties)["expires_in"] for each in read_later
    ]
    assert {5} == {json.loads(each.ties)["keep"] for each in read_later}


def test_a_packed_jobs_due_time_does_not_depend_on_the_time_of_the_insert() -> None:
    job = NewJob("j-1", "mail", profile("send"), "{}", due_ms=10**13, ties='{"expires_at":9}')

    assert job == read(job, age_ms=10**9)


def test_a_call_with_many_rows_of_one_task_sends_the_common_fields_of_their_jobs_once() -> None:
    """A call with many rows sends their common profile only once."""
    kinds, records = pack_jobs([read(FULL.job("acme", to=f"{n}@b.c")) for n in range(3)])

    assert (1, 3) == (len(json.loads(kinds)), len(records))


BAD = {
    "no JSON": "{",
    "no object": "[]",
    "a field of a newer release": '{"colour":"red"}',
    "a priority": '{"priority":"urgent"}',
    "a priority that is no text": '{"priority":[]}',
    "attempts": '{"attempts":0}',
    "attempts that are text": '{"attempts":"3"}',
    "losses": '{"losses":-1}',
    "a timeout": '{"timeout":null}',
    "a delay": '{"delay":-1}',
    "a delay that is no number": '{"delay":true}',
    "an instant with 15 digits": '{"due":100000000000000}',
    "a lane": '{"lane":"4+task=send"}',
    "a lane with a separator": '{"lane":"2+tenant=a b"}',
    "a lane that is no text": '{"lane":7}',
    "rules that reject": '{"lane":"2+queue","full":"reject|queue"}',
    "rules of max_waiting": '{"lane":"2+queue","full":"most|5"}',
    "rules without a lane": '{"full":"discard|queue"}',
    "bytes for the log": '{"spec_max":65537}',
    "headers": '{"headers":{"a":1}}',
    "long headers": json.dumps({"headers": {"a": "x" * 2048}}),
    "ties": '{"ties":[]}',
    "a tie of a newer release": '{"ties":{"colour":1}}',
    "a deadline": '{"ties":{"expires_in":"soon"}}',
    "a name that says reject": '{"name":"send/1","ties":{"unique":"reject"}}',
    "a name without its rule": '{"name":"send/1"}',
    "a rule without its name": '{"ties":{"unique":"keep"}}',
    "a name with a space": '{"name":"send/ 1","ties":{"unique":"keep"}}',
    "a name that is no text": '{"name":7,"ties":{"unique":"keep"}}',
    "a call without a window": '{"call":"="}',
    "a window without a call": '{"ties":{"remember":5}}',
    "a call": '{"call":"x","ties":{"remember":5}}',
    "after without most": '{"name":"send/1","ties":{"unique":"keep","after":1}}',
    "deep JSON": "[" * 100_000,
}


@pytest.mark.parametrize("packed", BAD.values(), ids=BAD)
def test_an_invalid_packed_text_is_reported_as_unreadable(packed: str) -> None:
    with pytest.raises(Unreadable):
        read(JOBS["plain"], packed)


COLUMNS = {
    "queue": "a b",
    "job_id": "j\n1",
    "task": "",
    "args": "[]",
}


@pytest.mark.parametrize(("column", "value"), COLUMNS.items())
def test_a_row_with_an_invalid_name_or_invalid_arguments_is_unreadable(
    column: str, value: str
) -> None:
    with pytest.raises(Unreadable):
        read(JOBS["plain"], **{column: value})


@pytest.mark.parametrize(
    "args", ["", "{", '{"a":1}\n', '{"a":\r1}', "{'a':1}", '{"a":' + "[" * 10**5]
)
def test_a_row_whose_arguments_are_not_one_line_of_json_is_unreadable(args: str) -> None:
    with pytest.raises(Unreadable, match="args"):
        read(JOBS["plain"], args=args)
