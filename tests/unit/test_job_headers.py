"""Headers of a job: small texts that it carries beside its arguments."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from rq_core import App, InvalidOption, current_job, testing
from rq_core.model.headers import (
    FORK_HEADER,
    HEADERS_BYTES_MAX,
    PARENT_HEADER,
    headers_in_digest,
    headers_json,
    read_headers,
)
from rq_core.model.job import NewJob, Profile, read_spec, spec_fault
from rq_core.protocol.calls.enqueue import pack_jobs

HEADERS = {"request-id": "01a2", 'quote"\\': "','\"args\":{}}", "é": "\n"}


@pytest.fixture
def app() -> App:
    return App("redis://nowhere.invalid")


def spec_of(job: NewJob) -> tuple[str, str]:
    """Return the digest and the JSON that a producer sends for this job."""
    _, [(_, _, digest, _, spec)] = pack_jobs([job])
    return digest, spec


def test_the_json_of_a_job_without_headers_has_only_the_task_and_the_arguments() -> None:
    args_json = '{"to":"a@b.c"}'
    digest = hashlib.sha256(args_json.encode()).hexdigest()[:32]

    assert spec_of(NewJob("j", "mail", Profile("send"), args_json)) == (
        digest,
        '{"task":"send","args":{"to":"a@b.c"}}',
    )


@pytest.mark.parametrize("timeout_ms", [None, 5_000])
@pytest.mark.parametrize(
    "args_json", ["{}", '{"a":{"b":1}}', '{"x":"\\",\\"args\\":{}}","args":1}}']
)
def test_headers_come_first_in_the_json_of_a_job_and_do_not_change_its_digest(
    args_json: str, timeout_ms: int | None
) -> None:
    profile = Profile("send", timeout_ms=timeout_ms)
    text = headers_json(HEADERS)
    plain_digest, plain = spec_of(NewJob("j", "mail", profile, args_json))
    digest, spec = spec_of(NewJob("j", "mail", profile, args_json, headers_json=text))

    assert digest == plain_digest
    assert spec == f'{{"headers":{text},{plain[1:]}'
    assert read_spec(spec) == read_spec(plain)._replace(headers_json=text)
    assert read_headers(read_spec(spec).headers_json) == HEADERS


@pytest.mark.parametrize("timeout_ms", [None, 5_000])
def test_the_digest_covers_the_header_of_a_fork(timeout_ms: int | None) -> None:
    def job(headers: Mapping[str, str]) -> NewJob:
        text = headers_json(headers)
        return NewJob("j", "mail", Profile("send", timeout_ms=timeout_ms), "{}", headers_json=text)

    origins = [{}, {FORK_HEADER: "9f3a0b1c9f3a0b1c 3 2 o-1"}, {FORK_HEADER: 'é"\\'}]
    told = [spec_of(job(HEADERS | origin)) for origin in origins]

    assert [spec_of(job(origin))[0] for origin in origins] == [digest for digest, _ in told]
    for digest, _ in told:
        faults = [spec_fault(spec, "send", digest) is not None for _, spec in told]
        assert faults == [digest != other for other, _ in told]
    assert len({digest for digest, _ in told}) == len(origins)


@pytest.mark.parametrize(
    "parent", ["rq_core.child.3.0 imports import-7 9f3a0b1c9f3a0b1c pages", "é", '"', ""]
)
@pytest.mark.parametrize("more", [{}, {"request": "7"}, {FORK_HEADER: "9f3a0b1c9f3a0b1c 3 2 o-1"}])
def test_the_digest_covers_the_header_of_a_child(parent: str, more: Mapping[str, str]) -> None:
    def job(headers: Mapping[str, str]) -> NewJob:
        return NewJob("j", "mail", Profile("send"), "{}", headers_json=headers_json(headers))

    digest, spec = spec_of(job(more | {PARENT_HEADER: parent}))
    forged = [spec_of(job(headers))[1] for headers in (more, more | {PARENT_HEADER: "other"})]

    assert spec_fault(spec, "send", digest) is None
    assert all(PARENT_HEADER in (spec_fault(each, "send", digest) or "") for each in forged)


@pytest.mark.parametrize(
    "written",
    [
        '{"rq-core-parent" : "a"}',
        '{"rq-core\\u002dparent":"a"}',
        '{"rq-core-parent":"b","rq-core-parent":"a"}',
        '{"x":"y","rq-core-parent":"a"}',
    ],
)
def test_the_digest_of_a_child_does_not_depend_on_how_the_json_is_written(written: str) -> None:
    assert headers_in_digest(written) == headers_in_digest('{"rq-core-parent":"a"}')


def test_a_header_inside_another_value_is_not_the_header_of_a_child() -> None:
    assert headers_in_digest('{"x":{"rq-core-parent":"a"}}') == ""
    assert headers_in_digest('{"x":"rq-core-parent"}') == ""


def test_a_producer_sends_one_job_and_many_jobs_with_the_same_digest(app: App) -> None:
    job = NewJob("j", "mail", Profile("send"), "{}", headers_json=headers_json({FORK_HEADER: "x"}))
    calls = app.client.calls
    calls.delivery.has_met = lambda _queue: True  # type: ignore[method-assign]
    begun = calls.single.begin(job)

    assert begun is not None
    assert spec_of(job)[0] in begun.command


@pytest.mark.parametrize(
    "text",
    [
        '{"headers":{},"args":{},"task":"send"}',
        '{"headers":[],"task":"send","args":{}}',
        '{"headers":{"a":"b"}',
        '{"headers":{"a":"b"},',
        '{"headers":',
    ],
)
def test_a_json_whose_headers_are_not_in_the_form_that_producers_write_is_refused(
    text: str,
) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_spec(text)


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ("request", "must be a mapping of strings to strings"),
        ({"a": 1}, "must be a mapping of strings to strings"),
        ({1: "a"}, "must be a mapping of strings to strings"),
        ({"": "a"}, "must not have an empty name"),
        ({"a": "\ud800"}, "must be valid Unicode text"),
        ({"a": "x" * 2_041}, "must take at most 2048 bytes as JSON"),
        ({"a": "é" * 1_021}, "must take at most 2048 bytes as JSON"),
    ],
)
def test_headers_that_cannot_be_sent_are_refused(app: App, headers: Any, words: str) -> None:
    @app.task
    def task() -> None: ...

    with pytest.raises(InvalidOption, match=words):
        task.with_options(headers=headers)
    with pytest.raises(InvalidOption, match=words):
        app.job("default", "task", {}, headers=headers)


def test_headers_up_to_the_limit_are_accepted() -> None:
    assert len(headers_json({"a": "x" * 2_040})) == HEADERS_BYTES_MAX
    assert headers_json({}) == ""
    assert headers_json(MappingProxyType({"a": "b"})) == '{"a":"b"}'


def test_a_handler_sees_the_headers_of_its_job(app: App) -> None:
    seen: list[Any] = []

    @app.task
    async def on_loop() -> None:
        seen.append(current_job().headers)

    @app.task
    def in_thread() -> None:
        seen.append(current_job().headers)

    with testing.fake(app) as fake:
        for task in (on_loop, in_thread):
            task.with_options(headers=HEADERS).with_options(timeout=5).enqueue()
        on_loop.with_options(headers=HEADERS).with_options(headers={}).enqueue()
        in_thread.enqueue()
        app.enqueue("default", "in_thread", headers={"by": "name"})
        assert [job.headers for job in fake.enqueued()] == [
            HEADERS,
            HEADERS,
            {},
            {},
            {"by": "name"},
        ]
        fake.drain()
    assert seen == [HEADERS, HEADERS, {}, {}, {"by": "name"}]
    with pytest.raises(TypeError):
        seen[0]["request-id"] = "another"
    with pytest.raises(TypeError):
        seen[3]["request-id"] = "of all that have none"


def test_the_function_job_running_gives_its_headers_to_the_current_job() -> None:
    with testing.job_running(headers={"request-id": "7"}):
        assert current_job().headers == {"request-id": "7"}
    with testing.job_running():
        assert current_job().headers == {}
