"""Creates reference pages from the code: the public names, the command line, errors, settings and keys."""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Iterator
from typing import Any, Final, ForwardRef

import click

import rq_core
from rq_core.cli.root import root
from rq_core.errors import RqCoreError
from rq_core.model.keys import KEYS
from rq_core.model.lib.url import AUDIT_URL_VARIABLE, DEFAULT_URL, REDIS_URL_VARIABLE
from rq_core.model.settings import SETTINGS
from rq_core.model.table.machine import Priority
from rq_core.protocol.engine.server_check import FORCE_VARIABLE
from scripts.docs.pages import code, page, prose, table

_ADDRESS: Final = re.compile(r"<[^<>]* at 0x[0-9a-f]+>")

VARIABLES: Final = {
    REDIS_URL_VARIABLE: f"the server, where neither `--redis` nor `App(redis)` names one; else {DEFAULT_URL}",
    AUDIT_URL_VARIABLE: "the audit database, where neither `--audit` nor `App(audit=…)` names one."
    " A worker mirrors only with `--audit`",
    FORCE_VARIABLE: "1: producers use a server that may lose jobs, or is a replica, as `--force` does for workers;"
    " and a worker starts although its app declares none of its `--queues`",
}
"""The environment variables that the packages read, each with its meaning."""


HIDDEN: Final = {
    "Batch": "linger_s",
    "App": "redactor returned_of settings declaration declare_schedules spec_max_in new_job connect_to client"
    " async_client",
    "Cap": "family limit",
    "BatchContext": "limit tell",
    "JobContext": "limit tell",
    "JobHandle": "is_of",
    "Limit": "interval_us latest_resume_ms furthest_us",
    "Named": "ties replaces delay_ms arguments function function_name has_named_function caps check name naming",
    "RetryPolicy": "delay verdict",
    "Rate": "family limit",
    "Task": "lane_of_claim",
}
"""Members to omit from the pages, by class: other packages of rq_core call them, and users' programs do not."""
_MADE_BY_RQ_CORE: Final = ("AsyncTask", "JobHandle", "NewJob", "PreparedTask", "Task")
"""Classes whose objects only rq-core creates. The page omits their constructors."""


_NAMES: Final[list[str]] = vars(rq_core)["__all__"]
"""The public names. They come from `vars`, because type checkers see another form of the module, without a list of
names."""


def api_md() -> str:
    """Return the page of the public names."""
    names = [name for name in _NAMES if not _is_error(getattr(rq_core, name))]
    return page(
        "# API",
        "All names are imported from `rq_core`. A method whose name ends in `_async` does what its twin does, for an\n"
        "event loop. The errors have [a page of their own](errors.md).",
        *(part for name in names for part in _entry(name, getattr(rq_core, name))),
    )


def _is_error(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, RqCoreError)


def _entry(name: str, thing: Any) -> Iterator[str]:
    yield f"## {name}"
    if isinstance(thing, type) and issubclass(thing, enum.Enum):
        yield prose(inspect.getdoc(thing) or "")
        yield "\n".join(f"- `{member.value}`" for member in thing)
    elif isinstance(thing, type):
        if name not in _MADE_BY_RQ_CORE:
            yield _signature(name, thing)
        yield prose(inspect.getdoc(thing) or "")
        made = vars(thing).get("__init__")
        if made is not None and made.__doc__:
            yield prose(inspect.getdoc(made) or "")
        for member in _members(thing):
            found = inspect.getattr_static(thing, member)
            if isinstance(found, property):
                yield f"### {name}.{member}"
                yield prose(inspect.getdoc(found) or "")
                continue
            yield f"### {name}.{member}()"
            yield _signature(f"{name}.{member}", getattr(thing, member))
            yield prose(inspect.getdoc(found) or "")
    elif callable(thing):
        yield _signature(name, thing)
        yield prose(inspect.getdoc(thing) or "")
    else:
        yield prose(inspect.getdoc(type(thing)) or "")


def _members(cls: type) -> list[str]:
    """Return the names of the class's public methods and properties that have a docstring, in the order of their
    definition.

    Base classes in rq_core are included.
    """
    found: dict[str, None] = {}
    for each in cls.__mro__:
        if not each.__module__.startswith("rq_core"):
            continue
        for name, value in vars(each).items():
            shown = isinstance(value, property) or inspect.isfunction(value)
            if shown and not name.startswith("_") and inspect.getdoc(value):
                found[name] = None
    hidden = {name for each in cls.__mro__ for name in HIDDEN.get(each.__name__, "").split()}
    return [name for name in found if name not in hidden]


def _signature(name: str, function: Any) -> str:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return f"```text\n{name}\n```"
    words = []
    star = False
    for parameter in signature.parameters.values():
        if parameter.name in {"self", "cls"}:
            continue
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not star:
            words.append("*")
        star |= parameter.kind in (
            inspect.Parameter.KEYWORD_ONLY,
            inspect.Parameter.VAR_POSITIONAL,
        )
        words.append(_parameter(parameter))
    returns = "" if isinstance(function, type) else _type(signature.return_annotation)
    arrow = f" -> {returns}" if returns else ""
    line = f"{name}({', '.join(words)}){arrow}"
    if len(line) > 90:
        body = "".join(f"    {word},\n" for word in words)
        line = f"{name}(\n{body}){arrow}"
    return f"```text\n{line}\n```"


def _parameter(parameter: inspect.Parameter) -> str:
    stars: dict[Any, str] = {
        inspect.Parameter.VAR_POSITIONAL: "*",
        inspect.Parameter.VAR_KEYWORD: "**",
    }
    text = f"{stars.get(parameter.kind, '')}{parameter.name}"
    if kind := _type(parameter.annotation):
        text += f": {kind}"
    if parameter.default is not inspect.Parameter.empty:
        default = parameter.default
        value = str(default) if isinstance(default, enum.Enum) else repr(default)
        text += f" = {_ADDRESS.sub('…', value).replace('mappingproxy({})', '{}')}"
    return text


