"""Checks that the indexes, the state lines and the log of a queue agree (I4, I5, I6 and I8).

The checks share no code with the doctor. So tests can compare the doctor with them.
"""

import functools
import re
from collections.abc import Mapping
from typing import Any

from rq_core.model import events
from rq_core.model.settings import RESULT_COST, SLOT_ANSWER
from rq_core.model.table.fields import STATE_FIELDS
from rq_core.model.table.machine import PRIORITIES, State
from tests.kit.lanes import lane_problems
from tests.kit.snapshots import fields_of, lines_of, number_of

CLAIMED = {"running", "cancelling"}
_FIELD = re.compile(r"(\w+)=(\S+)")
# How a state line's fields are called in a folded record, and what their absence means.
FOLDED: dict[str, tuple[str, Any]] = {
    "task": ("task", None),
    "unique": ("unique_name", None),
    "once": ("once_ms", None),
    "call": ("call_digest", None),
    "life": ("life", None),
    "lane": ("lane", None),
    "priority": ("priority", "normal"),
    "attempts": ("max_attempts", 3),
    "losses": ("max_losses", 3),
    "claim": ("claims", 0),
    "fence": ("fence", None),
    "failed": ("failures", 0),
    "lost": ("losses", 0),
    "base": ("base", None),
    "unknown": ("unknown", 0),
    "seq": ("seq", None),
    "due": ("due_ms", None),
    "since": ("since_ms", None),
    "by": ("worker", None),
    "reason": ("reason", None),
}


def entries_of(snapshot: dict[str, Any]) -> list[events.Entry]:
    """Return all entries of the outbox, decoded."""
    return [entry_of(entry_id, raw) for entry_id, raw in snapshot["outbox"]]


def entry_of(entry_id: str, raw: Mapping[str, str]) -> events.Entry:
    """Return a decoded entry of the outbox. Each entry is decoded only once, so the caller must not change it."""
    return _decoded(entry_id, tuple(raw.items()))


@functools.lru_cache(maxsize=4_096)
def _decoded(entry_id: str, raw: tuple[tuple[str, str], ...]) -> events.Entry:
    return events.decode(entry_id, dict(raw))


def _holds_name(job: dict[str, str]) -> bool:
    """Return whether a job's state line says that the job still holds its unique name.

    A job holds its name until it ends or, under a Debounce, until its first claim.
    """
    if "stands" not in job:
        return job["state"] != "dead"
    return job["stands"].startswith("claim:") and "claim" not in job


def without_task(lane: str | None) -> str | None:
    """Return the lane's name without the task's scope, or None if that was its only scope."""
    rest = [part for part in (lane or "").split("+") if not part.startswith("task=")]
    return "+".join(rest) if len(rest) > 1 else None


def problems(snapshot: dict[str, Any], *, whole_log: bool = True) -> list[str]:
    """Return each disagreement as a sentence. With ``whole_log=False``, the outbox may lack its beginning."""
    jobs = {job_id: fields_of(line) for job_id, line in lines_of(snapshot).items()}
    found = [*_lines(jobs), *_indexes(snapshot, jobs), *_log(snapshot, whole_log)]
    if whole_log:
        found += _fold(snapshot, jobs)
    return found


def looked_at(line: str, by_index: float | None) -> float:
    """Return when a claim must examine this line of the key ``results`` (Unix ms).

    This is the expiry of the line's value, or the expiry of the line if it has no value.
    """
    moments = {name: float(at) for name, at in re.findall(r" (once|until)=(\d+)", line)}
    if " bytes=" in line:
        return moments["until"]
    until = moments.get("until")
    if until is not None and by_index == until and re.search(" value=(evicted|full|lost)", line):
        return until  # it had a value
    return max(moments.values())


def assert_consistent(snapshot: dict[str, Any], *, whole_log: bool = True) -> None:
    found = problems(snapshot, whole_log=whole_log)

    assert not found, found


