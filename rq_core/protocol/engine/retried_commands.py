"""Sends plain commands again until they are answered, and classifies errors that come in the place of replies."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from rq_core import errors
from rq_core.masking import masked
from rq_core.model.keys import DEFAULT_PREFIX, check_name, queues_key
from rq_core.model.lib.url import cluster_url
from rq_core.protocol.engine import acl_roles
from rq_core.protocol.engine.plan import Lost, Patience, Pause, Plan, Send, Unsent, says_full
from rq_core.scripts.plain import BY_DIGEST, in_full, plain_text

READ_S_MIN: Final = 1.0
"""Shortest timeout for the answer to a command that only reads, in seconds. It applies even if the client should wait
for a shorter time."""
_OUTAGE: Final = (
    "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "MISCONF",
    "NOREPLICAS", "UNBLOCKED",
)  # fmt: skip
"""The beginnings of error replies that mean a temporary outage: the command was not carried out."""


def pause(attempt: int, left: float) -> Pause:
    """Return the pause before the next attempt, in seconds: 0.05 s at first, then doubled each time, but at most 1 s.

    ``left`` is the number of seconds for which the client still tries. The pause does not exceed ``left``, so the last
    attempt comes at the end of this time.
    """
    return Pause(min(0.05 * 2 ** min(attempt, 5), 1.0, max(0.01, left)))


def meaning_of(reply: Any, *, lost: bool = False) -> str:
    """Return the kind of a script's reply, or of the error in its place.

    - answer: the script answered.
    - epoch: the call needs a handshake, because a new history (epoch) of the queue has begun.
    - with: the call must be sent again with further keys.
    - unsent: this time, the call was not carried out. It may be sent again.
    - lost: the call may have been carried out.
    - forgotten: the server does not have the script.
    - no functions: the server or the user cannot call functions.
    - fatal: another error.

    ``lost`` is true if an earlier reply to this call was lost.
    """
    if not isinstance(reply, Exception):
        return reply[0] if reply[0] in ("epoch", "with") else "answer"
    if isinstance(reply, Unsent):
        return "unsent"
    if isinstance(reply, Lost):
        return "lost"
    text = str(reply)
    if text.startswith("NOSCRIPT") or "Function not found" in text:
        return "forgotten"
    if "'fcall'" in text.lower() and ("unknown command" in text or text.startswith("NOPERM")):
        return "no functions"
    if text.startswith("EPOCH"):
        return "epoch"
    if lost and says_full(reply):
        # A full server refuses a call before looking at its slot: that says nothing of the first time.
        return "unsent"
    return "unsent" if text.startswith(_OUTAGE) else "fatal"


def wrong_type(queue: str, text: str) -> errors.QueueDamaged:
    return errors.QueueDamaged(queue=queue, why=f"a key has the wrong type ({text})")


class Asking:
    """Sends plain commands to one server, and sends them again until they are answered or the client's time limit
    (:class:`Patience`) is over.
    """

    def __init__(
        self,
        *,
        prefix: str = DEFAULT_PREFIX,
        url: str = "",
        patience: Patience | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.prefix = check_name("prefix", prefix)
        # For messages only, so without its password.
        self.url = masked(url)
        self.patience = patience or Patience()
        self.clock = clock

    def left(self, since: float, *, sent: bool) -> Patience:
        """Return the time limits that are left for a call that began at ``since``. If the call may have been carried
        out (``sent``), the limit ``unknown`` counts for all attempts, also for those that cannot be sent.
        """
        waited = self.clock() - since
        unknown = max(0.0, self.patience.unknown - waited)
        return Patience(unknown if sent else max(0.0, self.patience.unsent - waited), unknown)

    def _left_to_read(self, since: float) -> Patience:
        """Return the time limits that are left for plain reads. A read may be sent twice, so it does not matter whether
        it was sent before.
        """
        left = max(READ_S_MIN, self.patience.unsent - (self.clock() - since))
        return Patience(left, left)

    def ask(self, commands: list[list[Any]], queue: str | None = None) -> Plan[list[Any]]:
        """Send plain commands in one round trip, and repeat this until all are answered. Each command must be harmless
        if it is sent twice. If the server does not know a Lua program that a command calls by its digest, the command
        is sent again with the program's text.

        Raises ServerUnavailable, ServerUnsuitable, or QueueDamaged if a key of ``queue`` has the wrong type.
        """
        first, attempt = self.clock(), 0
        while True:
            replies = yield Send(commands, None, self._left_to_read(first))
            failed = [r for r in replies if isinstance(r, Exception)]
            if not failed:
                return replies  # type: ignore[no-any-return]
            if any(str(reply).startswith("NOSCRIPT") for reply in failed):
                commands = [in_full(c) if c[0] == BY_DIGEST else c for c in commands]
                continue
            # During an outage of one node, an error of another may be a consequence: all commands are sent again.
            if all(meaning_of(r) == "fatal" for r in failed):
                if queue is not None and "WRONGTYPE" in str(failed[0]):
                    raise wrong_type(queue, str(failed[0])) from failed[0]
                why = str(failed[0])
                if acl_roles.is_denial(why):
                    lacks = (yield from acl_roles.lacking_keys(commands)) if "key" in why else []
                    why = acl_roles.lacking_words(lacks, why)
                    raise errors.ServerUnsuitable(url=self.url, why=why) from failed[0]
                at = next(n for n, reply in enumerate(replies) if reply is failed[0])
                raise self.unsuitable(failed[0], commands[at]) from failed[0]
            if self.clock() - first > self.patience.unsent:
                raise errors.ServerUnavailable(url=self.url, why=str(failed[0])) from failed[0]
            yield pause(attempt, self.patience.unsent - (self.clock() - first))
            attempt += 1

    def ask_each(self, commands: list[list[Any]]) -> Plan[list[Any]]:
        """Send plain reads in one round trip. While a read gets no answer, repeat this until the client's time limit is
        over. If a read fails, the error takes the place of the reply. The replies to the other reads are returned.

        If all reads fail, ServerUnavailable or ServerUnsuitable is raised. Nothing is raised if each read failed
        because its key has the wrong type.
        """
        if not commands:
            return []
        first, attempt = self.clock(), 0
        while True:
            replies: list[Any] = yield Send(commands, None, self._left_to_read(first))
            failed = [r for r in replies if isinstance(r, Exception)]
            later = [r for r in failed if meaning_of(r) in ("unsent", "lost")]
            if not later or self.clock() - first > self.patience.unsent:
                break
            yield pause(attempt, self.patience.unsent - (self.clock() - first))
            attempt += 1
        if len(failed) == len(replies) and not all(str(r).startswith("WRONGTYPE") for r in failed):
            if later:
                raise errors.ServerUnavailable(url=self.url, why=str(later[0])) from later[0]
            raise self.unsuitable(failed[0]) from failed[0]
        return replies

    def unsuitable(self, reply: Exception, command: Sequence[Any] = ()) -> errors.ServerUnsuitable:
        """Return the error for a server that answered ``command`` with ``reply``."""
        why, listed = str(reply), queues_key(self.prefix)
        if why.startswith("WRONGTYPE") and listed in command:
            why = (
                f"its key {listed}, the list of queues, is no set. `redis-cli RENAME {listed} {listed}.bad` moves it"
                " away; each producer and worker that starts then lists its queues again"
            )
        if why.startswith("MOVED"):
            # Only a client whose URL does not name a cluster sees this.
            why = f"it is a node of a Redis Cluster: write {cluster_url(self.url)}"
        if why.startswith(("NOAUTH", "WRONGPASS")):
            why = f"{why.rstrip('.')}: {_mended(why, self.url)}"
        if why.startswith("ERR it speaks "):
            why = f"{why}: begin the URL with {_other_scheme(self.url)}"
        return errors.ServerUnsuitable(url=self.url, why=why.removeprefix("ERR "))


def _mended(why: str, url: str) -> str:
    """Return advice on how to correct the user or password in a URL. ``why`` is the server's reason. The advice shows
    stars in place of the password.
    """
    if "without any password configured" in why:
        return "the URL has a password, and the server has none: take it out of the URL"
    scheme, _, rest = url.partition("://")
    user, at, _ = rest.rpartition("@")
    if why.startswith("WRONGPASS") and (":" in user or not at):
        either = "the user or the password" if user.partition(":")[0] or not at else "the password"
        return (
            f"{either} in the URL is wrong. In a password write %2F for /, %40 for @ and %25 for %"
        )
    place = "/PATH" if scheme == "unix" else "HOST"
    hint = "; what has no colon before it is read as the user" if at and ":" not in user else ""
    return f"write {scheme}://:***@{place} or {scheme}://USER:***@{place}, with the password in place of ***{hint}"


def _other_scheme(url: str) -> str:
    """Return the scheme with TLS for a URL without TLS, and the scheme without TLS for a URL with TLS. For example,
    return ``rediss://`` for a URL with ``redis://``."""
    scheme = url.partition("://")[0]
    tls = scheme.startswith("rediss")
    return f"{scheme.replace('rediss', 'redis', 1) if tls else scheme.replace('redis', 'rediss', 1)}://"


def in_one_step(commands: Sequence[Sequence[Any]]) -> list[Any]:
    """Return one command that carries out all of ``commands`` at one moment, and answers with the list of their
    answers.

    Each of ``commands`` has one key, its first argument. If a command fails, its error takes the place of its answer.
    """
    keys = [command[1] for command in commands]
    words = [word for name, _, *rest in commands for word in (name, len(rest), *rest)]
    return ["EVAL", plain_text("in_one_step"), len(keys), *keys, *words]
