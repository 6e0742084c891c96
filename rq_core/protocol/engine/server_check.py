"""Checks INFO and CONFIG of a server, to find out whether jobs are safe on it.

Every client checks INFO before its first handshake with a queue. The client refuses a server that is too old, may
delete jobs or takes no writes. Workers and mirrors also check CONFIG when they start, and log warnings. The doctor (a
check that an operator starts) reports the remarks.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rq_core import errors
from rq_core.model.keys import queue_keys
from rq_core.model.lib.url import is_cluster
from rq_core.protocol.engine.plan import Pause, Plan, ReplyError, Send, pairs_of

if TYPE_CHECKING:
    from rq_core.protocol.engine.retried_commands import Asking

log = logging.getLogger(__name__)

FORCE_VARIABLE: Final = "RQ_CORE_FORCE"
"""The environment variable by which an operator overrules refusals of a server. If the value is neither 0 nor empty,
this process and its children refuse a server only for a reason that cannot be overruled."""
PROMOTION_WAIT_S: Final = 3.0
"""Seconds to wait for a replica to become the primary, since a failover may be under way."""
NEEDED: Final = "install Redis 7.0 or newer, or Valkey 7.2 or newer, or use embedded://"
_HIDDEN: Final = ("NOPERM", "ERR unknown command", "ERR unknown subcommand", "ERR CONFIG")
_CONFIG: Final = ("save", "appendfsync", "cluster-require-full-coverage")


@dataclass(frozen=True)
class Remark:
    """A remark about a server: what is wrong, and how serious the problem is."""

    about: str
    """The subject of the remark: version, replica, eviction, persistence, fsync, coverage (whether a lost shard stops
    the whole cluster) or hidden (settings that the user may not read)."""
    says: str
    """The text of the remark: the problem, and what to do about it."""
    refuse: bool = False
    """True if the server must not be used."""
    final: bool = False
    """True if an operator cannot overrule the refusal."""
    minor: bool = False
    """True if the remark is logged as information, not as a warning."""


def judge_info(info: Mapping[str, str]) -> list[Remark]:
    """Return the remarks about a server's INFO. A missing field causes no remark."""
    remarks = []
    version = info.get("redis_version", "")
    major = version.partition(".")[0]
    if major.isdigit() and int(major) < 7:
        says = f"it is Redis {version}, which is too old: {NEEDED}"
        remarks.append(Remark("version", says, refuse=True, final=True))
    if info.get("role") == "slave":
        where = f"{info.get('master_host', '?')}:{info.get('master_port', '?')}"
        says = f"it is a replica of {where}: name the primary in the URL"
        remarks.append(Remark("replica", says, refuse=True))
    policy = info.get("maxmemory_policy", "noeviction")
    if policy.startswith("allkeys"):
        limited = info.get("maxmemory", "0") != "0"
        when = "when it is full" if limited else "as soon as it has a maxmemory"
        says = f"its maxmemory-policy {policy} lets it delete jobs {when}: {SET.format('maxmemory-policy noeviction')}"
        remarks.append(Remark("eviction", says, refuse=limited))
    elif policy != "noeviction":
        says = (
            f"its maxmemory-policy is {policy}: rq-core's keys have no expiry, so they stay, but other programs' may"
            f" go: {SET.format('maxmemory-policy noeviction')}"
        )
        remarks.append(Remark("eviction", says))
    return remarks


SET: Final = "`CONFIG SET {}`, and the same in its configuration file"


def judge_persistence(info: Mapping[str, str], config: Mapping[str, str]) -> list[Remark]:
    """Return the remarks about data that would be lost if the server restarted, from the server's INFO and CONFIG."""
    if info.get("aof_enabled", "0") != "0":
        if config.get("appendfsync") == "no":
            says = "its appendfsync is no: a crash of the machine loses what the kernel had not written, some 30 s"
            return [Remark("fsync", f"{says}: {SET.format('appendfsync everysec')}")]
        return []
    if "save" not in config:
        return []
    how = SET.format("appendonly yes")
    if config["save"].strip():
        says = "it writes snapshots only: a restart loses all jobs since the last one"
    else:
        says = "it keeps nothing on disk (no appendonly, no save): a restart loses all jobs"
    return [Remark("persistence", f"{says}: {how}")]


def judge_coverage(config: Mapping[str, str]) -> list[Remark]:
    """Return the remarks about a cluster setting: does the loss of one shard make all queues unusable?"""
    if config.get("cluster-require-full-coverage") != "yes":
        return []
    says = (
        "its cluster-require-full-coverage is yes: while one shard has no primary, no queue of any shard can be used:"
        f" {SET.format('cluster-require-full-coverage no')}, on every node"
    )
    return [Remark("coverage", says)]


