"""`rq-core steps` shows the saved steps of a durable job, and the steps that are begun but not saved."""

from __future__ import annotations

import json

from click.testing import CliRunner, Result

from rq_core.cli.root import root
from rq_core.protocol.calls.boxes import Sending, send_signals
from tests.kit.seed import LIFE, Seed


def steps(url: str, *words: str) -> Result:
    return CliRunner().invoke(root, ["steps", *words, "--redis", url])


def test_the_steps_command_shows_the_steps_of_a_job_with_their_claims(valkey_url: str) -> None:
    with Seed(valkey_url, real_clock=True) as seed:
        claim = seed.running("a")
        assert "job a has saved no step" in steps(valkey_url, "a").output
        seed.save(claim)
        seed.save(claim, what="begin", entry=2, name="ship")
        seed.fail(claim, verdict="final")

        shown = steps(valkey_url, "a").output
        whole = steps(valkey_url, "a", "--values").output
        found = json.loads(steps(valkey_url, "a", "--json").output)

    assert [["1", "charge", "saved"], ["2", "ship", "in"]] == [
        line.split()[:3] for line in shown.splitlines() if line.strip()[:1].isdigit()
    ]
    assert ["no", "step", "state", "when", "fence", "digest"] in map(str.split, shown.splitlines())
    assert claim.fence in shown
    assert '{"id":1}' in whole
    assert '{"id":1}' not in shown
    assert [(1, "charge", True), (2, "ship", False)] == [
        (each["entry"], each["name"], each["is_saved"]) for each in found
    ]
    assert LIFE not in shown


def test_the_steps_command_shows_waits_and_the_signal_command_ends_them(valkey_url: str) -> None:
    def signal(*words: str) -> Result:
        return CliRunner().invoke(root, ["signal", *words, "--redis", valkey_url])

    with Seed(valkey_url, real_clock=True) as seed:
        fence = seed.parked("a")
        counted = CliRunner().invoke(root, ["queues", "--redis", valkey_url]).output
        assert " waits " in steps(valkey_url, "a").output
        told = ["a", "approval", "--value", '{"ok": true}', "--by", "ann", "--reason", "checked"]
        sent = signal(*told, "--key", "k")
        again = json.loads(signal(*told, "--key", "k", "--json").output)
        entry = seed.entries()[-2]

    assert "parked" in counted
    assert [seed.queue, "0", "0", "1", "0"] in [line.split()[:5] for line in counted.splitlines()]
    assert "a: the job is ready" in sent.output
    assert (again["outcome"], again["signal"]) == ("known", 1)
    assert (str(entry.event), entry.by, entry.why) == ("signalled", "ann", "checked")
    assert "signal 1 of the job had this key" in signal("a", "refusal", "--key", "k").output
    nobody = signal("nobody", "approval")
    assert 1 == nobody.exit_code
    assert "It has ended, or it was never enqueued" in nobody.output
    assert "rq-core audit history nobody" in nobody.output
    assert 2 == signal("a", "approval", "--value", "{").exit_code
    assert fence


def test_the_signal_command_says_how_a_dead_job_can_take_the_signal(
    valkey_url: str,
) -> None:
    with Seed(valkey_url, real_clock=True) as seed:
        claim = seed.running("a")
        seed.save(claim)
        waiting = CliRunner().invoke(root, ["signal", "a", "approval", "--redis", valkey_url])
        seed.fail(claim, verdict="final")
        dead = CliRunner().invoke(root, ["signal", "a", "approval", "--redis", valkey_url])

    assert "a: the signal waits for the job\n" == waiting.output
    assert 0 == dead.exit_code
    assert "a: the job is dead, and the signal is kept: `rq-core requeue a`" in dead.output
    assert "`rq-core fork a --from-step approval`" in dead.output


def test_the_steps_command_names_audit_history_for_a_job_that_has_left_redis(
    valkey_url: str,
) -> None:
    with Seed(valkey_url, real_clock=True) as seed:
        claim = seed.running("a")
        seed.save(claim)
        seed.complete(claim)

    result = steps(valkey_url, "a")

    assert result.exit_code == 1
    assert "rq-core audit history a" in result.output


