"""Writes the generated files of the documentation.

These are ``docs/reference``, the index of ``docs/decisions``, ``docs/how-to/alerts.md``, two files for Grafana and
Prometheus, the drawn pictures of ``docs/pictures``, and ``lua/README.md``.

    python -m scripts.docs.generate            write them
    python -m scripts.docs.generate --check    exit 1 if one is outdated, or a script's header is false

:mod:`scripts.docs.headers` checks the headers. Works in a checkout only.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rq_core.model.keys import CHANNEL, KEYS
from rq_core.model.table import event_fields, fields, machine
from rq_core.model.table.event_fields import EventField
from rq_core.model.table.machine import Event, State, Transition
from rq_core.protocol.engine import acl_roles
from rq_core.scripts import script
from rq_core.scripts.binding import READY
from rq_core.scripts.constants import CONSTANTS, OF_SCRIPT
from rq_core.scripts.header import Header, HeaderError
from rq_core.scripts.plain import plain_names
from rq_core.scripts.source import PLAIN, include_paths, read
from scripts.docs import api, diagram, dst_picture, headers, metrics, panels
from scripts.docs.pages import NOTICE, code, page, slug, table
from scripts.docs.pictures import gallery


def _purpose(header: Header) -> str:
    """Return the first sentence of the purpose in a script's header, for the reference page."""
    return " ".join(header.purpose.split()).partition(". ")[0].rstrip(".")


