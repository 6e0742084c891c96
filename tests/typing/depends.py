"""Dependencies that type checkers must accept or refuse. Only mypy and pyright read this file.

A dependency is a default or an annotation of a parameter. A caller may omit this parameter. A wrong argument stays an
error.
"""

from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Annotated, Self, assert_type

from rq_core import App, Depends, JobContext, JobHandle, current_job, injected, testing

app = App()


class Db:
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class AsyncDb:
    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...


def plain() -> list[Db]:
    return []


def generator() -> Iterator[Db]:
    yield Db()


def long_generator() -> Generator[Db, None, None]:
    yield Db()


async def awaited() -> Db:
    return Db()


async def async_generator() -> AsyncIterator[AsyncDb]:
    yield AsyncDb()


@contextmanager
def managed() -> Iterator[Db]:
    yield Db()


@asynccontextmanager
async def async_managed(db: Annotated[AsyncDb, Depends(async_generator)]) -> AsyncIterator[AsyncDb]:
    yield db


assert_type(Depends(plain), list[Db])
assert_type(Depends(generator), Db)
assert_type(Depends(long_generator, scope="process"), Db)
assert_type(Depends(awaited), Db)
assert_type(Depends(async_generator), AsyncDb)
assert_type(Depends(managed), Db)
assert_type(Depends(async_managed), AsyncDb)
assert_type(Depends(Db), Db)
assert_type(Depends(AsyncDb), AsyncDb)
assert_type(Depends(lambda: 5), int)
Depends(5)  # type: ignore[call-overload]
Depends(plain, scope="request")  # type: ignore[call-overload]


@app.task
def by_default(month: str, db: Db = Depends(generator)) -> int:
    return len(month)


@app.task(queue="reports")
async def by_annotation(
    month: str, db: Annotated[AsyncDb, Depends(async_managed)] = injected
) -> bytes:
    return b""


assert_type(by_default.enqueue("may"), JobHandle[int])
assert_type(by_annotation.enqueue(month="may"), JobHandle[bytes])
assert_type(by_default("may"), int)
by_default.enqueue()  # type: ignore[call-arg]
by_default.enqueue(5)  # type: ignore[arg-type]
by_default.enqueue("may", month="may")  # type: ignore[misc]
by_annotation.enqueue(5)  # type: ignore[arg-type]
by_annotation.job()  # type: ignore[call-arg]
by_annotation.job(moth="may")  # type: ignore[call-arg]


async def asynchronous() -> None:
    assert_type(await by_annotation("may"), bytes)
    await by_annotation.enqueue_async(5)  # type: ignore[arg-type]
    assert_type(await by_annotation.with_options(delay=1).enqueue_async("may"), JobHandle[bytes])


def wrong(db: str = Depends(generator)) -> None:  # type: ignore[assignment]
    ...


def told(job: JobContext) -> Iterator[None]:
    yield


@app.around
@contextmanager
def timed(job: JobContext) -> Iterator[None]:
    yield


app.around(told)
app.around(5)  # type: ignore[type-var]
with app.override(generator, lambda: Db()):
    pass
app.override("generator", plain)  # type: ignore[arg-type]

by_default.with_options(headers={"request-id": "7"}).enqueue("may")
by_default.with_options(headers={"request-id": 7})  # type: ignore[dict-item]
app.enqueue("reports", "by_default", {"month": "may"}, headers={"request-id": "7"})
assert_type(current_job().headers["request-id"], str)
current_job().headers["request-id"] = "8"  # type: ignore[index]


by_default.with_options(at=datetime(2030, 1, 1, tzinfo=UTC)).enqueue("may")
by_default.with_options(at="2030-01-01")  # type: ignore[arg-type]


def a_test(fake: testing.Fake) -> None:
    assert_type(fake.enqueued()[0].headers["request-id"], str)


@app.task
def without_default(month: str, db: Annotated[Db, Depends(generator)]) -> None: ...


# It runs, and type checkers ask for it: that is what `injected` is for.
without_default.enqueue("may")  # type: ignore[call-arg]
