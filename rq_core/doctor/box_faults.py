"""Compares the boxes (saved steps and signals) of durable jobs with the log: the names, numbers and digests of their
entries and signals.

If the log has all events about a box, a field without an event is *made up*. Otherwise the doctor cannot tell whether
the field is right. :mod:`rq_core.doctor.lost_signals` finds the signals that a box lacks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from rq_core.doctor.box_check import count_entries, is_box_lost
from rq_core.doctor.lost_signals import LostSignals
from rq_core.model.durable.box_log import Distrust, LoggedBox, LoggedSignal
from rq_core.model.durable.boxes import entry_text, header_in, life_of, signal_in, write_header
from rq_core.model.lib.text import bytes_of, counted
from rq_core.model.unique_names import digest_of

MENDED_MAX: Final = 100
"""Maximum number of fields of a box that one call of a repair corrects."""
MENDED_BYTES: Final = 2 * 1024 * 1024
"""Maximum number of bytes, of the old and the new texts, that one call of a repair corrects in a box. So no call blocks
the server for 10 ms."""
SHOWN_MAX: Final = 5
"""Maximum number of differences that a finding names."""


class BoxFaults(NamedTuple):
    """The differences between the box (saved steps and signals) of a durable job and the log."""

    job_id: str
    life: str
    says: list[str]
    """A sentence for each difference."""
    members: dict[str, str | None]
    """Each differing field of the box, with its text according to the log; None if the log does not have the field, or
    does not have its value."""
    is_mendable: bool
    """True if a repair can correct all differing fields, because their true texts are known and trusted."""
    distrusted: str | None = None
    """The reason why the log must not be used to correct the box; None if it may be used."""
    is_part: bool = False
    """True if ``members`` has only some of the differing fields. The next call of the repair corrects further ones."""
    untold: int = 0
    """Number of fields that have no event in the log. They are counted only if an audit database may lack events."""


class _Box:
    """The box of one durable job while it is compared with the log."""

    def __init__(self, job_id: str, life: str, logged: LoggedBox) -> None:
        self.job_id, self.life, self.logged = job_id, life, logged
        self.says: list[str] = []
        self.members: dict[str, str | None] = {}
        self.is_known = True
        self.untold = 0

    def differs(self, rest: str, says: str, text: str | None, *, is_known: bool = True) -> None:
        self.says.append(says)
        self.members[self.life + rest] = text
        self.is_known = self.is_known and is_known

    def is_allowed(self, rest: str, text: str) -> bool:
        """Return whether `rq-core audit restore` may have written this text. ``rest``: the field's name after the life
        (id) of the box."""
        return text.partition("\n")[0] in self.logged.also.get(rest, ())

    def compare_entry(self, number: int, texts: Mapping[str, str]) -> None:
        rest = f"|{number}"
        text, step = texts.get(rest), self.logged.steps.get(number)
        if text is not None and self.is_allowed(rest, text):
            return
        if step is None:
            if text is not None:
                self._without_event(rest, f"entry {number}", text)
            return
        expected: str | None = entry_text(step._replace(value=None))
        if self.logged.sizes.get(number) is not None:
            value = _first_with(step.note, _values(text, step.message, texts), step.value)
            expected = None if value is None else f"{expected}\n{value}"
        if text is None:
            says = f"it lacks entry {number}, {step.name}"
        elif text == expected:
            return
        else:
            head = text.partition("\n")[0]
            says = f"entry {number} reads {head!r}, by the log {entry_text(step._replace(value=None))!r}"
            if head == entry_text(step._replace(value=None)):
                says = f"the value of step {step.name} is not the one that was saved: its digest is another"
        self.differs(rest, says, expected, is_known=expected is not None)

    def compare_signal(self, number: int, text: str) -> None:
        rest = f">{number}"
        logged, has_value = self.logged, "\n" in text
        signal, is_taken = logged.signals.get(number), number in logged.taken
        may_lack_value = is_taken or number in logged.lost | logged.perhaps_taken
        if self.is_allowed(rest, text) and (has_value or may_lack_value):
            return
        if signal is None:
            # A worker may have put back a signal that Redis forgot, and that its wait had taken before.
            if not is_taken or has_value:
                self._without_event(rest, f"signal {number}", text)
            return
        expected = signal.text(is_taken=is_taken)
        if not is_taken:
            value = _first_with(signal.facts["digest"], _values(text, None, {}), _value_of(signal))
            known = LoggedSignal(signal.at_ms, {**signal.facts, "value": value})
            expected = known.text(is_taken=False)
        if text == expected or (number in logged.lost and text == signal.text_of_lost()):
            return  # In the second case, a restore did not have the signal's value.
        name, head = signal.facts["name"], signal.text(is_taken=True)
        says = f"signal {number} reads {text.partition(chr(10))[0]!r}, by the log {head!r}"
        if text.partition("\n")[0] == head:
            says = f"the value of signal {name} is not the one that was sent: its digest is another"
        if not (has_value or is_taken):
            says = (
                f"signal {number}, {name}, is marked as taken, and by the log no wait has taken it"
            )
        self.differs(rest, says, expected, is_known=expected is not None)

    def _without_event(self, rest: str, what: str, text: str) -> None:
        if self.logged.is_whole:
            name = text.partition(" ")[0]
            self.differs(rest, f"the log does not have {what}, {name}", None)
        elif self.logged.unknown_since is not None:
            self.untold += 1


def box_faults(
    boxes: Mapping[str, LoggedBox], found: Mapping[str, str], owners: Mapping[str, str]
) -> Iterator[BoxFaults]:
    """Compare boxes with the log. Yield the faults of each box that differs, or that has fields whose events the log
    may lack.

    ``boxes``: life (id) of a box → box according to the log. ``found``: the fields of the hash ``boxes`` in Redis.
    ``owners``: life of a box → id of its job.
    """
    texts: defaultdict[str, dict[str, str]] = defaultdict(dict)
    if boxes:
        for member, text in found.items():
            life = life_of(member)
            texts[life][member[len(life) :]] = text
    for life in boxes.keys() & owners.keys():
        box = _Box(owners[life], life, boxes[life])
        entries, signals = _numbers(texts[life], "|"), _numbers(texts[life], ">")
        for number in sorted(entries | boxes[life].steps.keys()):
            box.compare_entry(number, texts[life])
        for number in sorted(signals):
            box.compare_signal(number, texts[life][f">{number}"])
        is_lost = is_box_lost(found.get(life), count_entries(found, life))
        if is_lost and (says := _false_header(boxes[life], found.get(life), entries)) is not None:
            box.says.append(says)
            is_lost = False
        part = _first_part(box.members, found)
        is_mendable = (
            box.is_known
            and not _leaves_hole(box, entries, "|")
            and not _leaves_hole(box, signals, ">")
            and (not is_lost or (_is_complete(boxes[life]) and len(part) == len(box.members)))
        )
        if is_lost and not is_mendable:
            continue  # Another finding says that the box is lost.
        if box.says or box.untold:
            is_part = is_mendable and len(part) < len(box.members)
            yield BoxFaults(
                box.job_id,
                life,
                box.says,
                part if is_part else box.members,
                is_mendable=is_mendable,
                is_part=is_part,
                untold=box.untold,
            )


def trusted_faults(faults: Sequence[BoxFaults], distrust: Distrust) -> dict[str, BoxFaults]:
    """Return life (id) of a box → the box's differences from the log.

    ``distrust``: a function that returns, for some jobs, why their events must not be copied from the log. The boxes of
    these jobs are marked as not mendable.
    """
    mended = {
        fault.job_id: None in fault.members.values()
        for fault in faults
        if fault.is_mendable and fault.says
    }
    doubts = distrust(mended) if mended else {}
    return {
        fault.life: fault._replace(is_mendable=False, distrusted=doubts[fault.job_id])
        if fault.job_id in doubts
        else fault
        for fault in faults
    }


def corrected(
    found: Mapping[str, str], lost: Iterable[LostSignals], faults: Iterable[BoxFaults]
) -> dict[str, str]:
    """Return the fields of the hash ``boxes`` as they are after all corrections that the log allows.

    Lost signals are added, made-up fields are removed, and differing fields get the text from the log.
    """
    members: dict[str, str | None] = dict(found)
    for each in lost:
        members.update(each.members)
    mended = {fault.life: fault for fault in faults if fault.is_mendable and fault.says}
    for fault in mended.values():
        members.update(fault.members)
    kept = {name: text for name, text in members.items() if text is not None}
    for life, fault in mended.items():
        # With its number of entries, the box does not count as lost. The other numbers are derived from the members.
        kept[life] = write_header(fault.job_id, count_entries(kept, life), 0)
    return kept


def _first_part(
    members: Mapping[str, str | None], found: Mapping[str, str]
) -> dict[str, str | None]:
    """Return the fields that one call of the repair may correct. These corrections leave no new gap in the numbers of
    the box.

    Fields with a text in the log come first, in order. Then come fields that the log does not have, beginning with the
    last one.
    """
    names = [name for name, text in members.items() if text is not None]
    names += [name for name, text in reversed(list(members.items())) if text is None]
    part: dict[str, str | None] = {}
    size = 0
    for name in names:
        text = members[name]
        size += len(bytes_of(found.get(name, ""))) + len(bytes_of(text or ""))
        if part and (size > MENDED_BYTES or len(part) >= MENDED_MAX):
            break
        part[name] = text
    return part


def _false_header(box: LoggedBox, header: str | None, entries: set[int]) -> str | None:
    """Compare the number of entries in a box's header with the entries. Return a sentence if the header's number is
    larger, and None otherwise.

    The header is only compared if the box has the same entries as the log. The function also returns None if there is
    no header, or if the log has no entry of the box and may be incomplete.
    """
    said, last = header_in(header), box.entries
    is_known = last > 0 or box.is_whole
    if said is None or not is_known or entries != {*range(1, last + 1)} or said.entries <= last:
        return None
    says, has = (counted(number, "entry", "entries") for number in (said.entries, last))
    return f"its header says {says}, and the box and the log have {has}"


def _leaves_hole(box: _Box, numbers: set[int], mark: str) -> bool:
    """Return whether the box would have a gap in its numbers if its made-up fields were removed.

    Scripts never leave a gap. So such a gap means that the log lacks events, and that the fields may be right.
    ``numbers``: the numbers of its entries (``mark``: |) or signals (``mark``: >).
    """
    removed = box.members.items()
    gone = {n for n in numbers if n and (f"{box.life}{mark}{n}", None) in removed}
    return bool(gone) and min(gone) < max(numbers - gone, default=0)


def _is_complete(box: LoggedBox) -> bool:
    """Return whether the log has all entries of a box, and no signals of the box. Only then may the doctor rebuild a
    lost box.

    `rq-core audit restore` puts back a lost box that has signals.
    """
    return box.is_whole and not box.signals and sorted(box.steps) == [*range(1, len(box.steps) + 1)]


def _numbers(texts: Mapping[str, str], mark: str) -> set[int]:
    """Return the numbers of a box's entries (``mark``: |) or signals (``mark``: >)."""
    rests = (rest[1:] for rest in texts if rest[:1] == mark)
    return {int(rest) for rest in rests if rest.isascii() and rest.isdigit() and len(rest) < 9}


def _values(text: str | None, message: int | None, texts: Mapping[str, str]) -> list[str]:
    """Return the values in Redis that may be the value of a step.

    One is in the step's own ``text``. For a wait that took signal number ``message``, another is the value of this
    signal. ``texts``: the fields of the box.
    """
    own = (text or "").partition("\n")
    signal = None if message is None else signal_in(texts.get(f">{message}"))
    values = [own[2] if own[1] else None, None if signal is None else signal.value]
    return [value for value in values if value is not None]


def _value_of(signal: LoggedSignal) -> str | None:
    value = signal.facts.get("value")
    return None if value is None else str(value)


def _first_with(digest: str | None, values: Iterable[str], logged: str | None) -> str | None:
    """Return the first of ``values`` and ``logged`` that has this digest; None if there is no such value."""
    every = [*values, *([] if logged is None else [logged])]
    return next((value for value in every if digest_of(value) == digest), None)
