"""Calls of tasks that type checkers must accept or refuse. Only mypy and pyright read this file.

If a checker no longer finds an error, its `type: ignore` is unused, and the check fails.
"""

from collections.abc import AsyncIterator, Coroutine
from datetime import timedelta
from typing import Any, assert_type

import rq_core
from rq_core import (
    App,
    AsyncTask,
    Cap,
    JobHandle,
    Limit,
    NewJob,
    Outcome,
    Rate,
    RetryPolicy,
    ScopeStatus,
    Task,
)

app = App()

unknown = rq_core.Unknown  # type: ignore[attr-defined]


@app.task
def plain(tenant: str, to: str, *, copies: int = 1) -> float:
    return float(copies)


@app.task(queue="mail", retry=RetryPolicy(max_attempts=5, backoff="exponential"), timeout=30)
def with_parentheses(tenant: str) -> str:
    return tenant


@app.task
async def later(n: int) -> bytes:
    return bytes(n)


@app.task(queue="slow", timeout=timedelta(minutes=1), priority="low")
async def later_with_parentheses(n: int) -> list[int]:
    return [n]


def by_call(n: int) -> None: ...


registered = app.task(name="other")(by_call)


assert_type(plain("acme", "a@b.c"), float)
assert_type(plain.enqueue("acme", to="a@b.c", copies=2), JobHandle[float])
assert_type(plain.job("acme", "a@b.c"), NewJob)
assert_type(with_parentheses("acme"), str)
assert_type(with_parentheses.enqueue("acme"), JobHandle[str])
assert_type(later.enqueue(3), JobHandle[bytes])
assert_type(later_with_parentheses.enqueue(n=3), JobHandle[list[int]])
assert_type(registered.enqueue(1), JobHandle[None])
assert_type(app.enqueue("mail", "plain", {"tenant": "acme"}), JobHandle[Any])
assert_type(plain.enqueue("a", "b").state(), str)


async def asynchronous() -> None:
    started: Coroutine[Any, Any, bytes] = later(3)
    assert_type(await started, bytes)
    assert_type(await later(3), bytes)
    assert_type(await later.enqueue_async(3), JobHandle[bytes])
    assert_type(await plain.enqueue_async("acme", "a@b.c"), JobHandle[float])
    assert_type(await later.with_options(delay=1).enqueue_async(3), JobHandle[bytes])
    assert_type(await plain.enqueue("a", "b").cancel_async(), str)
    await plain.enqueue_async("acme")  # type: ignore[call-arg]
    await later.enqueue_async("3")  # type: ignore[arg-type]
    assert_type(await app.enqueue_async("mail", "plain", {}, max_attempts=1), JobHandle[Any])
    await app.enqueue_async("mail", "plain", {}, later=1)  # type: ignore[call-arg]
    await app.job_async("mail", "plain", {}, later=1)  # type: ignore[call-arg]


plain.enqueue("acme")  # type: ignore[call-arg]
plain.enqueue("acme", 5)  # type: ignore[arg-type]
plain.enqueue("acme", "a@b.c", 2)  # type: ignore[call-arg]
plain.enqueue("acme", "a@b.c", copies="2")  # type: ignore[arg-type]
plain.enqueue("acme", "a@b.c", colour="red")  # type: ignore[call-arg]
plain.job(tenant="acme")  # type: ignore[call-arg]
plain.job("acme", to=None)  # type: ignore[arg-type]
with_parentheses.enqueue(5)  # type: ignore[arg-type]
later.enqueue("3")  # type: ignore[arg-type]
later_with_parentheses.job()  # type: ignore[call-arg]
registered.enqueue("1")  # type: ignore[arg-type]

prepared = plain.with_options(delay=timedelta(hours=1), priority="high", id="x")
assert_type(prepared.enqueue("acme", "a@b.c"), JobHandle[float])
prepared.enqueue("acme")  # type: ignore[call-arg]
prepared.job("acme", 5)  # type: ignore[arg-type]
plain.with_options(priority="urgent")  # type: ignore[arg-type]
plain.with_options(delay="1m")  # type: ignore[arg-type]
plain.with_options(later=1)  # type: ignore[call-arg]
app.enqueue("mail", "plain", {}, delay=timedelta(hours=1), keys={"shard": "7"}, id=None)
app.enqueue("mail", "plain", {}, priority="urgent")  # type: ignore[arg-type]
app.enqueue("mail", "plain", {}, later=1)  # type: ignore[call-arg]
app.job("mail", "plain", {}, timeout="1m")  # type: ignore[arg-type]

