"""The command ``rq-core doctor``."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from rq_core.cli.options import (
    actor,
    audit_url_option,
    by_option,
    connect,
    force_option,
    inbox_url_option,
    json_option,
    known_queues,
    print_json,
    server_options,
)
from rq_core.cli.places import inbox_alias, of_inbox
from rq_core.cli.text import say
from rq_core.errors import LayoutMismatch, QueueDamaged, RqCoreError
from rq_core.model import plugins
from rq_core.model.lib.text import counted
from rq_core.protocol.engine import server_check

if TYPE_CHECKING:
    from rq_core.connections.client import Client
    from rq_core.doctor import Evidence, Finding
    from rq_core.doctor.repair import Audit

_COMMAND_ON_INBOX: Final = re.compile(r"(`rq-core inbox \w+ )URL`")


@click.command()
@click.argument("queues", metavar="[QUEUE]...", nargs=-1)
@click.option("--repair", "mend", is_flag=True, help="Repair the differences that are found.")
@by_option
@audit_url_option("Compare mirrored queues with this database, too.")
@inbox_url_option("Check the inbox in this database, too, by the URL of its relay.")
@server_options
@force_option()
@json_option
def doctor(
    queues: Sequence[str],
    by: str | None,
    audit_url: str | None,
    inbox_url: str | None,
    redis_url: str,
    prefix: str,
    *,
    mend: bool,
    as_json: bool,
) -> None:
    """Check the server's settings, and compare queues (all, if none is named) with their state lines and their logs.

    The doctor also reports a mirror that lags by more than a minute. For an inbox, the doctor checks the tables, the
    rights of its relay, and rows that wait for more than a minute or are parked. It also compares the last batches with
    Redis. It mends nothing in an inbox. It changes nothing without --repair. The exit status is 1 if differences are
    left, if a mirror lags, or if the database does not answer, is empty or has no row of a queue whose log is on. It is
    2 if the doctor found no difference, but could not compare with the database of --audit. Without --audit it does not
    compare with SQL. `rq-core audit restore` restores jobs that Redis lost and SQL has. The doctor reads whole queues;
    it reads large queues in pages. In a large queue, it compares sums, wake tokens, the order of fair queues and
    blocked lanes only if the queue does not change while it is read.
    """
    who = actor(by)
    reports: list[dict[str, Any]] = []
    unknown: list[str] = []

    def tell(report: dict[str, Any], *, mend: bool, name: str = "server") -> None:
        reports.append(report)
        if not as_json:
            _print(report, name, mend=mend, compared=not unknown)

    with connect(redis_url, prefix) as client:
        remarks = client.run(server_check.remarks_on(client.calls.delivery.asking))
        if remarks:
            tell(_report_on_server(remarks), mend=False)
        report = _report_on_list(client, mend=mend)
        if report["found"]:
            tell(report, mend=mend)
        if inbox_url is not None:
            alias = inbox_alias(click.get_current_context())
            tell(_report_on_inbox(client, inbox_url, queues, alias), mend=False, name="inbox")
        of_log, why = _queues_of_log(client, audit_url)
        unknown += why
        if unknown:
            tell(_report(None, unknown=unknown), mend=False)
        here, lost = _named(client, queues, of_log)
        for queue in (*here, *lost):
            report = _report(queue)
            audit = partial(_audit, client, queue, audit_url, report, is_logged=queue in of_log)
            if queue in here:
                _report_unlisted(client, queue, report, mend=mend)
                _report_mirror(client, queue, report)
            _examine(client, queue, who if mend else None, report, audit)
            tell(report, mend=mend)
    if as_json:
        print_json(reports)
    left = sum(len(r["left"]) + (r["error"] is not None) for r in reports)
    if left:
        can = not mend and any(each["mendable"] for r in reports for each in r["left"])
        fix = "; --repair mends what can be mended" if can else ""
        raise click.ClickException(f"{counted(left, 'finding')}{fix}")
    if any(r["unknown"] for r in reports):
        raise _CannotTell("it is unknown whether SQL agrees")


class _CannotTell(click.ClickException):
    exit_code = 2


def _report_on_server(remarks: Sequence[server_check.Remark]) -> dict[str, Any]:
    """Return the report on the server's settings, in the form of a queue's report. ``remarks``: what is wrong with
    them. The doctor cannot repair them."""
    found: list[dict[str, Any]] = [
        {"kind": r.about, "job": None, "keys": [], "says": r.says, "mendable": False}
        for r in remarks
    ]
    return _report(None, found=found)


def _report(
    queue: str | None,
    *,
    found: Sequence[dict[str, Any]] = (),
    unknown: Sequence[str] = (),
) -> dict[str, Any]:
    return {
        "queue": queue, "error": None, "found": [*found], "left": [], "unknown": [*unknown],
    }  # fmt: skip


def _queues_of_log(client: Client, audit_url: str | None) -> tuple[list[str], list[str]]:
    """Return two lists: the queues that Redis should have according to the audit log, and the error messages from
    reading the log."""
    if audit_url is None:
        return [], []
    try:
        with contextlib.closing(plugins.reader_opener()(audit_url)) as reader:
            return reader.mirrored(client), []
    except RqCoreError as error:
        return [], [str(error)]


def _named(
    client: Client, queues: Sequence[str], of_log: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return two lists: the queues in Redis to examine, and the queues that only the audit log has.

    Without ``queues``, all queues are examined, including those that are missing in the list of queues but in the log.
    Raises UnknownQueue.
    """
    listed = client.run(client.calls.reads.queues()) if of_log else []
    unlisted = [queue for queue in of_log if queue not in listed]
    lost = [queue for queue in unlisted if not client.run(client.calls.reads.is_there(queue))]
    named = [queue for queue in queues if queue not in lost]
    here = known_queues(client, *named, warned=True, any_layout=True) if named or not queues else []
    if not queues:
        here += [queue for queue in unlisted if queue not in lost and queue not in here]
    return here, [queue for queue in lost if not queues or queue in queues]


