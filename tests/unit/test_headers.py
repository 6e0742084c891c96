"""The headers of the Lua files. Each is true, and the check of headers finds a false one."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rq_core.model.keys import queue_keys
from rq_core.model.table import machine
from rq_core.model.table.machine import Event
from rq_core.scripts import script
from rq_core.scripts.header import HeaderError
from rq_core.scripts.script import build_script
from scripts.docs import generate, headers, lua_names

Edit = Callable[[str, str, str], None]


@pytest.fixture
def lua(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a copy of the Lua scripts. During the test the loader reads the copy."""
    copy = tmp_path / "lua"
    shutil.copytree(script.lua_directory(), copy)
    decisions = script.lua_directory().parent / "docs" / "decisions"
    shutil.copytree(decisions, tmp_path / "docs" / "decisions")
    monkeypatch.setattr(script, "lua_directory", lambda: copy)
    yield copy
    # Whatever test comes next reads the real ones.
    headers.forget()


@pytest.fixture
def edit(lua: Path) -> Edit:
    def change(name: str, old: str, new: str) -> None:
        path = lua / name
        text = path.read_text()
        assert old in text, f"{name} has no {old!r}"
        path.write_text(text.replace(old, new))

    return change


def test_the_headers_of_the_scripts_are_true() -> None:
    assert headers.problems() == []


@pytest.mark.parametrize("name", script.names())
def test_the_transitions_of_a_header_are_in_the_table(name: str) -> None:
    expected = {str(t) for t in machine.transitions_of(name)}

    assert expected == set(script.script(name).header.transitions)


@pytest.mark.parametrize("event", list(Event))
def test_each_event_is_emitted_by_a_script(event: Event) -> None:
    """Each event that the code declares must be in the header of some script."""
    assert headers.emitters(event)


# (file, text there, text in its place, what must be said)
FALSE = {
    "undeclared transition": ("complete.lua", ", cancelling -succeeded-> none", "",
        "complete.lua: does not declare cancelling -succeeded-> none, which the table has"),
    "invented transition": ("prune.lua", "dead -pruned-> none", "dead -pruned-> none, ready -pruned-> none",
        "prune.lua: declares ready -pruned-> none, which is not in the table"),
    "silent transition": ("prune.lua", "emit('pruned'", "emit('died'", "prune.lua: does not emit pruned"),
    "event of another script": ("prune.lua", "emit('pruned'", "emit('claimed'",
        "prune.lua: emits claimed, which is not in the table"),
    "unused key": ("trim.lua", "Keys: outbox", "Keys: outbox leases",
        "trim.lua: declares leases in Keys or With but does not use it"),
    "key that is touched": ("trim.lua", "Keys: outbox", "Keys: meta", "trim.lua: touches the key outbox undeclared"),
    "key of an include that is touched": ("include/call/epoch.lua", "Keys: outbox\n", "",
        "include/call/epoch.lua: touches the key outbox undeclared"),
    "unused argument": ("trim.lua", "Args: audit_id", "Args: colour audit_id",
        "trim.lua: declares colour in Args but does not use it"),
    "unused field of records": ("complete.lua", "Each: id fence", "Each: id fence mood",
        "complete.lua: declares mood in Each but does not use it"),
    "fields of records in another order": ("enqueue/accepting.lua", "local id, place, digest,",
        "local id, digest, place,", "enqueue.lua: takes kind from its records as digest"),
    "name that is taken and not used": ("trim.lua", "Uses: meta(facts", "Uses: clock(clock_ms) meta(facts",
        "trim.lua: takes clock_ms from clock but does not use it"),
    "name that is used and not taken": ("trim.lua", "set_fact('trimmed', upto)", "set_fact('trimmed', clock_ms())",
        "trim.lua: uses clock_ms of clock without taking it"),
    "variable of another file": ("trim.lua", "set_fact('trimmed', upto)", "facts.trimmed = upto",
        "trim.lua: assigns facts, which belongs to meta"),
    "variable that another room takes": ("claim/open_lanes.lua", "lane_states(is_met meet_lane)",
        "lane_states(is_met meet_lane known_lanes)",
        "open_lanes: takes known_lanes out of its room, where lane_states assigns it anew"),
    "list that is not declared": ("include/ends/death.lua", "Lists: died\n", "",
        "include/ends/death.lua: has the list died undeclared"),
    "list that is not used": ("include/ends/death.lua", "Lists: died", "Lists: buried died",
        "include/ends/death.lua: declares the list buried but does not use it"),
    "list of another file": ("include/ends/removal.lua", "remove_jobs(lists.gone)",
        "remove_jobs(lists.died or lists.gone)", "include/ends/removal.lua: has the list died undeclared"),
    "step that is left out": ("prune.lua", "run_parts('write')\n", "",
        "prune.lua: does not run the step write of removal"),
    "long function": ("include/call/wake.lua", "  is_needed = true\n", "  is_needed = true\n" * 70,
        "include/call/wake.lua: has a function of 73 lines: wake_needed"),
    "long body": ("trim.lua", "set_fact('trimmed', upto)\n", "set_fact('trimmed', upto)\n" * 60,
        "trim.lua: has a body of 91 lines"),
    "variable that is not reset": ("include/call/wake.lua", "is_needed, is_empty = false, nil", "is_needed = false",
        "include/call/wake.lua: does not say when is_empty begins anew: reset() or Kept"),
    "unread key that is none of its keys": ("prune.lua", "Unread: jobs dead", "Unread: leases jobs dead",
        "prune.lua: declares leases in Unread but not in Keys"),
    "unread keys that are not checked": ("prune.lua", "check_keys()\n", "",
        "prune.lua: has an Unread section and calls no check_keys(), or the other way round"),
    "position": ("trim.lua", "set_fact('trimmed', upto)", "set_fact('trimmed', ARGV[2])",
        "trim.lua: reads KEYS or ARGV by position"),
    "position in an include": ("include/call/wake.lua", "'LLEN', wake)", "'LLEN', KEYS[1] or wake)",
        "include/call/wake.lua: reads KEYS or ARGV by position"),
    "text in double quotes": ("trim.lua", "redis.call('XTRIM'", 'redis.call("XTRIM"',
        "trim.lua: has a text in double quotes"),
    "undeclared fact": ("trim.lua", "facts.trimmed or", "facts.lease_ms or",
        "trim.lua: reads lease_ms of meta undeclared"),
    "undeclared fact that is changed": ("trim.lua", "set_fact('trimmed', upto)",
        "set_fact(all and 'trimmed' or 'colour', upto)", "trim.lua: changes colour of meta undeclared"),
    "unused fact": ("requeue.lua", "Later: sequence", "Later: sequence colour",
        "requeue.lua: declares colour in Meta but does not use it"),
    "strange flag": ("trim.lua", "Flags: allow-oom", "Flags: allow-stale", "trim.lua: has the flags allow-stale"),
    "missing section": ("trim.lua",
        "Returns: ok trimmed|already|absent | refused elsewhere AUDIT_ID | refused off | epoch\n", "",
        "trim.lua: has no Returns"),
}  # fmt: skip


