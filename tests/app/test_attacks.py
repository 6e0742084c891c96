"""A user with the rights of one role of `rq-core acl` tries commands that this role must not send.

The attacks are on the role's own queue, on other queues, and on the server. To attack a new role, add the keys that the
role must not use.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from click.testing import CliRunner

from rq_core.cli.root import root
from rq_core.connections.client import Client
from rq_core.model.job import NewJob, profile
from rq_core.model.keys import KEYS, QueueKeys
from rq_core.protocol.calls import claims
from rq_core.protocol.engine import acl_roles
from rq_core.protocol.engine.prepare import prepare
from rq_core.scripts.script import function, names
from tests.app.conftest import As
from tests.kit.servers import RedisServer

OWN, FOREIGN = QueueKeys("mail"), QueueKeys("images")
LISTED = "rqc:queues"
Words = tuple[Any, ...]

READ = {"hash": "HGETALL", "list": "LLEN", "zset": "ZCARD", "stream": "XLEN"}
READ_ALL: dict[str, Words] = {
    "hash": ("HMGET", "KEY", "a"),
    "list": ("LRANGE", "KEY", 0, -1),
    "zset": ("ZRANGE", "KEY", 0, -1),
    "stream": ("XREVRANGE", "KEY", "+", "-"),
}
WRITE: dict[str, Words] = {
    "hash": ("HSET", "KEY", "a", "1"),
    "list": ("RPUSH", "KEY", "1"),
    "zset": ("ZADD", "KEY", 1, "a"),
    "stream": ("XADD", "KEY", "*", "a", "1"),
}
EVERY_ROLE = list(acl_roles.ROLES)

OF_THE_SERVER: list[Words] = [
    ("CONFIG", "GET", "requirepass"),
    ("CONFIG", "SET", "appendonly", "no"),
    ("CONFIG", "REWRITE"),
    ("ACL", "LIST"),
    ("ACL", "GETUSER", "default"),
    ("ACL", "SETUSER", "intruder", "on", "nopass", "~*", "+@all"),
    ("ACL", "SETUSER", "rq-core-producer", "~*", "+@all"),
    ("FUNCTION", "FLUSH"),
    ("FUNCTION", "DUMP"),
    ("SCRIPT", "FLUSH"),
    ("FLUSHALL",),
    ("FLUSHDB",),
    ("KEYS", "*"),
    ("SCAN", 0),
    ("RANDOMKEY",),
    ("MONITOR",),
    ("CLIENT", "LIST"),
    ("CLIENT", "KILL", "ID", 1),
    ("CLIENT", "PAUSE", 1),
    ("SLOWLOG", "GET"),
    ("LATENCY", "LATEST"),
    ("MEMORY", "STATS"),
    ("SHUTDOWN", "NOSAVE"),
    ("REPLICAOF", "127.0.0.1", 1),
    ("SAVE",),
    ("SWAPDB", 0, 1),
    ("DEBUG", "SLEEP", 0),
    ("PSUBSCRIBE", "*"),
    ("PUBLISH", "__redis__:invalidate", "x"),
    ("MODULE", "LIST"),
]
OF_THE_LIST: list[Words] = [
    ("DEL", LISTED),
    ("UNLINK", LISTED),
    ("RENAME", LISTED, "rqc:{mail}:meta"),
    ("COPY", LISTED, "rqc:{mail}:meta"),
    ("SPOP", LISTED),
    ("EXPIRE", LISTED, 1),
    ("SET", LISTED, "x"),
    ("HSET", LISTED, "a", "b"),
    ("RPUSH", LISTED, "a"),
    ("ZADD", LISTED, 1, "a"),
    ("XADD", LISTED, "*", "a", "b"),
]
OF_OWN_QUEUE: list[Words] = [
    ("DEL", OWN("jobs")),
    ("RENAME", OWN("jobs"), OWN("state")),
    ("DUMP", OWN("jobs")),
    ("RESTORE", OWN("jobs"), 0, "x", "REPLACE"),
    ("EXPIRE", OWN("jobs"), 1),
    ("SADD", OWN("jobs"), "x"),
]
"""Commands that no role may send to its own queue, by hand or from a script. No script of rq-core sends them."""


@pytest.fixture
def queues(control: Any, redis_server: RedisServer) -> None:
    """Make two queues with two jobs each. One job of each queue is claimed."""
    with Client(redis_server.url) as client:
        for queue in ("mail", "images"):
            jobs = [NewJob(f"{queue}-{n}", queue, profile("send"), "{}") for n in range(2)]
            client.run(client.calls.enqueue.many(jobs))
            client.run(claims.claim(queue, "w-1", 1))


@pytest.fixture(params=EVERY_ROLE)
def role(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def user(role: str, as_: As, queues: None) -> Iterator[Any]:
    """Yield a connection of a user with the rights of this role for the queue mail."""
    with redis.Redis.from_url(as_(role, "--queue", "mail"), decode_responses=True) as client:  # type: ignore[no-untyped-call]
        yield client


def refused(user: Any, *words: Any) -> bool:
    """Return whether Redis refuses the command for lack of a right.

    A refusal inside a script counts, too, and so does the answer that no script may send the command.
    """
    try:
        user.execute_command(*words)
    except redis.exceptions.NoPermissionError:
        return True
    except redis.exceptions.ResponseError as error:
        text = str(error)
        return acl_roles.is_denial(text) or "not allowed from" in text
    return False


def from_script(words: Words) -> list[Words]:
    """Return two calls that send the command from within a script: by EVAL and by EVAL_RO."""
    called = ", ".join(f"'{word}'" for word in words)
    text = f"return redis.call({called})"
    return [("EVAL", text, 0), ("EVAL_RO", text, 0)]


def test_no_role_may_send_commands_that_concern_the_server(control: Any, user: Any) -> None:
    before = control.acl_list()

    reached = [words for words in OF_THE_SERVER if not refused(user, *words)]
    reached += [
        each for words in OF_THE_SERVER for each in from_script(words) if not refused(user, *each)
    ]

    assert reached == []
    assert control.acl_list() == before


def test_no_role_may_damage_the_list_of_queues(control: Any, user: Any) -> None:
    before = control.smembers(LISTED)

    reached = [words for words in OF_THE_LIST if not refused(user, *words)]
    reached += [
        each for words in OF_THE_LIST for each in from_script(words) if not refused(user, *each)
    ]

    assert reached == []
    assert control.smembers(LISTED) == before


def test_only_roles_that_read_all_queues_may_read_the_list_of_queues(role: str, user: Any) -> None:
    reads = role in ("mirror", "operator", "viewer")

    assert refused(user, "SMEMBERS", LISTED) != reads
    assert refused(user, "SREM", LISTED, "x") == (role != "operator")
    assert refused(user, "SADD", LISTED, "mail") == (role in ("viewer", "preparer"))


def test_no_role_may_read_or_write_another_queue(control: Any, user: Any) -> None:
    tried = []
    for key in KEYS:
        name = FOREIGN(key.name)
        for words in ((READ[key.type], "KEY"), READ_ALL[key.type], WRITE[key.type]):
            filled = tuple(name if word == "KEY" else word for word in words)
            tried += [filled, *from_script(filled)]
    tried += [
        (*script_call, len(keys), *keys)
        for made in (function(name) for name in names())
        for keys in [tuple(map(FOREIGN, made.keys))]
        for script_call in (made.verb, ("EVAL", "return 1"))
        if keys
    ]
    with Client(control_url(control)) as client:
        client.run(prepare(client.calls.delivery.asking))
        before = client.run(client.calls.reads.snapshot("images"))

        reached = [words for words in tried if not refused(user, *words)]

        assert reached == []
        assert client.run(client.calls.reads.snapshot("images")) == before


def control_url(control: Any) -> str:
    return f"redis://127.0.0.1:{control.connection_pool.connection_kwargs['port']}/0"


def test_no_role_may_send_commands_that_no_script_sends(user: Any) -> None:
    reached = [words for words in OF_OWN_QUEUE if not refused(user, *words)]
    reached += [
        each for words in OF_OWN_QUEUE for each in from_script(words) if not refused(user, *each)
    ]

    assert reached == []


NOT_WRITTEN = {
    "producer": ("leases", "dead", "workers", "tasks"),
    "relay": ("leases", "dead", "workers", "tasks", "schedules"),
    "mirror": (
        "ready:0", "waiting", "lanes", "open", "blocked", "holders", "rates", "fair", "tasks", "scheduled", "leases",
        "dead", "expiring", "slots", "workers",
    ),
    "viewer": tuple(key.name for key in KEYS),
    "preparer": tuple(key.name for key in KEYS),
    "worker": (),
    "operator": (),
}  # fmt: skip
NOT_READ = {
    "producer": ("leases", "dead", "workers"),
    "relay": ("leases", "dead", "workers", "schedules"),
    "mirror": ("lanes", "blocked", "holders", "rates", "fair", "expiring", "slots", "workers", "tasks"),
    "preparer": tuple(key.name for key in KEYS),
    "viewer": (),
    "worker": (),
    "operator": (),
}  # fmt: skip


def test_no_role_may_use_a_redis_key_that_its_work_does_not_need(role: str, user: Any) -> None:
    types = {key.name: key.type for key in KEYS}

    reached = [
        name
        for asked, commands in ((NOT_WRITTEN, WRITE), (NOT_READ, READ_ALL))
        for name in asked[role]
        for words in [tuple(OWN(name) if w == "KEY" else w for w in commands[types[name]])]
        for each in (words, *from_script(words))
        if not refused(user, *each)
    ]

    assert reached == []


def test_only_the_role_preparer_may_replace_a_function_in_redis(
    control: Any, role: str, user: Any
) -> None:
    """Checks FUNCTION LOAD REPLACE. Workers would run an attacker's function with their own rights."""
    made = function("claim")
    control.function_load(made.text, replace=True)
    evil = f"#!lua name={made.function}\nredis.register_function('{made.function}', function() return 1 end)"

    assert refused(user, "FUNCTION", "LOAD", "REPLACE", evil) == (role != "preparer")
    assert refused(user, "FUNCTION", "DELETE", made.function) == (role != "preparer")
    if role != "preparer":
        (there,) = control.function_list(library=made.function, withcode=True)
        assert made.text in map(str, there)