def _report_on_list(client: Client, *, mend: bool) -> dict[str, Any]:
    """Return the report on the list of queues: the words in it that cannot be names of queues.

    With ``mend``, remove these words.
    """
    listed = client.run(client.calls.reads.listed())
    found: list[dict[str, Any]] = [
        {"kind": "list", "job": None, "keys": ["queues"], "says": says, "mendable": True}
        for says in [listed.complaint]
        if says
    ]
    if mend:
        client.run(client.calls.reads.strike(listed.strays))
    left = [] if mend else found
    return {**_report(None, found=found), "left": left}


def _report_on_inbox(
    client: Client, inbox_url: str, queues: Sequence[str], alias: str | None
) -> dict[str, Any]:
    """Return the report on an inbox, in the form of a queue's report. If ``queues`` is not empty, report only on these
    queues.

    ``alias``: the alias in Django's DATABASES by which the command line named the inbox, or None. Commands in the
    report then have it in place of the word URL.
    """
    from rq_core.metrics.causes import causes_of_inbox

    report = _report(None)
    said: list[tuple[str | None, str]] = []
    try:
        with contextlib.closing(plugins.inbox_reader_opener()(inbox_url)) as reader:
            said += [(each.queue, each.says) for each in reader.examine(client)]
            overview = reader.look()
        said += [(each.queue, each.damage) for each in overview.queues if each.damage is not None]
        said += [(each.queue, each.says) for each in causes_of_inbox(overview)]
    except RqCoreError as error:
        report["error"] = str(of_inbox(alias, error))
    for queue, says in said:
        if queue is None or not queues or queue in queues:
            of_queue = "" if queue is None else f"queue {queue}: "
            found: dict[str, Any] = {"kind": "inbox", "job": None, "keys": []}
            named = says if alias is None else _COMMAND_ON_INBOX.sub(rf"\1{alias}`", says)
            found |= {"says": of_queue + named, "mendable": False}
            report["found"].append(found)
            report["left"].append(found)
    return report


def _report_unlisted(client: Client, queue: str, report: dict[str, Any], *, mend: bool) -> None:
    """Add to a queue's report that the list of queues lacks the queue. With ``mend``, add the queue to the list."""
    if queue in client.run(client.calls.reads.queues()):
        return
    says = "the list of queues lacks it: only its own workers and producers find it, until one of them starts"
    found = {"kind": "list", "job": None, "keys": ["queues"], "says": says, "mendable": True}
    report["found"].append(found)
    if mend:
        client.run(client.calls.reads.enlist(queue))
    else:
        report["left"].append(found)


