"""The world of a box that workers delete while another job with the same id begins its own box."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.rigs.durable.checker import Searched, Unsafe

FIELDS = 3
"""The number of fields of a box: a header and two entries."""
LIVES = 2
"""The number of jobs that use the id, one after another."""


class Duty(NamedTuple):
    """A worker that deletes a box. ``box`` is the number of the box, and ``does`` is the worker's next command."""

    box: int
    does: str


class Boxes(NamedTuple):
    """One state of the world: the boxes in Redis, and the workers that delete them."""

    life: int
    """The number of the job that is alive with the id, or 0 if no job is alive."""
    used: int
    """The number of jobs that have used the id until now."""
    fields: tuple[int, ...]
    """The number of remaining fields in each box."""
    saved: bool
    """True if the first job has saved its step."""
    duties: frozenset[int]
    couriers: tuple[Duty, ...]
    crashes: int


class Emptying(Searched[Boxes]):
    """The world of several jobs with one id, one after another. Each job has its own box."""

    def start(self) -> Boxes:
        return Boxes(0, 0, (0,) * LIVES, False, frozenset(), (), 2)

    def is_end(self, boxes: Boxes) -> bool:
        is_over = boxes.used == LIVES and not boxes.life
        return is_over and not any(boxes.fields) and not boxes.duties and not boxes.couriers

    def steps(self, boxes: Boxes) -> Iterator[tuple[bool, Boxes]]:
        if not boxes.life and boxes.used < LIVES:
            yield True, boxes._replace(life=boxes.used + 1, used=boxes.used + 1)
        if boxes.life and boxes.fields[boxes.life - 1] < FIELDS:  # it saves
            fields = self.with_fields(boxes, boxes.life, FIELDS)
            yield True, boxes._replace(fields=fields, saved=boxes.saved or boxes.life == 1)
        if boxes.life:
            forgets = self.has("the end forgets the box") or not boxes.fields[boxes.life - 1]
            yield (
                True,
                boxes._replace(
                    life=0, duties=boxes.duties if forgets else boxes.duties | {boxes.life}
                ),
            )
        if len(boxes.couriers) < 2:
            for box in boxes.duties:
                yield True, boxes._replace(couriers=(*boxes.couriers, Duty(box, "tidy")))
        for place, courier in enumerate(boxes.couriers):
            yield from self.courier_steps(boxes, place, courier)

    def courier_steps(
        self, boxes: Boxes, place: int, courier: Duty
    ) -> Iterator[tuple[bool, Boxes]]:
        others = boxes.couriers[:place] + boxes.couriers[place + 1 :]
        if boxes.crashes:
            yield False, boxes._replace(couriers=others, crashes=boxes.crashes - 1)
        closed = boxes._replace(duties=boxes.duties - {courier.box})
        if courier.does == "tidy":
            number = (
                boxes.life if self.has("tidy asks for the id's box") and boxes.life else courier.box
            )
            left = max(boxes.fields[number - 1] - 1, 0)
            emptied = boxes._replace(fields=self.with_fields(boxes, number, left))
            if left and self.has("the duty is closed before the box is empty"):
                emptied = emptied._replace(duties=boxes.duties - {courier.box})
            if left:
                yield True, emptied  # the next call of tidy
            elif self.has("tidy does not close the duty"):
                yield True, emptied._replace(couriers=others)
            else:  # the same call that removes the last field closes the duty
                yield True, closed._replace(fields=emptied.fields, couriers=others)

    @staticmethod
    def with_fields(boxes: Boxes, number: int, count: int) -> tuple[int, ...]:
        return (*boxes.fields[: number - 1], count, *boxes.fields[number:])

    def judge(self, boxes: Boxes) -> None:
        for number in range(1, LIVES + 1):
            if number == boxes.life and 0 < boxes.fields[number - 1] < FIELDS:
                raise Unsafe("the box of a living job is emptied")
            has_somebody = number in boxes.duties or number == boxes.life
            if boxes.fields[number - 1] and not has_somebody:
                raise Unsafe("nobody empties a box")
        # A worker that was stopped while the first job ended asks for its entries, and finds the box empty.
        if (
            self.has("load without the fence")
            and boxes.saved
            and boxes.life != 1
            and not boxes.fields[0]
        ):
            raise Unsafe("a stale worker begins the job anew")