def _type(annotation: object) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        return annotation.strip("'\"")
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def command_line_md() -> str:
    """Return the page of the commands, in the order of `rq-core --help`."""
    return page(
        "# Command line",
        _help(root),
        "The exit status is 0 if the command did its work, 1 if it did not, 2 if it was called wrongly, and 130 after\n"
        "Ctrl-C. Where a command uses the status for more, its help says so. An error is one line on standard error.",
        *_commands(root, "rq-core"),
    )


def _commands(group: click.Group, path: str) -> Iterator[str]:
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        title = f"{path} {name}"
        yield f"{'#' * (1 + len(title.split()) - 1)} {title}"
        usage = " ".join(command.collect_usage_pieces(click.Context(command, info_name=title)))
        yield f"```text\n{title} {usage}\n```"
        yield _help(command)
        if isinstance(command, click.Group):
            yield from _commands(command, title)
            continue
        options = [each for each in command.params if isinstance(each, click.Option)]
        if rows := [_option(each) for each in options if not each.hidden]:
            yield table(("option", "meaning"), rows)


def _help(command: click.Command) -> str:
    text = inspect.cleandoc(command.help or "")
    # \b keeps click from wrapping a paragraph, so its lines stay lines here, too.
    parts = []
    for part in text.split("\n\n"):
        if part.startswith("\b"):
            lines = [line.rstrip() for line in part.lstrip("\b\n").splitlines()]
            parts.append("```text\n" + "\n".join(lines) + "\n```")
        else:
            parts.append(prose(part.replace("<", "&lt;")))
    return "\n\n".join(parts)


def _option(option: click.Option) -> tuple[str, str]:
    context = click.Context(click.Command("x"))
    names, says = option.get_help_record(context) or (", ".join(option.opts), "")
    return f"`{names}`", says


def errors_md() -> str:
    """Return the page of the errors: the tree of their classes, and the message of each."""
    errors = [each for each in (getattr(rq_core, name) for name in _NAMES) if _is_error(each)]
    tree, families = (
        [],
        ("UsageError", "Refused", "ServerError", "NoResult", "HandlerSignal", "GiveUp"),
    )
    for each in errors:
        assert isinstance(each, type)
        above = each.__mro__[1].__name__
        tree.append((f"`{each.__name__}`", f"`{above}`", _message(each)))
    rows = {family: [row for row in tree if row[1] == f"`{family}`"] for family in families}
    return page(
        "# Errors",
        "Every error that rq-core raises on purpose is an `RqCoreError`. A name in braces is an attribute of the\n"
        "error, so a program never has to read a message. The page on\n"
        "[web frameworks](../how-to/web.md#which-errors-are-the-callers) says which error gets which HTTP status.",
        *(
            part
            for family in families
            for part in (
                f"## {family}",
                _message(getattr(rq_core, family)),
                table(("error", "message"), ((name, says) for name, _, says in rows[family])),
                *_raised(errors, family),
            )
        ),
    )


def _raised(errors: list[Any], family: str) -> Iterator[str]:
    """Yield the signature and docstring of the constructor of each error that a user's handler raises."""
    for each in errors:
        made = vars(each).get("__init__")
        if family == "HandlerSignal" == each.__mro__[1].__name__ and made is not None:
            yield f"### {each.__name__}"
            yield _signature(each.__name__, each)
            if made.__doc__:
                yield prose(inspect.getdoc(made) or "")


def _message(error: type) -> str:
    return " ".join((inspect.getdoc(error) or "").split()).replace("<", "&lt;").replace("{", "\\{")


def settings_md() -> str:
    """Return the page of the settings: where each can be set, and its default."""
    settings = (
        (f"`{s.name}`", f"{s.default:,}", f"{s.minimum:,}", s.meaning) for s in SETTINGS.values()
    )
    return page(
        "# Settings",
        "## Of a queue",
        "A queue's settings are numbers in its key `meta`, the same for every producer and worker. `rq-core set`\n"
        "shows and changes them. `app.queue(…)` declares `lease` and `dead_retention`; a worker writes them when\n"
        "it starts. Names that end in `_ms` are in milliseconds here; the command line and Python take seconds.",
        table(("setting", "default", "at least", "meaning"), settings),
        "## Of a process",
        table(
            ("variable", "says"), ((f"`{name}`", prose(says)) for name, says in VARIABLES.items())
        ),
        "## Of a task",
        "What `@app.task(…)` and `with_options(…)` take is in the [API](api.md#apptask); priorities are\n"
        f"{code(map(str, Priority))}, served strictly in this order.",
        "## Of a worker",
        "What `rq-core worker` takes is on the page of the [command line](command-line.md#rq-core-worker).",
    )


def keys_md() -> str:
    """Return the page of the Redis keys of a queue."""
    return page(
        "# Keys",
        "All keys of a queue begin with `rqc:{queue}:` (`--prefix` puts another word for `rqc`). The braces are a\n"
        "hash tag, so a queue lives on one shard of a Redis Cluster. `rqc:queues` is the set of the queues' names.\n"
        "`rqc:inbox` is a list of at most 16 tokens that wake a relay of [an inbox](../how-to/inbox.md).\n"
        "No key has an expiry. [Looking inside](../how-to/looking-inside.md) reads some of them with `redis-cli`.",
        table(("key", "type", "holds"), ((f"`{k.name}`", k.type, k.holds) for k in KEYS)),
    )