def _report_mirror(client: Client, queue: str, report: dict[str, Any]) -> None:
    """Add to a queue's report the events that have waited too long for the mirror. The doctor cannot report that no
    mirror runs, because Redis has no record of mirrors."""
    from rq_core.metrics.causes import mirror_behind

    looked, _ = client.run(client.calls.reads.looks([queue]))
    for says in filter(None, map(mirror_behind, looked)):
        advice = "; start `rq-core audit run`, or look into its log"
        found: dict[str, Any] = {"kind": "mirror", "job": None, "keys": ["outbox"]}
        found |= {"says": says + advice, "mendable": False}
        report["found"].append(found)
        report["left"].append(found)


def _examine(
    client: Client, queue: str, by: str | None, report: dict[str, Any], audit: Audit
) -> None:
    """Examine a queue, and add the findings to its report. If ``by`` (the operator's name) is given, repair the
    findings.

    ``audit``: a function that also reads the audit database.
    """
    from rq_core.doctor import Kind, diagnose, repair

    try:
        found = diagnose(client, queue, audit=audit)
        left = found if by is None else repair(client, queue, found, by=by, audit=audit)
    except (LayoutMismatch, QueueDamaged) as error:
        report["error"] = str(error)
        return
    for part, findings in (("found", found), ("left", left)):
        report[part] += [_document(f) for f in findings if f.kind is not Kind.UNKNOWN]
    report["unknown"] += [f.says for f in left if f.kind is Kind.UNKNOWN]


def _audit(
    client: Client,
    queue: str,
    audit_url: str | None,
    report: dict[str, Any],
    *,
    is_logged: bool,
) -> Evidence | None:
    """Read a queue from Redis and from the audit log. Return None if the queue has no log, or if reading failed.

    ``is_logged``: True if the audit log has the queue.
    """
    if audit_url is None or report["error"] is not None:
        return None
    try:
        if not is_logged and not client.run(client.calls.reads.counts(queue)).audit:
            return None
        look: Evidence = plugins.drift()(audit_url, client, queue)
    except RqCoreError as error:
        # The findings in Redis alone are reported nevertheless.
        report["error"] = str(error)
        return None
    return look


def _document(finding: Finding) -> dict[str, Any]:
    return {
        "kind": str(finding.kind),
        "job": finding.job_id,
        "keys": finding.keys,
        "says": finding.says,
        "mendable": finding.mendable,
    }


def _print(report: dict[str, Any], name: str, *, mend: bool, compared: bool) -> None:
    """Print a report. ``name``: its subject if it is not about a queue.

    ``compared``: False if an audit database was given and could not be read.
    """
    agrees = "all agrees" if compared else "Redis agrees with itself, and was not compared with SQL"
    queue, found, left = report["queue"] or name, report["found"], report["left"]
    if report["error"] is not None:
        say(f"{queue}: {report['error']}")
    elif not found and not report["unknown"]:
        say(f"{queue}: {agrees}")
    for each in found:
        say(f"{queue}: {_line(each, queue)}")
    for says in report["unknown"]:
        say(f"{queue}: cannot tell: {says}")
    if mend and found:
        told = report["error"] is None and not report["unknown"]
        mended = f"mended, {agrees}" if told else "mended"
        say(f"{queue}: {counted(len(left), 'finding')} left" if left else f"{queue}: {mended}")
        for each in left:
            say(f"{queue}: left: {_line(each, queue)}")


def _line(finding: Mapping[str, Any], subject: str) -> str:
    """Return a finding as one line. The job's id comes first, unless the finding's sentence has it. ``subject``: the
    word that is printed before the line, and therefore not repeated in it."""
    job, says = finding["job"], finding["says"]
    of_job = f"job {job}: " if job and job not in says else ""
    of_kind = "" if finding["kind"] == subject == "inbox" else f"{finding['kind']}: "
    return f"{of_kind}{of_job}{says}"
