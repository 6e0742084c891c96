"""The calls of a worker that runs a parent. Each is one step of a world.

As in the code, nothing counts the children that have ended. Each run of the parent enqueues its children under ids that
are made of its box, reads how they have ended, saves each result under the child's index, and waits for one child that
is alive. The numbers of entries are left out: a save first puts back what the worker knows and Redis has forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.rigs.durable.checker import Searched, Unsafe
from tests.rigs.durable.family import (
    ALIVE,
    ALL,
    CHILDREN,
    GONE,
    NONE,
    OVER,
    RESULTS,
    Box,
    Budget,
    Children,
    Each,
    History,
    Parent,
    Worker,
    moved,
    put,
    with_child,
)


class ParentRuns(Searched[History]):
    """The calls of a worker that runs a parent.

    ``needed`` is how many children must succeed.
    """

    def __init__(self, planted: frozenset[str], budget: Budget, needed: int) -> None:
        super().__init__(planted)
        self.budget = budget
        self.needed = needed

    def first_call(self) -> str:
        return (
            "enqueue" if self.has("children are enqueued before the box has its life") else "begin"
        )

    def new_life(self, history: History) -> int:
        """Return the smallest life that no box, worker or child has."""
        if history.kept:
            raise Unsafe("a second family, although the claim of the first survived the failover")
        known = {history.parent.box.life, *(each.box.life for each in history.workers)}
        known |= {life for (life, _), _ in (*history.children, *history.past_children)}
        known |= {history.past.box.life} if history.past else set()
        life = 1
        while life in known:
            life += 1
        return life

    @staticmethod
    def ripe(parent: Parent) -> Parent:
        """Make a parked parent ready if the signal for which it waits has come."""
        if parent.state == "parked" and parent.mail[parent.waits]:
            return moved(parent, "ready")
        return parent

    @staticmethod
    def changed(
        children: Children, chosen: tuple[tuple[int, int], ...], before: str, after: str
    ) -> Children:
        return tuple(
            (place, after if place in chosen and state == before else state)
            for place, state in children
        )

    def work(self, history: History, place: int, worker: Worker) -> Iterator[tuple[bool, History]]:
        parent, budget = history.parent, history.budget
        others = history.workers[:place] + history.workers[place + 1 :]
        left = history._replace(workers=others)
        holds = parent.state in ("running", "cancelling") and parent.fence == worker.fence
        if budget.crashes:
            state = {"running": "ready", "cancelling": "cancelled"}[parent.state] if holds else ""
            crashed = moved(parent, state) if holds else parent
            less = budget._replace(crashes=budget.crashes - 1)
            yield False, left._replace(parent=crashed, budget=less)
        if parent.state == "cancelling" and holds:
            yield True, self.settled(history, left, worker)  # its heartbeat says so
        for follows, changed in self.call(history, worker, holds=holds):
            if follows is None:
                yield True, changed._replace(workers=others)
            else:
                workers = (*history.workers[:place], follows, *history.workers[place + 1 :])
                yield True, changed._replace(workers=workers)

    def settled(self, history: History, left: History, worker: Worker) -> History:
        """End the claim of a cancelled parent. Its worker goes on to cancel the children that it knows."""
        parent = moved(history.parent, "cancelled")
        cancels = worker._replace(does="orphans", found=NONE)
        return left._replace(parent=parent, workers=(*left.workers, cancels))

    def call(
        self, history: History, worker: Worker, *, holds: bool
    ) -> Iterator[tuple[Worker | None, History]]:
        """Yield each possible result of a worker's next call as (worker, history). None means that the worker has left
        the parent."""
        parent, does = history.parent, worker.does
        if does in ("enqueue", "look", "first look", "orphans"):
            yield self.in_other_slot(history, worker)
        elif does == "lost":
            is_late = parent.state in (*OVER, "cancelling")
            yield worker._replace(does="orphans") if is_late else None, history
        elif not holds and not self.goes_unfenced(parent, does):
            asks = does == "plan" and not self.has("a stale worker leaves the children")
            yield worker._replace(does="lost", found=NONE) if asks else None, history
        elif does == "load":
            yield self.loaded(history, worker)
        elif does in ("over", "fail"):
            yield self.over(history, worker)
        elif does == "park":
            yield self.parked(history, worker, holds=holds)
        elif holds and parent.box.life not in (0, worker.box.life):
            # A signal has begun another box.
            yield self.with_other_box(history, worker)
        elif holds and self.is_behind(parent, worker):
            if self.has("nothing that Redis forgot is put back"):
                yield None, history._replace(parent=moved(parent, "ready"))
            else:
                yield worker, history._replace(parent=self.put_back(parent, worker))
        else:
            yield self.saved(history, worker)

    def over(self, history: History, worker: Worker) -> tuple[Worker | None, History]:
        """Settle the claim, at the end of the handler."""
        parent = history.parent
        if worker.does == "over":
            return None, history._replace(parent=moved(parent, "gone"))
        if parent.state == "cancelling":
            cancels = worker._replace(does="orphans", found=NONE)
            return cancels, history._replace(parent=moved(parent, "cancelled"))
        self.judge_death(history, worker)
        # The end of a claim puts nothing back, either.
        kept = history.kept if parent.box.life else 0
        return None, history._replace(parent=moved(parent, "dead"), kept=kept)

    def goes_unfenced(self, parent: Parent, does: str) -> bool:
        if parent.state in OVER:
            return False
        saves = does in ("begin", "plan", "items", "join")
        return (saves and self.has("save without the fence")) or (
            does == "park" and self.has("park without the fence")
        )

    def loaded(self, history: History, worker: Worker) -> tuple[Worker, History]:
        box = history.parent.box
        worker = worker._replace(box=box)
        if not box.life or self.has("each claim has children of its own"):
            life = self.new_life(history)
            return worker._replace(does=self.first_call(), box=Box(life)), history
        if not box.plan:
            return worker._replace(does=self.first_call()), history
        if box.plan == "begun":
            does = "enqueue" if self.has("a later run enqueues without a look") else "first look"
            return worker._replace(does=does, at=0), history
        return self.looks_again(history, worker)

    def in_other_slot(self, history: History, worker: Worker) -> tuple[Worker | None, History]:
        children, life, at = history.children, worker.box.life, worker.at
        state = dict(children).get((life, at), GONE)
        if worker.does == "orphans":
            left_out = (worker.box.plan == "begun") and self.has(
                "children that are being enqueued are left out"
            )
            chosen = tuple((life, each) for each in ALL if not worker.box.items[each])
            if self.has("the worker of a cancelled parent cancels nobody") or left_out:
                chosen = ()
            if worker.box.plan:
                children = self.changed(children, chosen, ALIVE, "cancelled")
            return None, history._replace(children=children)
        if worker.does == "enqueue":
            # Redis remembers a child that has succeeded, but not one that was cancelled before its first claim. So
            # Redis accepts only children that it did not know when the worker looked.
            accepts = worker.found[at] in ("", GONE) or (
                worker.found[at] == ALIVE and self.has("a child that was alive is accepted")
            )
            is_new = accepts and state in (GONE, "cancelled")
            if state in RESULTS and self.has("an id that has succeeded is not remembered"):
                is_new = accepts
            if is_new and state in RESULTS:
                raise Unsafe("a child that has succeeded is enqueued again")
            if is_new and state == "cancelled" and not self.budget.families:
                raise Unsafe("a child that was cancelled is enqueued again")
            if is_new:
                children = with_child(children, life, at, ALIVE)
            last = at == CHILDREN - 1
            follows = worker._replace(
                does=self.after_enqueue(worker) if last else "enqueue",
                at=0 if last else at + 1,
                found=NONE if last else worker.found,
            )
            return follows, history._replace(children=children)
        found = put(worker.found, at, ALIVE if state == "ending" else state)
        worker = worker._replace(found=found)
        if worker.does == "first look":
            last = at == CHILDREN - 1
            return worker._replace(
                does="enqueue" if last else "first look", at=0 if last else at + 1
            ), history
        left = [each for each in ALL if not worker.box.items[each] and not found[each]]
        if left:
            return worker._replace(at=self.next_place(left)), history
        return self.looked(history, worker)

    def after_enqueue(self, worker: Worker) -> str:
        return "plan" if worker.box.plan else "begin"

    def next_place(self, left: list[int]) -> int:
        """Return the child that is read next. The children are read backwards, so that none seems alive that has ended
        in one call with a later one that seems ended."""
        return left[0] if self.has("the look reads forwards") else left[-1]

    def looks_again(self, history: History, worker: Worker) -> tuple[Worker, History]:
        """Return the worker at the beginning of its next look; or at its end, if it need not look."""
        box = worker.box
        left = [at for at in ALL if not box.items[at]]
        if box.join or not left:
            return self.joined(history, worker._replace(found=box.join or NONE))
        worker = worker._replace(does="look", at=self.next_place(left), found=NONE)
        if history.parent.told >= CHILDREN:
            return self.looked(history, worker._replace(found=("a",) * CHILDREN))
        return worker, history

    def looked(self, history: History, worker: Worker) -> tuple[Worker, History]:
        box, found = worker.box, worker.found
        is_unsaved = any(found[at] in RESULTS and not box.items[at] for at in ALL)
        if is_unsaved and not self.has("results are not saved"):
            return worker._replace(does="items", at=0), history
        return self.waits_or_joins(history, worker)

    def waits_or_joins(self, history: History, worker: Worker) -> tuple[Worker, History]:
        box, found = worker.box, worker.found
        alive = [at for at in ALL if not box.items[at] and found[at] == ALIVE]
        is_early = self.has("a join before the last child") and len(alive) < CHILDREN
        if not alive or is_early:
            return self.joined(history, worker)
        return worker._replace(does="wait", at=alive[-1], found=NONE), history

    def joined(self, history: History, worker: Worker) -> tuple[Worker, History]:
        """Return the worker with its last call: the end of the join, or of the parent."""
        box = worker.box
        ends = tuple(box.items[at] or worker.found[at] for at in ALL)
        if ALIVE in ends:
            raise Unsafe("joined while a child is alive")
        for at in ALL:
            state = dict(history.children).get((box.life, at))
            if box.items[at] and state in (ALIVE, "dead") and not self.budget.children_fail:
                raise Unsafe("joined with the result of a child that has none")
        failed = [at for at in ALL if ends[at] not in RESULTS]
        counted = failed
        if self.has("a child that is gone counts as a success"):
            counted = [at for at in failed if ends[at] != GONE]
        if CHILDREN - len(counted) < self.needed:
            if self.has("outcomes are saved although too few succeeded") and not box.join:
                return worker._replace(does="join"), history
            return worker._replace(does="fail", at=0), history
        if (
            failed
            and not box.join
            and not self.has("the outcomes of failed children are not saved")
        ):
            return worker._replace(does="join"), history
        return self.returned(history, worker, ends)

    def returned(self, history: History, worker: Worker, ends: Each) -> tuple[Worker, History]:
        if sum(end in RESULTS for end in ends) < self.needed:
            raise Unsafe("joined although too few children have succeeded")
        lost = self.budget.parent_fails and not history.budget.parent_fails
        if history.seen and history.seen != ends and not lost:
            raise Unsafe(f"one run has returned {history.seen}, and a later one {ends}")
        return worker._replace(does="over", found=NONE, at=0), history._replace(seen=ends)

    # What a save does.

    @staticmethod
    def is_behind(parent: Parent, worker: Worker) -> bool:
        """Return whether Redis lacks an entry that the worker knows."""
        has, knows = parent.box, worker.box
        return (
            ("", "begun", "saved").index(has.plan) < ("", "begun", "saved").index(knows.plan)
            or any(knows.items[at] and not has.items[at] for at in ALL)
            or (bool(knows.join) and not has.join)
        )

    @staticmethod
    def put_back(parent: Parent, worker: Worker) -> Parent:
        has, knows = parent.box, worker.box
        items = tuple(has.items[at] or knows.items[at] for at in ALL)
        plan = knows.plan if has.plan != "saved" else has.plan
        return parent._replace(box=Box(knows.life, plan, items, has.join or knows.join))

    def with_other_box(self, history: History, worker: Worker) -> tuple[Worker | None, History]:
        if not worker.box.plan:
            return self.loaded(history, worker)
        # It fails, and is retried.
        parent = history.parent
        state = "ready" if parent.state == "running" else "cancelled"
        return None, history._replace(parent=moved(parent, state))

    def saved(self, history: History, worker: Worker) -> tuple[Worker, History]:
        parent, does, box = history.parent, worker.does, history.parent.box
        if does == "begin":
            is_late = self.has("children are enqueued before the box has its life")
            memory = worker.box._replace(plan="begun")
            box = box._replace(life=worker.box.life, plan=box.plan or "begun")
            follows = worker._replace(
                box=memory, does="plan" if is_late else "enqueue", at=0, is_first=not is_late
            )
            return follows, history._replace(parent=parent._replace(box=box))
        if does == "plan":
            memory = worker.box._replace(plan="saved")
            changed = history._replace(
                parent=parent._replace(box=box._replace(life=worker.box.life, plan="saved"))
            )
            if worker.is_first:
                # The worker that ends a child finds the box, so its signal comes.
                return worker._replace(box=memory, does="wait", at=ALL[-1], is_first=False), changed
            return self.looks_again(changed, worker._replace(box=memory))
        if does == "items":
            items = worker.box.items
            for at in ALL:
                if worker.found[at] in RESULTS and not items[at]:
                    place = (
                        items.index("") if self.has("a result is saved without its index") else at
                    )
                    items = put(items, place, worker.found[at])
            merged = tuple(box.items[at] or items[at] for at in ALL)
            if self.has("save without the fence"):
                merged = items
            changed = history._replace(parent=parent._replace(box=box._replace(items=merged)))
            worker = worker._replace(box=worker.box._replace(items=items))
            return self.waits_or_joins(changed, worker)
        if does == "join":
            ends = tuple("" if worker.box.items[at] else worker.found[at] for at in ALL)
            memory = worker.box._replace(join=ends)
            changed = history._replace(
                parent=parent._replace(box=box._replace(join=box.join or ends))
            )
            return self.joined(changed, worker._replace(box=memory, found=ends))
        assert does == "wait"
        at = worker.at
        if parent.mail[at]:
            mail = (*parent.mail[:at], False, *parent.mail[at + 1 :])
            changed = history._replace(parent=parent._replace(mail=mail))
            return self.looks_again(changed, worker)
        parent = parent._replace(waits=at, box=box._replace(life=worker.box.life))
        return worker._replace(does="park"), history._replace(parent=parent)

    def parked(
        self, history: History, worker: Worker, *, holds: bool
    ) -> tuple[Worker | None, History]:
        parent = history.parent
        if not holds and parent.state in ("running", "cancelling"):
            raise Unsafe("a stale worker parks a parent that another worker holds")
        if parent.state == "cancelling":
            cancels = worker._replace(does="orphans", found=NONE)
            return cancels, history._replace(parent=moved(parent, "cancelled"))
        is_lost = parent.waits != worker.at or parent.box.life != worker.box.life
        if is_lost or self.is_behind(parent, worker):
            if self.has("a park ends the claim although entries are lost"):
                return None, history._replace(parent=moved(parent, "ready"))
            return worker._replace(does="wait"), history
        parent = moved(parent, "parked")
        if not self.has("park does not look into the box"):
            parent = self.ripe(parent)
        return None, history._replace(parent=parent)

    def judge_death(self, history: History, worker: Worker) -> None:
        if self.budget.single or self.budget.requeues or self.budget.children_fail:
            return  # a child may have succeeded since it was read
        states = [dict(history.children).get((worker.box.life, at)) for at in ALL]
        if sum(state in RESULTS for state in states) >= self.needed:
            raise Unsafe("the parent dies although enough children have succeeded")