def _docs(cls: type) -> dict[str, str]:
    """Return the docstring below each member of an enum, by the member's name."""
    (tree,) = ast.parse(inspect.getsource(cls)).body
    body = tree.body if isinstance(tree, ast.ClassDef) else []
    found = {}
    for node, after in itertools.pairwise(body):
        match node, after:
            case (
                ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = text
            case _:
                pass
    return found


def _fields(fields: dict[Event, tuple[EventField, ...]]) -> str:
    return table(
        ("event", "fields, in order", "appended by"),
        (
            (
                f"`{event}`",
                "<br>".join(f"`{f.name}` {f.meaning}" for f in each) or "none",
                code(headers.emitters(event)),
            )
            for event, each in fields.items()
        ),
    )


def states_md() -> str:
    """Return the text of the page ``docs/reference/states.md``."""
    docs = _docs(State)
    queue_events = ", ".join(f"`{event}`" for event in event_fields.QUEUE_EVENT_FIELDS)

    drawn: dict[Transition, list[str]] = {}
    for each in machine.TRANSITIONS:
        drawn.setdefault(each._replace(script=""), []).append(each.script)

    def row(t: Transition) -> tuple[str, ...]:
        return (t.source or "none", f"`{t.event}`", t.target or "none", code(drawn[t]), t.when)

    return page(
        "# States and events",
        "The one table is `rq_core/model/table/machine.py`; this page is what it says. A job in none of these\n"
        "states has left Redis, and SQL remembers it.",
        table(("state", "meaning"), ((f"`{s}`", docs.get(s.name, "")) for s in State)),
        "## Diagram",
        "![The states of a job, and the events that lead from one to another](states.svg){.drawing .wide}",
        "*new* is a job that is not in Redis yet, *gone* one that has left it.",
        "## Transitions",
        "Nothing else may move a job. `none` is: not in Redis.",
        table(("from", "event", "to", "drawn by", "when"), map(row, drawn)),
        "## Events about jobs",
        "An outbox entry carries one event that happened to one or more jobs: `type`, `at` (Unix\n"
        "ms), `by`, perhaps `why`, and `jobs`, a JSON array with one array per job, its fields in\n"
        "this order. Fields at the end may be left out; they are null.",
        _fields(event_fields.JOB_EVENT_FIELDS),
        "## Events about the queue",
        f"{queue_events}: an entry has `data`, one JSON array, in place of `jobs`.",
        _fields(event_fields.QUEUE_EVENT_FIELDS),
        "## A state line",
        "`HGET rqc:{queue}:state ID` is the state, then those of these fields that are not at\n"
        f"their default: {code(fields.STATE_FIELDS)}.\n\n"
        "A plain job that has only waited since it was enqueued has no such line, unless its JSON is\n"
        "long: a job that is in `jobs` and not in `state` is ready. Its fields are the first line of\n"
        "`HGET rqc:{queue}:jobs ID`, before its JSON. They stay there when the job does more, as they\n"
        "were when it was enqueued.",
    )


def _script_row(name: str) -> tuple[str, ...]:
    made = script.script(name)
    header = made.header
    arrows = "<br>".join(f"`{arrow}`" for arrow in header.transitions) or "none"
    keys = dict.fromkeys("ready" if key in READY else key for key in made.keys)
    takes = "<br>".join(
        f"{what}: {code(words)}"
        for what, words in (
            ("keys", keys),
            *((f"with the fact `{fact}`", group) for fact, group in made.on_demand.items()),
            ("args", header.words("Args")),
            ("each", header.words("Each")),
        )
        if words
    )
    return (f"[`{name}`]({name}.lua)", _purpose(header), arrows, takes, header.sections["Returns"])


def _plain_row(name: str) -> tuple[str, ...]:
    header = read(script.lua_directory() / PLAIN / f"{name}.lua").header
    parts = (("keys", header.words("Keys")), ("args", header.words("Args")))
    takes = "<br>".join(f"{part}: {code(words)}" for part, words in parts if words)
    return (f"[`{name}`]({PLAIN}/{name}.lua)", _purpose(header), takes, header.sections["Returns"])


def lua_readme() -> str:
    """Return the text of ``lua/README.md``."""
    paths = include_paths(script.lua_directory())

    def include_row(name: str) -> tuple[str, ...]:
        header = headers.includes()[name]
        where = paths[name].relative_to(script.lua_directory())
        link = f"[`{where.parent}/{name}`]({where})"
        kept = header.words("Kept")
        own = (code(sorted(headers.changing(name))), f"kept: {code(kept)}" if kept else "")
        return (link, _purpose(header), code(header.uses), "<br>".join(filter(None, own)))

    return page(
        "# The scripts",
        "Each file is one family of transitions and runs as one script: whole or not at all. A\n"
        "script checks everything, then writes; if it appends events, they are its first writes.",
        "## How to read a header",
        _HEADER_GUIDE,
        "## Menu",
        table(
            ("script", "purpose", "transitions", "takes", "returns"),
            map(_script_row, script.names()),
        ),
        "## Plain programs",
        "Reads of many keys at one moment, and writes that change no job; sent with EVAL (`rq_core/scripts/plain.py`).",
        table(("program", "purpose", "takes", "returns"), map(_plain_row, plain_names())),
        "## Includes",
        "Steps that scripts share, by subject, each room taking only from those before it: `include/text`\n"
        "(numbers, batches, arrays), `include/call` (how a call begins and ends; `emit` has the only XADD),\n"
        "`include/job` (state lines), `include/caps` (scopes and lanes), `include/waiting` (lists, due times and\n"
        "deadlines of jobs that wait), `include/names` (unique names), `include/results` (remembered ids and kept\n"
        "results), `include/ends` (how claims and jobs end); `sweep` (what is due) and `claim` (what is taken;\n"
        "`claiming` tells the plot); and, in a folder of its name, the steps of one script (`enqueue/accepting` tells\n"
        "the plot of an enqueue). The last column has the variables that a call changes, and those that outlive it\n"
        "(`Kept`).",
        table(
            ("include", "purpose", "uses", "changes in a call"),
            map(include_row, sorted(paths, key=paths.__getitem__)),
        ),
        "## Names from elsewhere",
        _NAMES_GUIDE,
        table(
            ("constant", "says"),
            (
                *((f"`{name}`", says) for name, says in OF_SCRIPT.items()),
                *((f"`{name}`", says) for name, (_, says) in CONSTANTS.items()),
            ),
        ),
        "## Keys of a queue",
        "All begin with `rqc:{queue}:`, so a queue lives in one Cluster slot. `ready` in a header\n"
        "means the four lists.",
        table(("key", "type", "holds"), ((f"`{k.name}`", k.type, k.holds) for k in KEYS)),
    )


def scripts_md() -> str:
    """Return the page of the Lua scripts: the purpose, the transitions and the answers of each."""

    def row(name: str) -> tuple[str, ...]:
        header = script.script(name).header
        arrows = "<br>".join(f"`{arrow}`" for arrow in header.transitions) or "none"
        return (f"`{name}`", _purpose(header), arrows, header.sections["Returns"])

    return page(
        "# Scripts",
        "Every change of a queue is one of these Lua scripts. A script checks everything, then writes, its events\n"
        "first. `lua/README.md` in the repository also says what each takes, and which steps they share.",
        table(("script", "purpose", "transitions", "returns"), map(row, script.names())),
    )


_HEADER_GUIDE: Final = """\
The comment at the top of a file is read by the loader, `rq_core/scripts`, which generates the
binding of names to positions from it; no index of KEYS or ARGV is written anywhere.

| section | says |
| --- | --- |
| first line | the script's name, and what it is for |
| `Transitions` | the arrows that it may draw: `source -event-> target`; `none` is: not in Redis |
| `Flags` | Redis' script flags; `allow-oom`: it runs at `maxmemory` too |
| `Keys` | its keys, each a local of that name; a script has those of its includes, too; `every`: a list of all |
| `Fact` | the field of `meta` that switches this part on |
| `Field` | the field of a job's line that says whether the part has to do with the job; without it each has |
| `With` | the keys of the part: only calls to queues with that fact carry them; else they are nil |
| `Meta` | the fields of `meta` that it reads when it begins, all with one command |
| `Later` | the fields of `meta` that it reads one by one, if it needs them, or only changes |
| `Args` | one argument each, a local of that name; `:int` ones are numbers |
| `Each` | the fields of the records after them: `each(i)` returns one, `each_count` is how many |
| `Unread` | keys that it may get to write without having read them: `check_keys()` fails if one is of another type |
| `Kept` | its variables that outlive a call: constants, and what was made of a text, which is true of it in any call |
| `Lists` | lists that most calls do without, in the file's own table `lists`: `list_of(lists, 'name')` makes one |
| `Parts` | files with steps that scripts run, in order, see `include/call/parts` |
| `Uses` | from which includes it takes something, and what: `include(name name)` |
| `Returns` | the answers, by their first word; `{A B}…` repeats; `WORD` in capitals is a value |
| `Invariants` | what it keeps true, by its number in `ARCHITECTURE.md` |

Every script but handshake answers `epoch`, having written nothing, if Redis' history is not the one that the
queue remembers; and `refused WHY…`, having changed no job. Two kinds of answers are the same for many scripts and not
repeated under `Returns`: every script answers `refused arguments NAME` if an argument is missing or no whole number
(NAME is `count` if the records are), and every script that takes a `slot` answers `refused layout FOUND` to a queue of
another layout, and `refused stale_call` to a call that is older than the last one of its slot. An error is a bug, or a
key of another type.

A call fails before its first write if a key that it is going to write is of another type, and as a rule if any of its
keys is. So `Unread` may name a key that the file never writes, because a script has all keys of its includes."""


_NAMES_GUIDE: Final = """\
The loader makes one text of a script and its includes, and puts each include, once, into a block before the script.
What a file uses and does not define comes from one of these places:

- **An include**, if the file's `Uses` names it; nothing else of an include can be seen. It is the include's own
  variable and no copy: a file that takes `now` or `taken` sees each change as soon as it is made. Only the include
  assigns it.
- **The header**: a key by its name, `ready` as a table of the four lists from 0; an argument by its name; `each(i)` and
  `each_count`; and `check_keys()`, which is made from the `Unread` of the same file.
- **The loader**: `whole_number(text)`, the number if it is a whole one between -10^13 and 10^13, else nil;
  `refuse_keys()`, the answer to a call that lacks the keys of a fact, else nil; `may_end_more()`, whether the queue has
  a fact of a part that ends with a job; `decide_parts(id, job, line, outcome, fence)`, which lets these parts decide;
  and `PARTS`, the parts of the script.
- **The model**: the constants below, from `rq_core/model`.

The text is loaded once as a function of Redis, so variables outlive a call. What an include keeps during a call stands
at its top and gets its first value in its `reset()`. No file calls that: before each call the loader's code calls the
`reset()` of every include. A table that the last call has not touched serves again; for that many a `reset()` first
looks whether it is empty."""


RIGHTS: Final = f"""{NOTICE}

# Rights: users of Redis with no more than they need

`rq-core acl ROLE [--queue PATTERN] [--prefix PREFIX] [--user NAME]` prints the command that makes one:

```
$ rq-core acl producer --queue 'mail*'
ACL SETUSER rq-core-producer reset on >PASSWORD ~rqc:{{mail*}}:meta … (~rqc:inbox +lpush +ltrim)
```

Put a password in the place of `PASSWORD`, give it to an administrator's `redis-cli` (by a pipe, or at its prompt: a
shell would take `>` and `|` for its own), say `ACL SAVE` or `CONFIG REWRITE`, and name the user in the URL:
`rediss://rq-core-producer:PASSWORD@host:6379/0`. A worker with `--audit` starts a mirror with its own
URL; with users apart, run `rq-core audit run` beside it instead. Run the command again after an upgrade: scripts may
need other rights.

## Prepare the server

Only the `preparer` may load functions. Run this after each installation of a new version, before its workers begin:

```
rq-core server prepare --redis rediss://rq-core-preparer:PASSWORD@host:6379/0
```

A process of another role that finds no functions of its version goes on: it sends the same scripts by their digest
(`EVALSHA`), and says so once in its log, with this command. That takes Redis two to three times as long for a call
about one job (measured on two busy cores, Redis 7.0: enqueue 31 µs as a function and 72 µs as a script, claim 47 and
146 µs, complete 25 and 54 µs), and up to half as long again for a call about a hundred. A process that begins after
`rq-core server prepare` calls the functions.
"""

RIGHTS_LIMITS: Final = """## What the roles keep apart

- Redis checks what a script touches with the rights of who calls it. Keys and commands can be given, single scripts
  cannot: a role can call what needs no more than it has (third column), and can do by hand with its keys whatever its
  commands allow. A producer can therefore spoil a queue that it may enqueue to; it cannot settle, extend or take a
  claim, and can do nothing in queues that are not its own.
- A producer, a worker, an operator and a viewer can read the arguments and the kept results of every job in their
  queues, and a mirror the arguments. Give jobs whose arguments must be secret queues of their own.
- All roles that call scripts load them, known by their digest. A user that may load a function may replace one that
  workers call, and it would run with their rights: so only the preparer, which may touch no key, loads functions. Give
  its password to no program that runs all the time.
- No role may read or change the server's settings: `CONFIG GET` shows `requirepass` and `masterauth`. A worker, a
  mirror and the doctor therefore judge by INFO alone whether the server keeps its data, and say what INFO leaves open.
- The commands for `rqc:queues`, and those for `rqc:inbox`, are given for that key alone. A producer and a worker
  do not learn from it which other queues there are.
- Take no single right away: a script that is refused a command half-way leaves what it wrote before (`rq-core doctor
  --repair` mends that). What is missing is named in the error, as the rule that gives it.
- Redis 7.2 and newer, and Valkey: redis-py also sends `CLIENT SETINFO`, and goes on when that is refused.
  `+client|setinfo` spares `ACL LOG` the entries; Redis 7.0 does not know it. That log also has the one attempt
  to load a function, and the one of a worker, a mirror or the doctor to read CONFIG.

## What no user of one server can be kept from

Users that must be safe from each other in these ways need servers of their own:

- **Time.** A role that may send scripts (all but the preparer) can send one that never ends. It holds up all others; an
  administrator ends it with `SCRIPT KILL`, or, once it has written, with `SHUTDOWN NOSAVE`.
- **Memory.** A producer can fill the server. Then no queue takes new jobs.
- **The list of queues.** A role that may make a queue may add any name to `rqc:queues`, and the operator of one queue
  may take the name of another off. Names that no queue can have are left out by all readers and reported; `rq-core
  doctor --repair` removes them. `rq-core queue delete` removes a name without a queue. A queue comes back to the list
  when a process next meets it.
- **Databases.** A right holds for the keys of that name in all databases: queues of the same name in two databases
  cannot be kept apart. Use two prefixes.
- **Facts.** INFO shows every user how many keys, clients and commands the server has.
- **Bugs of the server.** Servers have let a script change what the scripts of other users run (CVE-2022-24735,
  CVE-2025-46818). Keep the server up to date.
"""


CHANNEL_RIGHT: Final = (
    "All begin with `rqc:{queue}:`, and so does the channel on which ends of jobs are told (`&rqc:{*}:ended`). A user"
    " without it does all its work, but waits for its jobs are then longer by the pause between two looks. The last two"
    " columns are for `rqc:queues`, the list of queues, and for `rqc:inbox`, whose tokens wake a relay of an inbox."
)


def rights_md() -> str:
    """Return the text of ``docs/reference/rights.md``."""
    rows = [
        (
            f"`{name}`: {role.does}",
            code(sorted(role.scripts)),
            code(acl_roles.beyond(name)),
        )
        for name, role in acl_roles.ROLES.items()
    ]
    of_keys, of_commands = [], []
    for name in acl_roles.ROLES:
        writes, reads = acl_roles.keys(name)
        every = len(writes) == len(KEYS)
        listed = code(f"+{word}" for word in acl_roles.ROLES[name].lists)
        woken = code(f"+{word}" for word in acl_roles.ROLES[name].inbox)
        channel = f"`{CHANNEL}`" if acl_roles.uses_channel(name) else ""
        of_keys.append(
            (f"`{name}`", "all" if every else code(writes), code(reads), channel, listed, woken)
        )
        of_commands.append(
            (f"`{name}`", code(f"+{word}" for word in acl_roles.commands_of_role(name)))
        )
    return "\n".join(
        [
            RIGHTS,
            table(["role", "its scripts", "could also call"], rows),
            "",
            "## Keys of a queue",
            "",
            CHANNEL_RIGHT,
            "",
            table(
                [
                    "role",
                    "reads and writes",
                    "reads",
                    "channel",
                    "sends for `rqc:queues`",
                    "for `rqc:inbox`",
                ],
                of_keys,
            ),
            "",
            "## Commands",
            "",
            table(["role", "may send"], of_commands),
            "",
            RIGHTS_LIMITS,
        ]
    )


def decisions_md(pages: Path) -> str:
    """Return the index of the decisions, with links to their pages. Raises ValueError for a page that is missing in the
    list.
    """
    parts = []
    for name in _DECISIONS:
        title, *headings = re.findall(
            r"^##? (.+)$", (pages / f"{name}.md").read_text(), re.MULTILINE
        )
        parts.append(f"## [{title}]({name}.md)")
        parts.append("\n".join(f"- [{text}]({name}.md#{slug(text)})" for text in headings))
    if left := {path.stem for path in pages.glob("*.md")} - {*_DECISIONS, "index"}:
        raise ValueError(
            f"docs/decisions: name {', '.join(sorted(left))} in generate.py and mkdocs.yml"
        )
    return page("# Decisions", _DECISIONS_GUIDE, *parts)


_DECISIONS: Final = (
    "states", "lua", "protocol", "lanes", "names", "waiting", "breakers", "connections", "app", "worker", "log",
    "audit", "upkeep", "proof", "metrics", "tests",
)  # fmt: skip
_DECISIONS_GUIDE: Final = """\
What a contributor might undo, with the reason not to. Each decision says what was chosen and why, what was measured
(when the decision was made), what was rejected and what it costs. `ARCHITECTURE.md` in the repository has the rooms of
the code, the invariants and the recipes for common changes."""


def files() -> dict[Path, str]:
    """Return the text of each generated file, by path.

    Raises HeaderError, OSError, or ValueError (for example, if a transition of the table has no arrow in the diagram).
    """
    lua = script.lua_directory()
    reference = lua.parent / "docs" / "reference"
    return {
        reference.parent / "decisions" / "index.md": decisions_md(reference.parent / "decisions"),
        reference / "api.md": api.api_md(),
        reference / "command-line.md": api.command_line_md(),
        reference / "errors.md": api.errors_md(),
        reference / "metrics.md": metrics.metrics_md(),
        reference.parent / metrics.RUNBOOK: metrics.runbook_md(),
        reference.parent / "grafana/alerts.yml": metrics.rules(),
        reference.parent / "grafana/rq-core.json": panels.dashboard(),
        reference / "keys.md": api.keys_md(),
        reference / "rights.md": rights_md(),
        reference / "scripts.md": scripts_md(),
        reference / "settings.md": api.settings_md(),
        reference / "states.md": states_md(),
        reference / "states.svg": diagram.svg(),
        reference.parent / "pictures/dst-nights.svg": dst_picture.svg(),
        **{reference.parent / "pictures" / name: text for name, text in gallery.pictures().items()},
        lua / "README.md": lua_readme(),
    }


def main(arguments: Sequence[str]) -> int:
    """Write the files, or check them. Return the exit status."""
    if unknown := [a for a in arguments if a != "--check"]:
        sys.stderr.write(f"generate: unknown argument {unknown[0]}\n")
        return 2
    try:
        found = headers.problems()
        wanted = {} if found else files()
    except (HeaderError, OSError, ValueError) as error:
        found, wanted = [str(error)], {}
    for path, text in wanted.items():
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        if "--check" in arguments:
            name = path.relative_to(script.lua_directory().parent)
            found.append(f"{name} is stale: run python -m scripts.docs.generate")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for problem in found:
        sys.stderr.write(f"generate: {problem}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
