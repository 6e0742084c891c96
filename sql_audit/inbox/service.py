"""Runs a relay as a service: makes turns for all queues with rows, until it is stopped.

After its COMMIT, a producer pushes a token, the name of the queue, into ``rqc:inbox``. The token wakes the relay, which
serves this queue before all others; that saves about 1 ms.

Without a token, the relay looks for rows every 0.5 s on PostgreSQL. On SQLite the relay checks every 20 ms whether the
file has changed, which is cheap.

If Redis does not answer, or a queue is full, the queue is put off. The pause doubles with each failure. Turns for the
other queues continue. If the database does not answer, all turns wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from rq_core.connections.client import Client
from rq_core.errors import OutcomeUnknown, RqCoreError, ServerUnavailable
from rq_core.model.keys import inbox_key
from rq_core.model.lib.text import printable
from rq_core.protocol.engine.plan import Patience
from sql_audit.errors import InboxError
from sql_audit.inbox.place import check_place
from sql_audit.inbox.relay import Relay, RelayOutcome
from sql_audit.inbox.session import Session, require_tables
from sql_audit.store.connection.driver_errors import describe_error, is_locked

logger = logging.getLogger("rq_core.inbox")

POLL_S: Final = 0.5
"""Seconds after which a relay looks for rows without having been woken."""
SQLITE_POLL_S: Final = 0.02
"""Seconds after which a relay asks SQLite whether anything was written."""
LISTED_S: Final = 0.1
"""Seconds between two searches for queues with rows, while the relay has rows to hand over."""
HELD_S: Final = 0.25
"""Seconds until a relay tries a queue again after another relay had locked the queue."""
BACKOFF_S: Final = 0.1
BACKOFF_S_MAX: Final = 5.0
TOKEN_WAIT_S: Final = 1.0
"""Maximum seconds of one wait for a wake token from a producer. The relay notices a request to stop at the end of the
wait."""
PATIENCE: Final = Patience(unsent=1.0, unknown=3.0)
"""How long a call waits for Redis: a silent shard must not delay the queues of other shards for long. The batch stays,
and is sent again."""


@dataclass(slots=True)
class _Pause:
    """The pause before a queue's next turn after a failure, and the error."""

    not_before: float = 0.0
    backoff_s: float = 0.0
    error: str = ""


