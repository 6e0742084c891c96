"""Checks that lanes and holders agree with the state lines, and that no lane waits without a reason (I10)."""

from collections import defaultdict
from typing import Any

from tests.kit.snapshots import fields_of, lines_of

CLAIMED = {"running", "cancelling"}
RANK = 10**15


def scopes_of(lane: str) -> list[str]:
    return lane.split("+")[1:]


def counted(scope: str) -> bool:
    """Return whether Redis stores who holds a place in this scope: it does for caps, not for rates and fair keys."""
    family = scope.partition("=")[0]
    return "@" not in family and family != "fair"


def cap_of(snapshot: dict[str, Any], scope: str) -> int | None:
    """Return the cap in force for the scope, or None if the scope has no cap. A rate is not a cap."""
    family = scope.partition("=")[0]
    own = snapshot["caps"].get(scope)
    entry = own if own is not None or family == "task" else snapshot["caps"].get(family)
    limit = (entry or "none").split(" ")[0]
    return int(limit) if limit.isdigit() else None


def holders_of(snapshot: dict[str, Any]) -> dict[str, set[str]]:
    """Return the jobs that hold a place in each scope."""
    held: dict[str, set[str]] = defaultdict(set)
    for member in snapshot["holders"]:
        scope, _, job_id = member.partition("|")
        held[scope].add(job_id)
    return held


def has_room(snapshot: dict[str, Any], scope: str) -> bool:
    if "@" in scope.partition("=")[0]:
        return f"rate|{scope}" not in snapshot["scheduled"] and cap_of(snapshot, scope) != 0
    cap = cap_of(snapshot, scope)
    return cap is None or len(holders_of(snapshot)[scope]) < cap


def lane_problems(snapshot: dict[str, Any], jobs: dict[str, dict[str, str]]) -> list[str]:
    """Return each disagreement between state lines, lanes and holders as a sentence."""
    found = []
    waiting: dict[str, list[int]] = defaultdict(list)
    members = set()
    holders = set()
    for job_id, job in jobs.items():
        lane = job.get("lane")
        if lane is None:
            continue
        if job["state"] == "ready":
            waiting[lane].append(int(job["seq"]))
            members.add(f"{lane}|{int(job['seq']):016}|{job_id}")
        elif job["state"] in CLAIMED:
            holders |= {f"{scope}|{job_id}" for scope in scopes_of(lane) if counted(scope)}
    if members != set(snapshot["waiting"]):
        found.append(f"waiting: by state {sorted(members)}, is {sorted(snapshot['waiting'])}")
    if holders != set(snapshot["holders"]):
        found.append(f"holders: by state {sorted(holders)}, is {sorted(snapshot['holders'])}")
    if set(waiting) != set(snapshot["lanes"]):
        found.append(f"lanes: by state {sorted(waiting)}, is {sorted(snapshot['lanes'])}")
        return found
    return [*found, *_places(snapshot, waiting), *waiting_in_vain(snapshot)]


def _places(snapshot: dict[str, Any], waiting: dict[str, list[int]]) -> list[str]:
    """Return as sentences where the keys `lanes`, `open` and `blocked` contradict the waiting jobs, or each other."""
    found = []
    fair = snapshot["meta"].get("fair") == "1"
    opened, blocked = {}, set()
    for lane, place in snapshot["lanes"].items():
        where, *on, order = place.split(" ")
        if not fair and int(order) != int(lane[0]) * RANK + min(waiting[lane]):
            found.append(f"lane {lane}: order {order}, its head is {min(waiting[lane])}")
        if where == "open":
            opened[lane] = float(order)
        elif on[0] not in scopes_of(lane):
            found.append(f"lane {lane}: blocked on {on[0]}")
        else:
            blocked.add(f"{on[0]}|{order}|{lane}")
    if opened != snapshot["open"]:
        found.append(f"open: by lanes {opened}, is {snapshot['open']}")
    if blocked != set(snapshot["blocked"]):
        found.append(f"blocked: by lanes {sorted(blocked)}, is {sorted(snapshot['blocked'])}")
    return found


def waiting_in_vain(snapshot: dict[str, Any]) -> list[str]:
    """Return as sentences the lanes that wait without a reason (I10).

    A lane may wait for a scope with room in two cases: an open lane has the same scope, or a later claim will examine
    the scope again.
    """
    open_scopes = {scope for lane in snapshot["open"] for scope in scopes_of(lane)}
    swept = {m.split("|")[1] for m in snapshot["scheduled"] if m.startswith("caps|")}
    return [
        f"I10: {scope} has room, lane {member.split('|')[2]} waits for it, and no open lane contains it"
        for member in snapshot["blocked"]
        for scope in [member.split("|")[0]]
        if has_room(snapshot, scope)
        and scope not in open_scopes
        and scope.partition("=")[0] not in swept
    ]


def breaches(snapshot: dict[str, Any]) -> list[str]:
    """Return the scopes with more holders than their cap, as sentences. Only a lowered cap may cause this."""
    return [
        f"{scope}: {len(held)} hold it, its cap is {cap}"
        for scope, held in holders_of(snapshot).items()
        if (cap := cap_of(snapshot, scope)) is not None and len(held) > cap
    ]


def state_of(snapshot: dict[str, Any], job_id: str) -> dict[str, str]:
    return fields_of(lines_of(snapshot)[job_id])