def test_the_role_preparer_loads_the_redis_functions_that_other_roles_call(
    control: Any, as_: As
) -> None:
    """Checks two runs of `server prepare`. The first run replaces a changed function, and the second run loads
    nothing."""
    url = as_("preparer")
    claim = function("claim").function
    control.function_load(
        f"#!lua name={claim}\nredis.register_function('{claim}', function() return 1 end)",
        replace=True,
    )
    control.function_load("#!lua name=rqc_claim_0\nredis.register_function('f', function() end)")

    def cli() -> str:
        result = CliRunner().invoke(root, ["server", "prepare", "--redis", url])
        assert result.exit_code == 0, result.output
        return result.stdout

    many = len(names())
    assert f"{many} functions loaded, 0 were there" in cli()
    again = cli()

    assert f"0 functions loaded, {many} were there" in again
    assert "1 of other versions" in again
    assert "rqc_claim_0" in again
    with Client(as_("worker")) as worker, Client(as_("producer")) as producer:
        producer.run(producer.calls.enqueue.many([NewJob("a", "mail", profile("send"), "{}")]))
        (held,) = worker.run(claims.claim("mail", "w-1", 1)).jobs
        assert worker.run(claims.complete("mail", "w-1", [(held.id, held.fence)])) == {}
    stats = control.info("commandstats")
    assert "function|load" not in {entry["object"] for entry in control.acl_log()}
    assert stats["cmdstat_fcall"]["calls"] > 0


