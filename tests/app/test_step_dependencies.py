"""Dependencies and steps. A step's function can have dependencies, and a dependency can run steps of the job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Annotated, Any

import pytest

from rq_core import App, Depends, RetryPolicy, durable, durable_sync, errors, injected, testing
from rq_core.app.durable.handles import Durable, DurableSync

AT_ONCE = RetryPolicy(max_attempts=5, backoff="fixed", base=0.0, jitter=False)


class World:
    """A fake service that the steps of a job change. ``did`` lists all changes."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.fails: list[bool] = []
        """For each further call of ``may_fail``: True if it raises an error. The first value is for the next call."""

    def charge(self, order: int) -> str:
        self.did.append(f"charge {order}")
        return f"ch_{order}"

    def may_fail(self) -> None:
        if self.fails and self.fails.pop(0):
            raise ValueError("no")


@pytest.fixture
def world() -> World:
    return World()


def outcomes(fake: testing.Fake) -> list[str]:
    return [ran.outcome for ran in fake.drain()]


class Session:
    """A database session that notes its beginning, its writes and its end in ``world``."""

    def __init__(self, world: World) -> None:
        self.world = world

    def write(self, row: str) -> str:
        self.world.did.append(f"write {row}")
        return row


@pytest.fixture
def session(world: World) -> Callable[[], AbstractContextManager[Session]]:
    @contextmanager
    def made() -> Iterator[Session]:
        world.did.append("begin")
        yield Session(world)
        world.did.append("commit")

    return made


@pytest.mark.parametrize("kind", ["async", "plain in async", "sync"])
def test_the_dependencies_of_a_step_are_exited_before_the_step_is_saved(
    app: App, world: World, session: Callable[[], Any], kind: str
) -> None:
    def plain(row: str, db: Any = Depends(session)) -> str:
        return str(db.write(row))

    async def awaited(row: str, db: Any = Depends(session)) -> str:
        return str(db.write(row))

    async def in_async() -> None:
        await durable().step("write", awaited if kind == "async" else plain, "row")
        world.did.append("saved")
        world.may_fail()

    def in_sync() -> None:
        durable_sync().step("write", plain, "row")
        world.did.append("saved")
        world.may_fail()

    handler = app.task(retry=AT_ONCE)(in_sync if kind == "sync" else in_async)
    world.fails = [True]
    with testing.fake(app) as fake:
        handler.enqueue()
        assert ["ready", "succeeded"] == outcomes(fake)

    assert ["begin", "write row", "commit", "saved", "saved"] == world.did


def test_a_step_whose_dependency_fails_when_it_is_exited_is_not_saved(
    app: App, world: World
) -> None:
    @contextmanager
    def session() -> Iterator[Session]:
        yield Session(world)
        world.may_fail()

    def write(db: Any = Depends(session)) -> str:
        return str(db.write("row"))

    @app.task(retry=AT_ONCE)
    async def order() -> None:
        await durable().step("write", write)

    world.fails = [True]
    with testing.fake(app) as fake:
        order.enqueue()
        assert ["ready", "succeeded"] == outcomes(fake)

    assert ["write row", "write row"] == world.did


def test_a_step_gets_an_overridden_dependency_unless_the_handler_passes_its_own_value(
    app: App, world: World, session: Callable[[], Any]
) -> None:
    def write(row: str, db: Any = Depends(session)) -> str:
        return str(db.write(row))

    @app.task(retry=AT_ONCE)
    async def order() -> None:
        await durable().step("write", write, "one")
        await durable().step("write", write, "two", db=Session(world))

    with testing.fake(app) as fake, app.override(session, lambda: Session(world)):
        order.enqueue()
        assert ["succeeded"] == outcomes(fake)

    assert ["write one", "write two"] == world.did


def test_a_plain_function_with_an_async_dependency_is_refused_as_a_step_before_it_is_run(
    app: App, world: World
) -> None:
    async def session() -> Session:
        return Session(world)

    def write(db: Any = Depends(session)) -> str:
        return str(db.write("row"))

    @app.task(retry=RetryPolicy(max_attempts=1))
    async def order() -> None:
        with pytest.raises(errors.InvalidStep, match=r"its dependency .* is async"):
            await durable().step("write", write)
        world.did.append("refused")

    with testing.fake(app) as fake:
        order.enqueue()
        assert ["succeeded"] == outcomes(fake)

    assert ["refused"] == world.did


def test_the_steps_of_a_job_may_be_a_dependency_of_its_handler(app: App, world: World) -> None:
    @app.task(retry=AT_ONCE)
    async def order(job: Annotated[Durable, Depends(durable)] = injected) -> None:
        await job.step("charge", world.charge, 7)
        world.may_fail()

    @app.task(retry=AT_ONCE)
    def order_sync(job: Annotated[DurableSync, Depends(durable_sync)] = injected) -> None:
        job.step("charge", world.charge, 8)
        world.may_fail()

    world.fails = [True, True]
    with testing.fake(app) as fake:
        order.enqueue()
        order_sync.enqueue()
        assert ["ready", "ready", "succeeded", "succeeded"] == sorted(outcomes(fake))

    assert ["charge 7", "charge 8"] == sorted(world.did)