app.task(queue=5)  # type: ignore[call-overload]
app.task(when="now")  # type: ignore[call-overload]
app.task("mail")  # type: ignore[call-overload]
RetryPolicy(backoff="quadratic")  # type: ignore[arg-type]
RetryPolicy(backoff=lambda failures: failures * 2.0, jitter="equal", retry_on=(OSError, KeyError))


def rows() -> list[NewJob]:
    return [plain.job("acme", "a@b.c"), later.job(1)]


async def rows_later() -> AsyncIterator[NewJob]:
    yield plain.job("acme", "a@b.c")


async def many() -> None:
    app.enqueue_many(rows())
    app.enqueue_many([("acme", "a@b.c")])  # type: ignore[list-item]
    await app.enqueue_many_async(rows())
    await app.enqueue_many_async(rows_later())


def takes_any_task(task: Task[..., Any]) -> None: ...


def takes_async_task(task: AsyncTask[[int], bytes]) -> None: ...


def takes_handle(handle: JobHandle[object]) -> None: ...


takes_any_task(plain)
takes_any_task(later)
takes_async_task(later)
takes_async_task(later_with_parentheses)  # type: ignore[arg-type]
takes_handle(plain.enqueue("a", "b"))


def shard(tenant: str, **_: Any) -> str:
    return tenant[:1]


@app.task(
    queue="mail",
    caps=[
        Cap(10),
        Cap(1, per="tenant", on_full="reject"),
        Cap(5, per=shard, name="shard", max_waiting=100),
        Rate(100, per_seconds=timedelta(minutes=1), per="tenant", burst=5),
    ],
)
def capped(tenant: str) -> int:
    return len(tenant)


assert_type(capped.enqueue("acme").discarded, bool)
app.task(caps=(Cap(1), Rate(1, per_seconds=0.5)))
app.task(caps=[1])  # type: ignore[list-item]
app.task(caps=Cap(1))  # type: ignore[call-overload]
Cap("1")  # type: ignore[arg-type]
Cap(1, on_full="drop")  # type: ignore[arg-type]
Cap(1, "tenant", "name")  # type: ignore[call-arg]
Rate(1)  # type: ignore[call-arg]
Rate(1, 60)  # type: ignore[call-arg]
app.queue("mail", cap=50, fair="tenant", weights={"acme": 3})
app.queue("mail", fair=False)
app.queue("mail", fair=True)  # type: ignore[arg-type]
app.enqueue("mail", "capped", {"tenant": "acme"}, keys={"shard": "a"})
app.enqueue("mail", "capped", {}, keys={"shard": 1})  # type: ignore[dict-item]
app.set_cap("mail", "task=capped", 5, reason="more servers")
app.set_cap("mail", "tenant@60s", Limit(5, 60_000))
app.set_cap("mail", "task=capped", None)
app.set_cap("mail", "task=capped", "code")
app.set_cap("mail", "task=capped", "5")  # type: ignore[arg-type]
assert_type(app.caps("mail"), list[ScopeStatus])


async def caps_later() -> None:
    assert_type(await app.caps_async("mail"), list[ScopeStatus])
    assert_type(await app.job_async("mail", "capped", {"tenant": "a"}), NewJob)
    await app.set_cap_async("mail", "queue", 0)


@app.task(keep_result=3600)
def kept(month: str) -> list[int]:
    return [1]


assert_type(kept.enqueue("2026-11").result(30), list[int])
assert_type(
    kept.with_options(keep_result=True).enqueue("2026-11").result(timeout=timedelta(1)), list[int]
)
assert_type(kept.enqueue("2026-11").wait(30), Outcome[list[int]])
assert_type(kept.enqueue("2026-11").wait(30).value, list[int])
kept.enqueue("2026-11").result()  # type: ignore[call-arg]
kept.enqueue("2026-11").result("30")  # type: ignore[arg-type]
app.task(keep_result="1h")  # type: ignore[call-overload]
for each in app.as_completed([kept.enqueue("a"), kept.enqueue("b")], timeout=60):
    assert_type(each, JobHandle[list[int]])
for any_one in app.as_completed(app.enqueue_many(rows()), 60):
    assert_type(any_one.id, str)


async def waiting() -> None:
    assert_type(await kept.enqueue("2026-11").result_async(30), list[int])
    async for one in app.as_completed_async([kept.enqueue("a")], 60):
        assert_type(one, JobHandle[list[int]])
