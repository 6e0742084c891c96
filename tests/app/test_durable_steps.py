"""Steps of durable jobs, on the fake server. A job saves each finished step, and later attempts do not repeat it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from rq_core import (
    NOT_DONE,
    App,
    GiveUp,
    RetryPolicy,
    StepTwice,
    current_job,
    durable,
    durable_sync,
    errors,
    testing,
)
from rq_core.model.durable.boxes import ENTRIES_MAX

AT_ONCE = RetryPolicy(max_attempts=5, backoff="fixed", base=0.0, jitter=False)


@dataclass
class Charge:
    id: str
    pair: tuple[int, int] = (1, 2)


class World:
    """A fake service that the steps of a job change. ``did`` lists all changes."""

    def __init__(self) -> None:
        self.did: list[Any] = []
        self.fails: list[bool] = []
        """For each of the next calls of ``may_fail``, in order: true if the call raises an error."""

    def charge(self, order: int) -> Charge:
        self.did.append(f"charge {order}")
        return Charge(f"ch_{order}")

    async def tell(self, charge: Charge) -> str:
        self.did.append(f"tell {charge.id}")
        return charge.id

    def may_fail(self) -> None:
        if self.fails and self.fails.pop(0):
            raise ValueError("no")


@pytest.fixture
def world() -> World:
    return World()


def outcomes(fake: testing.Fake) -> list[str]:
    return [ran.outcome for ran in fake.drain()]


def test_a_saved_step_is_not_done_again(app: App, world: World) -> None:
    @app.task(retry=AT_ONCE)
    async def order(number: int) -> None:
        job = durable()
        charge = await job.step("charge", world.charge, number)
        assert charge == Charge("ch_7")
        world.may_fail()
        await job.step("tell", world.tell, charge)
        world.may_fail()

    world.fails = [True, False, True]
    with testing.fake(app) as fake:
        order.enqueue(7)
        assert ["ready", "ready", "succeeded"] == outcomes(fake)

    assert ["charge 7", "tell ch_7"] == world.did


def test_a_saved_step_of_a_sync_handler_is_not_done_again(app: App, world: World) -> None:
    @app.task(retry=AT_ONCE)
    def order(number: int) -> None:
        job = durable_sync()
        charge: Charge = job.step("charge", world.charge, number)
        world.may_fail()
        world.did.append(charge.pair)

    world.fails = [True]
    with testing.fake(app) as fake:
        order.enqueue(7)
        assert ["ready", "succeeded"] == outcomes(fake)

    assert ["charge 7", (1, 2)] == world.did


def test_a_second_step_with_the_same_name_is_a_separate_step(app: App, world: World) -> None:
    @app.task(retry=AT_ONCE)
    async def order() -> None:
        for number in range(3):
            await durable().step("charge", world.charge, number)
        world.may_fail()

    world.fails = [True]
    with testing.fake(app) as fake:
        order.enqueue()
        assert ["ready", "succeeded"] == outcomes(fake)

    assert ["charge 0", "charge 1", "charge 2"] == world.did


def test_each_step_of_parallel_branches_is_saved_under_the_key_of_the_branch(
    app: App, world: World
) -> None:
    @app.task(retry=AT_ONCE)
    async def order() -> None:
        job = durable()
        found = await asyncio.gather(
            *(job.options(key=f"a/{n}").step("charge", world.charge, n) for n in range(5))
        )
        assert [f"ch_{n}" for n in range(5)] == [each.id for each in found]
        world.may_fail()

    world.fails = [True]
    with testing.fake(app) as fake:
        order.enqueue()
        assert ["ready", "succeeded"] == outcomes(fake)

    assert 5 == len(world.did)


def test_no_step_begins_after_another_branch_of_the_handler_has_failed(
    app: App, world: World
) -> None:
    async def slow() -> None:
        world.did.append("slow")
        for _ in range(5):
            await asyncio.sleep(0)

    async def branch() -> None:
        await durable().step("slow", slow)
        await durable().step("behind", world.charge, 1)

    async def fails() -> None:
        await asyncio.sleep(0)
        world.may_fail()

    @app.task(retry=AT_ONCE)
    async def order() -> None:
        await asyncio.gather(branch(), fails())

    world.fails = [True]
    with testing.fake(app) as fake:
        order.enqueue()
        assert ["ready", "succeeded"] == outcomes(fake)

    assert ["slow", "charge 1"] == world.did


def test_two_steps_with_the_same_name_at_the_same_time_are_refused(app: App, world: World) -> None:
    found: list[BaseException] = []

    @app.task
    async def order() -> None:
        job = durable()
        done = await asyncio.gather(
            job.step("charge", world.charge, 1),
            job.step("charge", world.charge, 2),
            return_exceptions=True,
        )
        found.extend(each for each in done if isinstance(each, BaseException))

    with testing.fake(app) as fake:
        order.enqueue()
        assert ["succeeded"] == outcomes(fake)

    assert [StepTwice] == [type(each) for each in found]
    assert "options(key=…)" in str(found[0])
    assert 1 == len(world.did)


def test_a_begun_step_is_run_again_only_after_its_check_function_was_called(
    app: App, world: World
) -> None:
    def charge(number: int) -> Charge:
        world.did.append("charge")
        raise KeyboardInterrupt if len(world.did) == 1 else ValueError

    def find(number: int) -> Any:
        world.did.append("check")
        return NOT_DONE if world.did.count("check") == 1 else Charge(f"found {number}")

    @app.task(retry=AT_ONCE)
    def order(number: int) -> str:
        return durable_sync().options(check=find).step("charge", charge, number).id

    with testing.fake(app) as fake:
        order.enqueue(7)
        assert ["ready", "ready", "succeeded"] == outcomes(fake)

    assert ["charge", "check", "charge", "check"] == world.did


def test_undo_calls_the_undo_function_of_the_newest_step_first(app: App, world: World) -> None:
    def refund(charge: Charge) -> None:
        world.did.append(f"refund {charge.id}")
        world.may_fail()

    @app.task(retry=AT_ONCE)
    async def order() -> None:
        job = durable()
        for number in (1, 2):
            await job.options(undo=refund).step("charge", world.charge, number)
        await job.undo()
        raise GiveUp("refused")

    world.fails = [False, True]
    with testing.fake(app) as fake:
        order.enqueue()
        assert ["ready", "dead"] == outcomes(fake)

    assert ["charge 1", "charge 2", "refund ch_2", "refund ch_1", "refund ch_1"] == world.did


def test_a_step_has_the_same_key_in_each_run_of_its_job(app: App, world: World) -> None:
    @app.task(retry=AT_ONCE)
    async def order() -> None:
        world.did.append(
            (current_job().id, await durable().key("charge"), await durable().key("ship"))
        )
        world.may_fail()

    world.fails = [True]
    with testing.fake(app) as fake:
        order.enqueue()
        order.enqueue()
        assert ["ready", "succeeded", "succeeded"] == outcomes(fake)

    by_job = {job_id: (charge, ship) for job_id, charge, ship in world.did}
    assert 2 == len({*world.did})
    assert 4 == len({key for pair in by_job.values() for key in pair})


def test_a_job_dies_if_the_value_of_a_step_is_too_large_to_be_saved(app: App, world: World) -> None:
    def large() -> str:
        world.did.append("large")
        return "x" * 70_000

    @app.task(retry=AT_ONCE)
    async def order() -> None:
        try:
            await durable().step("large", large)
        except errors.RqCoreError as error:
            world.did.append(str(error))
            if world.did.count("large") and len(world.did) == 2:
                raise ValueError from None
            raise

    with testing.fake(app) as fake:
        order.enqueue()
        assert ["ready", "dead"] == outcomes(fake)

    assert 1 == world.did.count("large")
    assert "step 'large' has happened, and what it returned is not kept" in world.did[1]


def test_a_job_dies_if_the_saved_value_of_a_step_does_not_fit_the_type_in_newer_code(
    app: App, world: World
) -> None:
    def old() -> str:
        return "text"

    def new() -> int:
        world.did.append("new")
        return 1

    @app.task(retry=AT_ONCE)
    async def order() -> None:
        await durable().step("value", old if current_job().claim == 1 else new)
        world.may_fail()

    world.fails = [True]
    with testing.fake(app) as fake:
        order.enqueue()
        ran = list(fake.drain())

    assert ["ready", "dead"] == [each.outcome for each in ran]
    assert "Give the step another name" in str(ran[1].error)
    assert [] == world.did


@pytest.mark.parametrize(
    ("misuse", "says"),
    [
        (lambda world: durable_sync(), "durable_sync() cannot be used here: the handler is an `async def` function"),
        (lambda world: durable().step("no spaces", world.charge, 1), "step 'no spaces' cannot be run: a name is"),
        (lambda world: durable().step("a" * 65, world.charge, 1), "cannot be run: a name is"),
        (lambda world: durable().step("value", 7), "7 is not a function"),
        (lambda world: durable().step("bad", returns_a_function), "cannot be kept as JSON"),
        (lambda world: durable().step("outer", uses_durable), "a step's function runs here"),
    ],
    ids=["sync", "name", "long name", "no function", "no JSON", "inside a step"],
)  # fmt: skip
def test_each_misuse_of_a_step_is_refused_before_the_step_is_done(
    app: App, world: World, misuse: Any, says: str
) -> None:
    found: list[str] = []

    @app.task
    async def order() -> None:
        try:
            await misuse(world)
        except errors.UsageError as error:
            found.append(str(error))

    with testing.fake(app) as fake:
        order.enqueue()
        assert ["succeeded"] == outcomes(fake)

    assert 1 == len(found)
    assert says in found[0]
    assert [] == world.did


def returns_a_function() -> type[World.charge]:  # type: ignore[valid-type]
    raise AssertionError("it is refused before it runs")


def uses_durable() -> int:
    durable()
    return 1


def test_an_async_step_in_a_sync_handler_is_refused(app: App, world: World) -> None:
    @app.task
    def order() -> None:
        with pytest.raises(errors.InvalidStep, match="the handler is a `def` function"):
            durable_sync().step("tell", world.tell, Charge("1"))
        with pytest.raises(errors.NotDurable, match="use durable_sync"):
            durable()

    with testing.fake(app) as fake:
        order.enqueue()
        assert ["succeeded"] == outcomes(fake)


def test_no_step_begins_in_a_handler_that_must_stop(app: App, world: World) -> None:
    @app.task
    async def order() -> None:
        from rq_core.signals import JobCancelled

        current_job().tell(JobCancelled())
        with pytest.raises(JobCancelled):
            await durable().step("charge", world.charge, 1)

    with testing.fake(app) as fake:
        order.enqueue()
        outcomes(fake)

    assert [] == world.did


def test_durable_is_refused_outside_of_a_handler() -> None:
    with pytest.raises(errors.NoCurrentJob):
        durable()
    with testing.job_running(), pytest.raises(errors.NotDurable, match="no worker saves"):
        durable()


def test_a_step_beyond_the_maximum_number_of_steps_is_refused_before_it_runs(
    app: App, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 10_000 == ENTRIES_MAX
    monkeypatch.setattr("rq_core.app.durable.steps.ENTRIES_MAX", 2)

    @app.task(retry=AT_ONCE)
    async def order() -> None:
        for number in range(3):
            await durable().step("charge", world.charge, number)

    with testing.fake(app) as fake:
        order.enqueue()
        assert ["dead"] == outcomes(fake)

    assert ["charge 0", "charge 1"] == world.did


def test_the_delay_of_a_retry_counts_only_failures_since_the_last_saved_step(
    app: App, world: World
) -> None:
    asked: list[int] = []

    def backoff(failures: int) -> float:
        asked.append(failures)
        return 0.0

    @app.task(retry=RetryPolicy(max_attempts=3, backoff=backoff))
    async def order() -> None:
        world.may_fail()
        await durable().step("charge", world.charge, 7)
        world.may_fail()

    world.fails = [True, True, False, True, True, True]
    with testing.fake(app) as fake:
        order.enqueue()
        assert ["ready"] * 4 + ["dead"] == outcomes(fake)

    assert [1, 2, 1, 2, 3] == asked