@pytest.mark.parametrize("case", FALSE)
@pytest.mark.slow
def test_the_check_of_headers_finds_a_false_header(case: str, edit: Edit) -> None:
    name, old, new, expected = FALSE[case]
    edit(name, old, new)

    assert expected in headers.problems()


ASSIGNED = {
    "now = 1": {"now"},
    "local now = 1": set(),
    "for now = 1, 2 do end": set(),
    "a, b[i].c[k + 1] = 1, 2": {"a", "b"},
    "local t = {a = 1, b = {c = 2}}": set(),
    "swept.ids[#swept.ids + 1] = id": {"swept"},
    "if a == 1 and b ~= 2 then c = a end": {"c"},
    "text = 'a = 1' -- b = 2": {"text"},
}


@pytest.mark.parametrize("code", ASSIGNED)
def test_the_check_of_headers_finds_the_names_that_lua_code_assigns(code: str) -> None:
    assert lua_names.assigned(code) == ASSIGNED[code]


def test_the_check_of_headers_finds_an_event_that_no_script_emits(edit: Edit) -> None:
    edit("configure.lua", "'resumed' or 'paused'", "'resumed' or 'resumed'")

    assert headers.problems() == ["no script emits paused"]


def test_a_name_in_a_comment_does_not_count_as_a_use_of_the_name(edit: Edit) -> None:
    """The name occurs only in a comment."""
    edit("trim.lua", "Keys: outbox", "Keys: outbox leases")
    edit("trim.lua", "set_fact('trimmed', upto)", "set_fact('trimmed', upto) -- leases (leases)")

    assert headers.problems() == ["trim.lua: declares leases in Keys or With but does not use it"]


# --- what the loader itself refuses -------------------------------------------------------------