def _lines(jobs: dict[str, dict[str, str]]) -> list[str]:
    found = []
    for job_id, job in jobs.items():
        names = [name for name in job if name != "state"]
        if names != [name for name in STATE_FIELDS if name in job]:
            found.append(f"{job_id}: fields out of order or unknown: {names}")
        if job["state"] not in set(State):
            found.append(f"{job_id}: state {job['state']}")
            continue
        claimed = job["state"] in CLAIMED
        if claimed != ("fence" in job) or claimed != ("by" in job):
            found.append(
                f"{job_id}: {job['state']} with fence {job.get('fence')}, by {job.get('by')}"
            )
        if job["state"] != "parked" and (job["state"] == "scheduled") != ("due" in job):
            found.append(f"{job_id}: {job['state']} with due {job.get('due')}")
        if (job["state"] == "dead") != ("reason" in job):
            found.append(f"{job_id}: {job['state']} with reason {job.get('reason')}")
        if "since" not in job or "task" not in job:
            found.append(f"{job_id}: no task or since")
        if job["state"] in {"ready", *CLAIMED} and "seq" not in job:
            found.append(f"{job_id}: {job['state']} without seq")
        attempts, failed = int(job.get("attempts", 3)), int(job.get("failed", 0))
        losses, lost = int(job.get("losses", 3)), int(job.get("lost", 0))
        before = [int(number) for number in job.get("base", "0/0").split("/")]
        counts = zip((failed, lost), before, (attempts, losses), strict=True)
        if any(number - base > most or number > 10 * most for number, base, most in counts):
            found.append(
                f"{job_id}: {failed} failures of {attempts}, {lost} losses of {losses}, {before} before"
            )
    return found


def _indexes(snapshot: dict[str, Any], jobs: dict[str, dict[str, str]]) -> list[str]:
    found = []

    def compare(name: str, expected: Any, actual: Any) -> None:
        if expected != actual:
            found.append(f"{name}: by state {expected}, is {actual}")

    def having(*states: str) -> dict[str, dict[str, str]]:
        return {job_id: job for job_id, job in jobs.items() if job["state"] in states}

    meta = snapshot["meta"]
    compare("jobs", sorted(jobs), sorted(snapshot["jobs"]))
    entries = 0
    plain = {job_id: job for job_id, job in having("ready").items() if "lane" not in job}
    for rank, priority in enumerate(PRIORITIES):
        listed = snapshot[f"ready:{rank}"]
        entries += len(listed)
        for job_id, job in plain.items():
            if job.get("priority", "normal") == priority and job_id not in listed:
                found.append(f"{job_id}: ready, and not in ready:{rank}")
    compare("tombstones", entries - len(plain), int(meta.get("tombstones", 0)))
    compare(
        "scheduled",
        {
            f"job|{job_id}": float(job["due"])
            for job_id, job in having("scheduled", "parked").items()
            if "due" in job
        },
        {m: s for m, s in snapshot["scheduled"].items() if m.startswith("job|")},
    )
    found += lane_problems(snapshot, jobs)
    compare("leases", sorted(having(*CLAIMED)), sorted(snapshot["leases"]))
    compare(
        "dead",
        {job_id: float(job["since"]) for job_id, job in having("dead").items()},
        snapshot["dead"],
    )
    names = {name: i for name, i in snapshot["slots"].items() if name.startswith("unique|")}
    compare(
        "names",
        {
            f"unique|{job['unique']}": i
            for i, job in jobs.items()
            if "unique" in job and _holds_name(job)
        },
        {name: i for name, i in names.items() if " " not in i},
    )
    compare(
        "expiring names",
        {
            f"name|{name.removeprefix('unique|')}": float(holder.split(" ")[1])
            for name, holder in names.items()
            if " " in holder
        },
        {m: at for m, at in snapshot["expiring"].items() if m.startswith("name|")},
    )
    deadlines = {
        f"job|{i}": float(job["expires"])
        for i, job in having("ready", "scheduled", "parked").items()
        if "expires" in job
    }
    running = {f"job|{job_id}" for job_id in having(*CLAIMED)}
    compare(
        "deadlines",
        deadlines,
        {
            m: at
            for m, at in snapshot["expiring"].items()
            if m.startswith("job|") and m not in running
        },
    )
    compare(
        "results",
        {
            i: looked_at(line, snapshot["kept"].get(i))
            for i, line in snapshot["results"].items()
            if " once=" in line or " until=" in line
        },
        snapshot["kept"],
    )
    compare("ids alive and ended", set(), snapshot["results"].keys() & jobs.keys())
    size = sum(len(line.encode()) for line in snapshot["results"].values())
    compare("results_bytes", size, int(meta.get("results_bytes", 0)))
    lengths = {
        i: int(bytes_[1])
        for i, line in snapshot["results"].items()
        if (bytes_ := re.search(r" bytes=(\d+)", line)) is not None
    }
    compare("values", lengths, {i: len(v.encode()) for i, v in snapshot["returned"].items()})
    load = sum(lengths.values()) + sum(
        len(line.encode()) + RESULT_COST
        for line in snapshot["results"].values()
        if " until=" in line and " once=" not in line
    )
    compare("kept_bytes", load, int(meta.get("kept_bytes", 0)))
    kept = {name: at for name, at in snapshot["slots"].items() if not name.startswith("unique|")}
    answered = sorted(name + SLOT_ANSWER for name, facts in kept.items() if facts.endswith(" +"))
    missing = set(answered) - kept.keys()
    found += [f"{name}: a slot lacks its answer" for name in sorted(missing)]
    slots = {
        f"slot|{name}": float(facts.split(" ")[1])
        for name, facts in kept.items()
        if not name.endswith(SLOT_ANSWER)
    }
    marks = {m: score for m, score in snapshot["expiring"].items() if m.startswith("slot|")}
    compare("expiring slots", slots, marks)
    compare(
        "expiring dead",
        sorted(f"dead|{job_id}" for job_id in having("dead")),
        sorted(m for m in snapshot["expiring"] if m.startswith("dead|")),
    )
    if len(snapshot["wake"]) > 1:
        found.append(f"wake has {len(snapshot['wake'])} tokens")
    found += _boxes(snapshot, jobs)
    found += _shown(snapshot)
    compare(
        "parked",
        {job_id: float(job["since"]) for job_id, job in having("parked").items()},
        snapshot["parked"],
    )
    for job_id, job in having("parked").items():
        for number in job["waits"].split(","):
            entry = snapshot["boxes"].get(f"{job['life']}|{number}", "").split(" ")
            is_there = f"{job['life']}>{entry[0].partition('#')[0]}" in snapshot["boxes"]
            if (
                len(entry) < 2
                or entry[1] not in ("waits", "sleeps")
                or (entry[1] == "waits" and is_there)
            ):
                found.append(f"job {job_id} is parked for entry {number}, which is {entry}")
    places = [int(job["seq"]) for job in jobs.values() if "seq" in job]
    if len(set(places)) != len(places):
        found.append("two jobs have the same place in line")
    if places and max(places) > int(meta["sequence"]):
        found.append(f"sequence is {meta['sequence']}, a job has {max(places)}")
    return found


