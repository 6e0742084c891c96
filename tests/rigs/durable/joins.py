"""The worlds of a parent that runs two children in another slot and waits for their ends.

Each call of a script is one step of the world, and so is each read of one child's end. So any other call may come
between two calls of a worker, of a child's worker that signals the end (a *teller*), or of an operator.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.rigs.durable.checker import Unsafe
from tests.rigs.durable.family import (
    ALIVE,
    ALL,
    CHILDREN,
    OVER,
    RESULTS,
    Box,
    Budget,
    History,
    Operator,
    Parent,
    Teller,
    Worker,
    moved,
    with_child,
)
from tests.rigs.durable.parent_runs import ParentRuns


class Joins(ParentRuns):
    """The world of one family.

    ``needed`` is how many children must succeed. With ``looks``, a parent also looks by itself, when the time of its
    wait is over. Without, only signals wake it. Without ``signals``, no worker lives long enough to signal the end
    of a child.
    """

    def __init__(
        self,
        planted: frozenset[str] = frozenset(),
        budget: Budget = Budget(),  # noqa: B008 - it cannot be changed
        *,
        needed: int = CHILDREN,
        looks: bool = True,
        signals: bool = True,
    ) -> None:
        super().__init__(planted, budget, needed)
        self.looks = looks and not self.has("a wait has no time")
        self.signals = signals

    def start(self) -> History:
        parent = Parent()
        past = parent if self.budget.parent_fails else None
        return History(parent, (), (), (), None, self.budget, past=past)

    def is_end(self, history: History) -> bool:
        state = history.parent.state
        return state in OVER or (state == "dead" and not self.budget.requeues)

    def steps(self, history: History) -> Iterator[tuple[bool, History]]:
        for is_fair, after in self.calls(history):
            was, state = history.parent.state, after.parent.state
            if after.operator and was == "running" and state not in ("running", "cancelling"):
                after = after._replace(operator=after.operator._replace(moved=True))  # noqa: PLW2901
            yield is_fair, after

    def calls(self, history: History) -> Iterator[tuple[bool, History]]:
        yield from self.of_parent(history)
        for place, worker in enumerate(history.workers):
            yield from self.work(history, place, worker)
        yield from self.of_children(history)
        for place, teller in enumerate(history.tellers):
            yield from self.tell(history, place, teller)
        yield from self.operate(history)
        yield from self.failovers(history)

    def of_parent(self, history: History) -> Iterator[tuple[bool, History]]:
        parent, budget = history.parent, history.budget
        is_held = any(each.fence == parent.fence for each in history.workers)
        if parent.state == "parked" and self.looks:
            yield True, history._replace(parent=moved(parent, "ready"))
        if parent.state == "running" and not is_held:
            yield True, history._replace(parent=moved(parent, "ready"))
        if parent.state == "cancelling" and not is_held:
            yield True, history._replace(parent=moved(parent, "cancelled"))
        if parent.state == "ready" and len(history.workers) < 2:
            yield True, self.claimed(history)
        if budget.leases and parent.state == "running":
            yield (
                False,
                history._replace(
                    parent=moved(parent, "ready"),
                    budget=budget._replace(leases=budget.leases - 1),
                ),
            )

    def claimed(self, history: History) -> History:
        parent = history.parent
        fence = 1
        while fence in {parent.fence, *(each.fence for each in history.workers)} | (
            {history.past.fence} if history.past else set()
        ):
            fence += 1
        worker = Worker(fence, "load")
        if not parent.was_claimed:
            # Nothing can have been saved before.
            box = Box(self.new_life(history))
            worker = worker._replace(does=self.first_call(), box=box)
        parent = parent._replace(state="running", fence=fence, was_claimed=True)
        return history._replace(parent=parent, workers=(*history.workers, worker))

    def of_children(self, history: History) -> Iterator[tuple[bool, History]]:
        budget = history.budget
        result = RESULTS[bool(self.budget.children_fail and not budget.children_fail)]
        alive = [place for place, state in history.children if state == ALIVE]
        may_tell = len(history.tellers) < CHILDREN or not self.signals
        for life, at in alive:
            if may_tell:
                yield True, self.ended(history, life, (at,), result)
                if budget.deaths:
                    left = history._replace(budget=budget._replace(deaths=budget.deaths - 1))
                    yield False, self.ended(left, life, (at,), "dead")
            if budget.cancels:
                # Nobody tells the parent: no worker has ended it.
                cancelled = with_child(history.children, life, at, "cancelled")
                left = history._replace(budget=budget._replace(cancels=budget.cancels - 1))
                yield False, left._replace(children=cancelled)
        for life in {life for life, _ in alive}:
            if may_tell and all((life, at) in alive for at in ALL):
                yield True, self.ended(history, life, tuple(ALL), result)
        for (life, at), state in history.children:
            if state == "dead" and budget.single:
                revived = with_child(history.children, life, at, ALIVE)
                left = history._replace(budget=budget._replace(single=budget.single - 1))
                yield False, left._replace(children=revived)
        if (
            budget.forgets
            and history.seen
            and all(each.fence == history.parent.fence for each in history.workers)
        ):
            kept = tuple(each for each in history.children if each[1] == ALIVE)
            left = history._replace(budget=budget._replace(forgets=budget.forgets - 1))
            yield False, left._replace(children=kept)

    def ended(self, history: History, life: int, which: tuple[int, ...], outcome: str) -> History:
        """End children in one call. Of those, the last gives a signal."""
        at = which[0] if self.has("the first child of a call gives the signal") else which[-1]
        does = "check"
        children = history.children
        if self.has("the signal is sent before the end") and len(which) == 1:
            children, does = with_child(children, life, at, "ending"), f"early {outcome}"
        else:
            for each in which:
                children = with_child(children, life, each, outcome)
        if not self.signals:
            return history._replace(children=children)
        tellers = tuple(sorted((*history.tellers, Teller(life, at, does))))
        return history._replace(children=children, tellers=tellers)

    def tell(self, history: History, place: int, teller: Teller) -> Iterator[tuple[bool, History]]:
        parent, budget = history.parent, history.budget
        rest = history.tellers[:place] + history.tellers[place + 1 :]
        told = history._replace(tellers=rest)
        if budget.kills:
            yield False, told._replace(budget=budget._replace(kills=budget.kills - 1))
        if teller.does == "check":
            is_true = parent.box.life == teller.life and parent.box.plan != ""
            if is_true and parent.state not in OVER:
                sends = tuple(sorted((*rest, teller._replace(does="send"))))
                yield True, history._replace(tellers=sends)
            else:
                yield True, told
        elif teller.does.startswith("early "):
            ends = tuple(sorted((*rest, teller._replace(does=teller.does.replace("early", "end")))))
            yield True, self.signalled(history, teller.at)._replace(tellers=ends)
        elif teller.does.startswith("end "):
            ending = with_child(history.children, teller.life, teller.at, teller.does[4:])
            yield True, told._replace(children=ending)
        else:
            yield True, self.signalled(told, teller.at)

    def signalled(self, history: History, at: int) -> History:
        parent = history.parent
        if parent.state in OVER:
            return history
        kept = history.kept
        if not parent.box.life:
            # The signal begins a box. The worker that knows another one fails.
            history = history._replace(kept=0)
            kept = 0
            parent = parent._replace(box=Box(self.new_life(history)))
        mail = (*parent.mail[:at], True, *parent.mail[at + 1 :])
        told = parent.told + 1 if self.has("the parent counts the signals") else 0
        parent = parent._replace(mail=mail, told=min(told, CHILDREN))
        if not self.has("signal does not wake"):
            parent = self.ripe(parent)
        return history._replace(parent=parent, kept=kept)

    # An operator's calls.

    def operate(self, history: History) -> Iterator[tuple[bool, History]]:
        parent, budget, operator = history.parent, history.budget, history.operator
        if operator is None:
            if budget.requeues and parent.state == "dead" and not history.log:
                left = history._replace(budget=budget._replace(requeues=budget.requeues - 1))
                yield True, left._replace(operator=Operator("requeue", "read"))
            if budget.families and parent.state not in (*OVER, "dead"):
                left = history._replace(budget=budget._replace(families=budget.families - 1))
                yield False, left._replace(operator=Operator("cancel", "read"))
            return
        if operator.does == "read":
            box = parent.box
            chosen = (
                tuple((box.life, at) for at in ALL if not box.items[at])
                if box.plan == "saved"
                else ()
            )
            if operator.verb == "requeue" and self.has("a requeue leaves the dead children"):
                chosen = ()
            first = "parent" if operator.verb == "cancel" else "children"
            if self.has("the parent is requeued before its children"):
                first = "parent"
            yield True, history._replace(operator=Operator(operator.verb, first, chosen))
        elif operator.does == "children":
            before, after = (ALIVE, "cancelled") if operator.verb == "cancel" else ("dead", ALIVE)
            children = self.changed(history.children, operator.chosen, before, after)
            is_last = operator.verb == "cancel" or self.has(
                "the parent is requeued before its children"
            )
            following = None if is_last else operator._replace(does="parent")
            yield True, history._replace(children=children, operator=following)
        elif operator.verb == "requeue":
            is_last = not self.has("the parent is requeued before its children")
            following = None if is_last else operator._replace(does="children")
            revived = moved(parent, "ready") if parent.state == "dead" else parent
            yield True, history._replace(parent=revived, operator=following)
        else:
            yield True, self.cancelled(history, operator)

    def cancelled(self, history: History, operator: Operator) -> History:
        """Cancel the parent. If the parent was cancelled, a later call cancels the children. If a claim of the parent
        has ended since the operator's read, the operator reads again."""
        parent = history.parent
        asks = not self.has("a cancel does not ask whether a claim ended")
        if parent.state in ("ready", "parked", "running") and operator.moved and asks:
            return history._replace(operator=Operator("cancel", "read"))
        knows = any(each.fence == parent.fence and each.box.plan for each in history.workers)
        cut = parent.box.plan == "begun" and not knows
        if parent.state in ("ready", "parked"):
            parent = moved(parent, "cancelled")
        elif parent.state == "running":
            parent = parent._replace(state="cancelling")
        else:
            return history._replace(operator=None)
        goes_on = None if self.has("a cancel leaves the children") else operator
        goes_on = goes_on and goes_on._replace(does="children")
        return history._replace(parent=parent, operator=goes_on, cut=cut)

    # Failovers.

    def failovers(self, history: History) -> Iterator[tuple[bool, History]]:
        parent, past, budget = history.parent, history.past, history.budget
        if budget.parent_fails and past is not None and past != parent:
            yield False, history._replace(past=parent)
            kept = next(
                (
                    each.box.life
                    for each in history.workers
                    if past.state == "running" and each.fence == past.fence and each.box.plan
                ),
                0,
            )
            left = budget._replace(parent_fails=budget.parent_fails - 1)
            yield False, history._replace(parent=past, past=None, kept=kept, budget=left)
        if budget.children_fail and history.past_children != history.children:
            yield False, history._replace(past_children=history.children)
            left = budget._replace(children_fail=budget.children_fail - 1)
            lost = history.children
            yield (
                False,
                history._replace(
                    children=history.past_children, past_children=(), log=lost, budget=left
                ),
            )
        if history.log and not self.has("nobody restores the lost children"):
            restored = dict(history.children)
            for place, state in history.log:
                if restored.get(place, ALIVE) == ALIVE:
                    restored[place] = state
            yield True, history._replace(children=tuple(sorted(restored.items())), log=())

    def judge(self, history: History) -> None:
        parent, box = history.parent, history.parent.box
        if parent.state == "parked" and parent.mail[parent.waits]:
            raise Unsafe("parked with a signal for which it waits")
        if box.join and any(box.items[at] and box.join[at] for at in ALL):
            raise Unsafe("a child has a saved result and a saved failure")
        families = {life for (life, _), _ in history.children}
        if not self.budget.parent_fails and len(families) > 1:
            raise Unsafe("two families without any loss")
        if self.budget.families and parent.state == "cancelled" and not history.cut:
            is_done = history.operator is None and not history.workers
            if is_done and ALIVE in [state for _, state in history.children]:
                raise Unsafe("a child of a cancelled parent goes on")