def test_the_job_command_shows_the_steps_of_a_job_and_marks_steps_in_doubt(valkey_url: str) -> None:
    with Seed(valkey_url, real_clock=True) as seed:
        claim = seed.running("a")
        seed.save(claim)
        seed.save(claim, what="begin", entry=2, name="ship")
        shown = CliRunner().invoke(root, ["job", "a", "--redis", valkey_url]).output
        asked = ["job", "a", "--json", "--redis", valkey_url]
        found = json.loads(CliRunner().invoke(root, asked).output)
        seed.control.delete(seed.keys("boxes"))
        lost = CliRunner().invoke(root, ["job", "a", "--redis", valkey_url]).output

    assert "2, in doubt: ship" in shown
    assert [["1", "charge", "saved"], ["2", "ship", "in"]] == [
        line.split()[:3] for line in shown.splitlines() if line.strip()[:1] in ("1", "2")
    ]
    assert [("charge", True), ("ship", False)] == [
        (each["name"], each["is_saved"]) for each in found["steps"]
    ]
    assert "value" not in found["steps"][0]
    assert "Redis lacks them" in lost


def test_the_steps_and_job_commands_do_not_show_internal_entries_as_steps_in_doubt(
    valkey_url: str,
) -> None:
    with Seed(valkey_url, real_clock=True) as seed:
        claim = seed.running("a")
        seed.save(claim, what="begin", name="rq_core.life")
        seed.save(claim, what="begin", entry=2, name="ship")
        listed = steps(valkey_url, "a").output
        document = json.loads(steps(valkey_url, "a", "--json").output)
        shown = CliRunner().invoke(root, ["job", "a", "--redis", valkey_url]).output

    for said in (listed, shown):
        (row,) = [line for line in said.splitlines() if "rq_core.life" in line]
        assert "for job.key()" in row
        assert "in doubt" not in row
    assert "2, in doubt: ship\n" in shown
    assert [("rq_core.life", False), ("ship", True)] == [
        (each["name"], each["is_in_doubt"]) for each in document
    ]


def test_the_job_command_shows_what_a_parked_job_waits_for_and_which_signals_are_kept(
    valkey_url: str,
) -> None:
    with Seed(valkey_url, real_clock=True) as seed:
        claim = seed.running("a")
        seed.wait(claim, "9000000000000")
        seed.wait(claim, entry=2, name="nap", what="sleep")
        seed.signal("a", name="refusal", key="k", value='"private"')
        seed.park(claim, waits="1,2")
        shown = CliRunner().invoke(root, ["job", "a", "--redis", valkey_url]).output
        found = json.loads(
            CliRunner().invoke(root, ["job", "a", "--json", "--redis", valkey_url]).output
        )

    waits = "the signal approval until 2255-03-14 16:00:00 UTC, the end of its sleep nap"
    assert f"parked for  {waits}\n" in shown
    assert "signals     that no wait has taken: 1 refusal (" in shown
    (signal,) = found["signals"]
    assert (1, "refusal", "k") == (signal["signal"], signal["name"], signal["key"])
    assert "private" not in json.dumps(found)


def test_the_job_command_leaves_out_the_signals_that_children_sent(valkey_url: str) -> None:
    """Checks a parent that read the end of a child by itself, so that no wait takes the child's signal."""
    with Seed(valkey_url, real_clock=True) as seed:
        claim = seed.running("a")
        seed.save(claim, name="map:parts", value='{"count":1,"queue":"q"}')
        record = Sending("a", "rq_core.child.1.0", "", "null", LIFE)
        (sent,) = seed.client.run(send_signals(seed.queue, [record], by="w-1"))
        alone = CliRunner().invoke(root, ["job", "a", "--redis", valkey_url]).output
        seed.signal("a", name="refusal")
        shown = CliRunner().invoke(root, ["job", "a", "--redis", valkey_url]).output

    assert sent.outcome == "sent"
    assert "signals" not in alone
    assert "  that no wait has taken: 2 refusal (" in shown
    assert "rq_core.child" not in alone + shown


def test_the_fork_command_enqueues_a_fork_that_has_the_steps_before_the_named_step(
    valkey_url: str,
) -> None:
    def fork(*words: str) -> Result:
        return CliRunner().invoke(root, ["fork", *words, "--redis", valkey_url])

    with Seed(valkey_url, real_clock=True) as seed:
        claim = seed.running("a")
        seed.save(claim)
        seed.save(claim, entry=2, name="ship")
        seed.fail(claim, verdict="final")

        first = fork("a", "--from-step", "ship", "--by", "ann", "--reason", "checked")
        entry = seed.entries()[-1]
        again = json.loads(fork("a", "--from-step", "ship", "--json").output)
        unknown = fork("a", "--from-step", "pay")

    assert f"{again['id']} enqueued in {seed.queue}" in first.output
    assert (True, seed.queue) == (again["duplicate"], again["queue"])
    assert ("ann", "fork of a from ship: checked") == (entry.by, entry.why)
    assert 1 == unknown.exit_code
    assert "it has no step 'pay', but charge, ship." in unknown.output
    assert 1 == fork("nobody").exit_code
    assert "If it has ended, name the audit database" in fork("nobody").output