def _shown(snapshot: dict[str, Any]) -> list[str]:
    """Return the errors in the key `shown`: in its lines, its chunks, and the expiries of streams."""
    found, shown = [], snapshot["shown"]
    lines = {
        name: dict(_FIELD.findall(text.partition("\n")[0]))
        for name, text in shown.items()
        if "~" not in name
    }
    chunks: dict[str, dict[int, int]] = {name: {} for name in lines}
    for name, text in shown.items():
        job_id, mark, number = name.partition("~")
        if mark:
            chunks.setdefault(job_id, {})[int(number)] = len(text.encode())
    for job_id, sizes in chunks.items():
        line = lines.get(job_id)
        if line is None:
            found.append(f"shown: the chunks of {job_id} have no line")
        elif sum(sizes.values()) != int(line["bytes"]):
            found.append(f"shown: {job_id} has {sum(sizes.values())} bytes of chunks: {line}")
        elif sizes and (min(sizes) < int(line["from"]) or max(sizes) != int(line["to"])):
            found.append(f"shown: {job_id} has the chunks {sorted(sizes)}: {line}")
        elif job_id not in snapshot["jobs"] and "left" not in line:
            found.append(f"shown: there is no job {job_id}")
    ended = {f"shown|{name}" for name, line in lines.items() if {"left", "died"} & line.keys()}
    marks = {mark for mark in snapshot["expiring"] if mark.startswith("shown|")}
    return [*found, *(f"shown: {mark}" for mark in ended ^ marks)]


