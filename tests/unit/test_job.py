"""The immutable JSON of a job. A worker reads from it what the producer wrote."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rq_core.model.job import NewJob, Spec, profile, read_spec
from rq_core.protocol.calls.enqueue import pack_jobs

JSON = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


@pytest.mark.slow
@given(
    st.dictionaries(st.sampled_from(["task", "args", "timeout_ms", "x"]) | st.text(), JSON),
    st.none() | st.integers(1, 10**12),
)
def test_a_job_spec_that_a_producer_wrote_is_read_back_unchanged(
    args: dict[str, object], timeout: int | None
) -> None:
    args_json = json.dumps(args, separators=(",", ":"))
    job = NewJob("id", "q", profile("send", timeout_ms=timeout), args_json)

    _, [(*_, spec)] = pack_jobs([job])

    assert read_spec(spec) == Spec("send", args_json, timeout)


def test_a_job_spec_with_other_spacing_in_its_json_is_read() -> None:
    spec = read_spec('{ "timeout_ms": 5, "args": {"a": 1}, "task": "send" }')

    assert spec == Spec("send", '{"a": 1}', 5)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "{}", '{"task":5}', '{"task":"t","args":{},"timeout_ms":"x"}']
)
def test_a_text_that_is_not_a_job_spec_raises_value_error(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json's own, or ours
        read_spec(text)