@pytest.mark.parametrize(
    "evil", ["string.upper = nil", "getmetatable('').__index = nil", "rqc = 1"]
)
def test_a_script_of_a_user_cannot_change_lua_globals(control: Any, as_: As, evil: str) -> None:
    with redis.Redis.from_url(as_("producer")) as user:  # type: ignore[no-untyped-call]
        sha = user.script_load(f"{evil}\nreturn 1")
        with pytest.raises(redis.exceptions.ResponseError):
            user.evalsha(sha, 0)  # type: ignore[no-untyped-call]

    assert control.eval("return ('a'):upper()", 0) == "A"


@pytest.mark.parametrize("role_name", ["producer", "worker", "mirror", "operator"])
def test_a_client_that_may_not_load_functions_warns_once_and_uses_scripts(
    as_: As, role_name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rq_core.protocol.engine.delivery._unprepared", set())
    url = as_(role_name)

    for queue in ("mail", "images"):
        with Client(url) as client:
            client.run(client.calls.delivery.handshake(queue))

    said = [r for r in caplog.records if "server prepare" in r.getMessage()]
    assert len(said) == 1
    assert said[0].levelno == logging.WARNING
    assert "PASSWORD" not in said[0].getMessage()


@pytest.mark.parametrize(
    "options, words",
    [
        (["--user", "x on nopass +@all"], "user name 'x on nopass +@all' is not valid"),
        (["--user", ""], "user name '' is not valid"),
        (["--user", "x\n+@all"], "is not valid"),
        (["--queue", ""], "must be a queue's name"),
        (["--queue", "mail +@all"], "must be a queue's name"),
        (["--queue", "mail}:x ~* {"], "must be a queue's name"),
        (["--queue", "[a-z]"], "must be a queue's name"),
        (["--prefix", "rqc*"], "prefix name 'rqc*' is not valid"),
    ],
)
def test_acl_refuses_values_that_would_inject_another_rule(options: list[str], words: str) -> None:
    result = CliRunner().invoke(root, ["acl", "producer", *options])

    assert result.exit_code == 2
    assert result.stdout == ""
    assert words in result.stderr


STRAYS = ["", "a b", "x" * 129, b"\xff", "a\nrq-core: all is well", "\x1b[31m"]


@pytest.fixture
def spoiled(queues: None, control: Any, as_: As) -> None:
    """Add invalid names to the shared list of queues, as a producer of one queue can."""
    with redis.Redis.from_url(as_("producer", "--queue", "mail")) as producer:  # type: ignore[no-untyped-call]
        producer.sadd(LISTED, *STRAYS)


@pytest.mark.parametrize(
    "words",
    [
        ["queues"],
        ["workers"],
        ["job", "mail-0"],
        ["top", "--once"],
        ["metrics", "--once"],
        ["doctor"],
    ],
    ids=" ".join,
)
def test_commands_work_though_the_list_of_queues_has_invalid_names(
    spoiled: None, redis_url: str, words: list[str]
) -> None:
    result = CliRunner().invoke(root, [*words, "--redis", redis_url])

    assert "6 entries that can name no queue" in result.output or words[0] == "metrics"
    assert "mail" in result.stdout or words == ["workers"]
    assert "\x1b" not in result.output
    assert "\nrq-core: all is well" not in result.output
    expected = 1 if words[0] in ("queues", "doctor") else 0
    assert result.exit_code == expected, result.output


def test_the_doctor_removes_invalid_names_from_the_list_of_queues(
    spoiled: None, control: Any, redis_url: str
) -> None:
    with Client(redis_url) as client:
        assert client.run(client.calls.reads.queues()) == ["images", "mail"]

    result = CliRunner().invoke(root, ["doctor", "--repair", "--redis", redis_url])

    assert result.exit_code == 0, result.output
    assert "mended" in result.stdout
    assert control.smembers(LISTED) == {"mail", "images"}


def test_the_mirror_copies_queues_though_the_list_of_queues_has_invalid_names(
    spoiled: None, as_: As, sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    words = ["audit", "run", "--once", "--audit", sqlite_url, "--redis", as_("mirror")]

    result = CliRunner().invoke(root, words)

    assert result.exit_code == 0, result.output
    said = result.output + caplog.text
    assert said.count("can name no queue") == 1