def _boxes(snapshot: dict[str, Any], jobs: dict[str, dict[str, str]]) -> list[str]:
    found = []
    boxes, lives = snapshot["boxes"], {job["life"]: i for i, job in jobs.items() if "life" in job}
    headers = {life: text for life, text in boxes.items() if not set("|>=") & set(life)}
    for life, text in headers.items():
        said = re.fullmatch(r"job=(\S+) entries=(\d+) bytes=(\d+)(?: mail=(\d+))?", text)
        mail = [boxes[f"{life}>{n}"] for n in range(1, int((said and said[4]) or 0) + 1)]
        waiting: dict[str, list[str]] = {}
        keys: dict[str, str] = {}
        for number, signal in enumerate(mail, 1):
            if "\n" in signal:
                waiting.setdefault(signal.split()[0], []).append(str(number))
            if key := re.search(r" key=(\S+)", signal.partition("\n")[0]):
                keys[f"{life}={key[1]}"] = str(number)
        wanted = {f"{life}>{name}": " ".join(each) for name, each in waiting.items()} | keys
        actual = {
            name: boxes[name]
            for name in boxes
            if name.startswith((f"{life}>", f"{life}=")) and not name.rpartition(">")[2].isdigit()
        }
        if life in lives and wanted != actual:
            found.append(f"signals of box {life}: {actual}, not {wanted}")
        numbers = sorted(int(name.split("|")[1]) for name in boxes if name.startswith(f"{life}|"))
        values = [text.partition("\n")[2] for text in mail]
        values += [boxes[f"{life}|{n}"].partition("\n")[2] for n in numbers]
        size = sum(len(value.encode()) for value in values)
        if said is None or [*range(1, int(said[2]) + 1)] != numbers:
            found.append(f"box {life}: {text}, has entries {numbers}")
        elif life in lives and (said[1], int(said[3])) != (lives[life], size):
            found.append(f"box {life} of {lives[life]}: {text}, has {size} bytes")
    left = {f"box|{life}" for life in headers.keys() - lives.keys()}
    if left != {mark for mark in snapshot["expiring"] if mark.startswith("box|")}:
        found.append(f"boxes to be emptied: {sorted(left)}")
    if lives.keys() - headers.keys():
        found.append(f"jobs without their boxes: {lives}")
    if strays := {name for name in boxes if re.split("[|>=]", name)[0] not in headers}:
        found.append(f"entries without a box: {sorted(strays)}")
    return found


def _log(snapshot: dict[str, Any], whole_log: bool) -> list[str]:
    found = []
    numbers = [number_of(entry_id) for entry_id, _ in snapshot["outbox"]]
    for before, after in zip([None, *numbers], numbers, strict=False):
        begins = before is None or before[0] != after[0]
        if begins and after[1] == 0:
            kind = dict(snapshot["outbox"])[f"{after[0]}-0"]["type"]
            if kind != "epoch_started":
                found.append(f"epoch {after[0]} begins with {kind}")
        elif begins and (before is not None or whole_log):
            found.append(f"epoch {after[0]} begins with number {after[1]}")
        elif not begins and before is not None and after[1] != before[1] + 1:
            found.append(f"number {after} follows {before}")
    if numbers and str(numbers[-1][0]) != snapshot["meta"].get("epoch"):
        found.append(f"epoch is {snapshot['meta'].get('epoch')}, the log ends in {numbers[-1]}")
    return found


def _fold(snapshot: dict[str, Any], jobs: dict[str, dict[str, str]]) -> list[str]:
    records, found = events.fold_all(entries_of(snapshot))
    live = {job_id: record for job_id, record in records.items() if record.state is not None}
    if sorted(live) != sorted(jobs):
        found.append(f"live by the log {sorted(live)}, by state {sorted(jobs)}")
    for job_id in live.keys() & jobs.keys():
        job, record = jobs[job_id], live[job_id]
        if record.state != job["state"]:
            found.append(f"{job_id}: {record.state} by the log, {job['state']} by state")
        for name, (attribute, default) in FOLDED.items():
            told = getattr(record, attribute)
            stands = job.get(name, default)
            if name == "lane":
                # A task's first cap moves its jobs into a lane without an event: nothing happened to them.
                told, stands = without_task(told), without_task(stands)
            if (None if stands is None else str(stands)) != (None if told is None else str(told)):
                found.append(f"{job_id}: {name} is {told} by the log, {stands} by state")
    return found