# (file, text there, text in its place, the script that is built, what must be said)
REFUSED = [
    ("include/call/meta.lua", "Uses: memo(", "Uses: emit(emit) memo(", "trim",
     "includes go round in a circle: .*meta > emit"),
    ("include/text/heap.lua", "all the rest. ]]", "\n\nUses: wake(wake_needed)\n]]", "claim",
     "rooms go round in a circle: .*call > text > call"),
    ("trim.lua", "Uses: meta(facts", "Uses: magic(wand) meta(facts", "trim", "there is no include magic.lua"),
    ("trim.lua", "Uses: meta(facts", "Uses: meta(factory", "trim", "trim takes {'factory'} from meta.lua"),
    ("trim.lua", "Uses: meta(facts", "Uses: clock meta(facts", "trim", r"trim: Uses takes include\(name…\), not clock"),
    ("trim.lua", "Keys: outbox", "Keys: outbox cellar", "trim", "trim.lua: unknown keys.*cellar"),
    ("trim.lua", "--[[ trim:", "--[[ cut:", "trim", "trim.lua calls itself cut"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "old", "new", "built", "says"), REFUSED)
def test_a_contradictory_header_is_refused(
    edit: Edit, file: str, old: str, new: str, built: str, says: str
) -> None:
    edit(file, old, new)

    with pytest.raises(HeaderError, match=says):
        build_script(built)


def test_a_script_has_the_redis_keys_of_the_lua_files_that_it_includes(edit: Edit) -> None:
    """A key that an include needs is thus named in one file only."""
    assert build_script("trim").keys == ("meta", "wake", "outbox")
    edit("include/call/wake.lua", "Keys: wake", "Keys: wake leases")
    headers.forget()

    assert build_script("trim").keys == ("meta", "leases", "wake", "outbox")


def test_two_lua_files_with_optional_redis_keys_cannot_depend_on_the_same_fact_about_a_queue(
    edit: Edit,
) -> None:
    edit("include/waiting/deadline.lua", "Fact: ties\n", "Fact: remembers\nWith: waiting\n")
    headers.forget()

    with pytest.raises(HeaderError, match=r"another part has the Fact remembers and keys"):
        build_script("turn")


def test_a_lua_file_with_optional_redis_keys_must_name_the_fact_about_a_queue_that_requires_the_keys(
    edit: Edit,
) -> None:
    edit("include/results/results.lua", "Fact: remembers\n", "")
    headers.forget()

    with pytest.raises(HeaderError, match=r"results.lua: keys under With need one Fact"):
        build_script("turn")


def test_a_file_without_a_header_is_refused(lua: Path) -> None:
    (lua / "trim.lua").write_text("return 1\n")

    with pytest.raises(HeaderError, match=r"trim.lua: does not begin with"):
        build_script("trim")


def test_a_script_binds_the_names_of_its_keys_and_arguments_to_their_positions() -> None:
    """A header names the four ready lists by one word, and a call has a key for each of them."""
    made = script.script("requeue")
    keys = queue_keys("q")

    command = made.command(keys, [("a",), ("b",)], slot="s", number=1, by="me", why="because")

    assert command[:3] == ["EVALSHA", made.sha, len(made.keys)]
    assert [keys(f"ready:{n}") for n in range(4)] == command[6:10]
    assert command[-6:] == ["s", 1, "me", "because", "a", "b"]
    for n in range(4):
        assert f"\nready[{n}] = KEYS[{4 + n}]\n" in made.text
    assert "number = integer(ARGV[2])" in made.text


# --- generated files ----------------------------------------------------------------------------


def test_the_generated_files_are_up_to_date() -> None:
    for path, text in generate.files().items():
        assert text == path.read_text(encoding="utf-8"), path.name
        # JSON has no comments, and the first line of a picture is its root.
        commented = path.suffix not in (".json", ".svg")
        assert not commented or "Generated by" in text.splitlines()[0]


def test_the_check_of_generated_files_names_an_outdated_file(
    lua: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    (lua / "README.md").write_text("old\n")

    assert generate.main(["--check"]) == 1

    expected = "generate: lua/README.md is stale: run python -m scripts.docs.generate\n"
    assert expected == capsys.readouterr().err
    assert (lua / "README.md").read_text() == "old\n"


def test_a_false_header_stops_the_generation(
    edit: Edit, lua: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The generator writes no page."""
    (lua / "README.md").unlink()
    edit("trim.lua", "Uses: meta(facts", "Uses: magic(wand) meta(facts")

    assert generate.main([]) == 1

    assert capsys.readouterr().err == "generate: there is no include magic.lua\n"
    assert not (lua / "README.md").exists()


def test_the_generator_refuses_an_unknown_command_line_argument(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert generate.main(["--cheque"]) == 2
    assert capsys.readouterr().err == "generate: unknown argument --cheque\n"


def test_the_page_of_states_has_every_state_and_event() -> None:
    page = generate.states_md()

    for word in (*machine.State, *Event, *(t.script for t in machine.TRANSITIONS)):
        assert f"`{word}`" in page
    assert "](states.svg)" in page