def inspect(asking: Asking, queue: str | None = None) -> Plan[Mapping[str, str] | None]:
    """Check INFO, and return its fields; None if this user may not read INFO.

    In a cluster, the shard of ``queue`` is asked if a queue is given, because another shard may be down. Raises
    ServerUnsuitable if the server must not be used, or ServerUnavailable if the server does not answer.
    """
    waited = 0.0
    while True:
        info = yield from _ask_info(asking, queue)
        if info is None:
            return None
        if info.get("cluster_enabled") == "1" and not is_cluster(asking.url):
            raise asking.unsuitable(ReplyError("MOVED"))
        refused = [r for r in judge_info(info) if r.refuse and not (forced() and not r.final)]
        if not refused:
            return info
        patience = min(PROMOTION_WAIT_S, asking.patience.unsent)
        if refused[0].about != "replica" or waited >= patience:
            overrule = (
                "" if refused[0].final else f" ({FORCE_VARIABLE}=1 or --force overrules this)"
            )
            raise errors.ServerUnsuitable(url=asking.url, why=refused[0].says + overrule)
        yield Pause(0.1)
        waited += 0.1


def remarks_on(asking: Asking, queue: str | None = None) -> Plan[list[Remark]]:
    """Check INFO and CONFIG, and return the remarks about both. Raises ServerUnsuitable if the server must not be used,
    or ServerUnavailable."""
    info = yield from inspect(asking, queue)
    (reply,) = yield Send([["CONFIG", "GET", *_CONFIG]])
    if isinstance(reply, Exception):
        why = f" ({reply})" if isinstance(reply, ReplyError) else ""
        unknown, config = hidden_config(info or {}, why), {}
    else:
        unknown, config = [], pairs_of(reply)
        if "yes" in of_all(reply, "cluster-require-full-coverage"):
            # It is enough that one node refuses, and the nodes of a cluster may differ.
            config["cluster-require-full-coverage"] = "yes"
    coverage = judge_coverage(config) if is_cluster(asking.url) else []
    if info is None:
        hidden = "INFO is hidden from this user: its version and its maxmemory-policy could not be checked"
        return [Remark("hidden", hidden), *coverage, *unknown]
    return [*judge_info(info), *judge_persistence(info, config), *coverage, *unknown]


def of_all(reply: Sequence[str], name: str) -> set[str]:
    """Return the values that one setting has on the nodes of a cluster. ``reply`` has the answers of all nodes to
    CONFIG GET, joined.
    """
    return {value for named, value in zip(reply[::2], reply[1::2], strict=True) if named == name}


def hidden_config(info: Mapping[str, str], why: str) -> list[Remark]:
    """Return the remarks for a user that has no right to read CONFIG. (CONFIG shows the server's passwords, so an
    operator may withhold the right.)
    """
    hidden = f"CONFIG is hidden from this user{why}"
    if info.get("aof_enabled", "0") != "0":
        says = f"{hidden}: how often its append-only file reaches the disk could not be checked"
        return [Remark("hidden", says, minor=True)]
    says = (
        f"it has no append-only file, and {hidden}: whether it writes snapshots could not be checked. A restart loses"
        f" all jobs since the last one: {SET.format('appendonly yes')}"
    )
    return [Remark("persistence", says)]


def warn(remarks: Iterable[Remark]) -> None:
    """Log the remarks, one line each."""
    for remark in remarks:
        level = logging.INFO if remark.minor else logging.WARNING
        log.log(level, "the server: %s", remark.says, extra={"about": remark.about})


def forced() -> bool:
    """Return whether an operator has overruled the checks, so that this process may use a server that the checks
    refuse."""
    return os.environ.get(FORCE_VARIABLE, "0") not in ("", "0")


def force() -> None:
    """Overrule the checks: this process, and the processes that it starts, may use a server that the checks refuse."""
    os.environ[FORCE_VARIABLE] = "1"


def _ask_info(asking: Asking, queue: str | None) -> Plan[Mapping[str, str] | None]:
    beside = []
    if queue is not None and is_cluster(asking.url):
        # INFO has no key, so it goes to the node of the other command.
        beside = [["HGET", queue_keys(queue, asking.prefix)("meta"), "epoch"]]
    try:
        text, *_ = yield from asking.ask([["INFO"], *beside], queue)
    except errors.ServerUnsuitable as error:
        if str(error.__cause__).startswith(_HIDDEN):
            return None
        raise
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