@dataclass(slots=True)
class RelayService:
    """The loop that makes turns for all queues. See :func:`run_relay`."""

    session: Session
    client: Client
    relay: Relay
    clock: Callable[[], float] = time.monotonic
    _pauses: dict[str, _Pause] = field(default_factory=dict)
    _moved: bool = False
    """True if any queue's turn changed something in the last round. (A round makes one turn for each queue.)"""
    _listed_at: float = 0.0
    _error: str = ""
    _file: tuple[int, int] | None = None
    """The device and inode of the SQLite file that the relay last checked not to be a copy."""
    _woken: threading.Event = field(default_factory=threading.Event)
    _named: str = ""
    """The queue that the last wake token named: it has new rows."""

    def run(self, stop: threading.Event, *, once: bool = False) -> None:
        """Make turns until ``stop`` is set. With ``once``, return when no row can be sent now."""
        waker = threading.Thread(
            target=self._wait_tokens, args=(stop,), name="rq-core-inbox-tokens", daemon=True
        )
        if not once:
            waker.start()
        backoff_s = BACKOFF_S
        while not stop.is_set():
            self._woken.clear()
            named, self._named = self._named, ""
            # Read first: what is written from now on changes it.
            version = self._version()
            try:
                self._look_at_file()
                moved = self._turn_of(named) or self.round()
            except InboxError as error:
                if once:
                    raise
                self._note(str(error))
                stop.wait(backoff_s)
                backoff_s = min(backoff_s * 2, BACKOFF_S_MAX)
                continue
            self._note("")
            backoff_s = BACKOFF_S
            if moved:
                continue
            if once:
                break
            self._sleep(stop, version)
        if waker.is_alive():
            waker.join(TOKEN_WAIT_S + 1)

    def _look_at_file(self) -> None:
        """If another SQLite file has replaced the database's file, connect to the new file and check that it is no
        copy.

        Raise InboxError.
        """
        file = self.session.file()
        if file != self._file:
            self.session.close()
            self.relay.inbox_id = check_place(self.session)
            self._file = file

    def _turn_of(self, name: str) -> bool:
        """Make a turn for the queue ``name``, because a producer's wake token named it. Return whether the turn did
        something.

        Any client of Redis may push a token. So a queue that never had rows gets no turn.
        """
        if self._moved or not self.relay.knows(name):
            return False
        pause = self._pauses.setdefault(name, _Pause())
        self._moved = pause.not_before <= self.clock() and self._turn(name, pause)
        return self._moved

    def round(self) -> bool:
        """Make a turn for each queue whose pause is over. Return whether any turn did something. Raise InboxError."""
        lists = not self._moved or self.clock() - self._listed_at >= LISTED_S
        if lists:
            names = self.relay.queues()
            self._listed_at = self.clock()
            self._pauses = {name: self._pauses.get(name) or _Pause() for name in names}
        moved = False
        for name, pause in list(self._pauses.items()):
            if pause.not_before <= self.clock():
                moved |= self._turn(name, pause)
        self._moved = moved
        # Before the relay sleeps, it has looked for other queues.
        return moved if moved or lists else self.round()

    def _turn(self, name: str, pause: _Pause) -> bool:
        try:
            outcome = self.relay.turn(name)
        except InboxError:
            raise
        except (RqCoreError, ValueError, LookupError, TypeError) as error:
            self._put_off(name, pause, error)
            return False
        if outcome is RelayOutcome.HELD:
            pause.not_before = self.clock() + HELD_S
            return False
        if pause.error:
            logger.info("queue %s: goes on", printable(name))
        self._pauses[name] = _Pause()
        return outcome is RelayOutcome.MOVED

    def _put_off(self, name: str, pause: _Pause, error: Exception) -> None:
        text = f"{type(error).__name__}: {describe_error(error)}"
        if text != pause.error:
            # A reason is logged once: an outage of an hour is one line.
            logger.warning("queue %s: its rows wait: %s", printable(name), text)
            pause.error = text
        pause.backoff_s = min(max(pause.backoff_s * 2, BACKOFF_S), BACKOFF_S_MAX)
        pause.not_before = self.clock() + pause.backoff_s
        if isinstance(error, ServerUnavailable | OutcomeUnknown):
            # Each of the queues on that server would wait for it, and delay the others.
            place = self.client.place(name)
            for other, its in self._pauses.items():
                if place is not None and self.client.place(other) == place:
                    its.not_before = max(its.not_before, pause.not_before)

    def _note(self, text: str) -> None:
        if text != self._error:
            self._error = text
            if text:
                logger.error("the inbox cannot be read: %s", text)
            else:
                logger.info("the inbox can be read again")

    def _sleep(self, stop: threading.Event, version: int | None) -> None:
        """Wait until rows may have been inserted, or until a queue's pause is over.

        ``version`` is the SQLite file's version before the last round.
        """
        until = self.clock() + POLL_S
        later = [each.not_before for each in self._pauses.values()]
        until = min([until, *(at for at in later if at > self.clock())])
        while not stop.is_set() and (left := until - self.clock()) > 0:
            if version is None:
                self._woken.wait(left)
                return
            if self._woken.wait(min(left, SQLITE_POLL_S)) or self._version() != version:
                return

    def _version(self) -> int | None:
        """Return a number that changes with each commit of another connection to the SQLite file.

        Return -1 if the file cannot be read, and None for PostgreSQL.
        """
        if self.session.address.get_backend_name() != "sqlite":
            return None
        try:
            return self.session.version()
        except InboxError:
            return -1

    def _wait_tokens(self, stop: threading.Event) -> None:
        key = inbox_key(self.client.prefix)
        while not stop.is_set():
            try:
                token = self.client.wait_token(key, TOKEN_WAIT_S)
                if token is not None:
                    self._named = token
                    self._woken.set()
            except Exception:  # noqa: BLE001 - the polls go on, and say what is wrong with Redis
                stop.wait(TOKEN_WAIT_S)


def run_relay(
    redis_url: str,
    prefix: str,
    url: str,
    *,
    stop: threading.Event,
    once: bool = False,
    on_step: Callable[[str], None] = lambda _: None,
) -> None:
    """Hand over the rows of a database's inbox until ``stop`` is set. With ``once``, return when no row can be sent
    now.

    At the start, raise InboxError or InboxMissing if the database cannot be used, has no inbox, or is a copy. If
    another connection has locked the database, wait, or raise with ``once``.

    Later errors are logged, and the turn is made again. With ``once``, errors of the database are raised.
    """
    session = Session(url)
    try:
        with Client(redis_url, prefix=prefix, patience=PATIENCE) as client:
            inbox_id = _checked(session, stop, once=once)
            if inbox_id is not None:
                relay = Relay(session, client, inbox_id, on_step=on_step)
                RelayService(session, client, relay).run(stop, once=once)
    finally:
        session.close()


def _checked(session: Session, stop: threading.Event, *, once: bool) -> str | None:
    """Check the database at the start, and return the inbox's id. While the database is locked, wait.

    Return None if ``stop`` was set meanwhile. With ``once``, raise instead of waiting.
    """
    said = ""
    while not stop.is_set():
        try:
            require_tables(session)
            inbox_id = check_place(session)
        except InboxError as error:
            if once or not is_locked(error.__cause__):
                raise
            if str(error) != said:
                said = str(error)
                logger.warning("waiting for a lock of another connection: %s", said)
            stop.wait(BACKOFF_S)
        else:
            if said:
                logger.info("the lock was released")
            return inbox_id
    return None
