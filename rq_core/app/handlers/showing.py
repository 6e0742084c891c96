"""Stores what a handler shows while its job runs: the progress, and the chunks of the job's stream.

The handler stores them here, in any thread, without waiting. The worker takes them from here and sends them to Redis.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from rq_core.errors import InvalidOption
from rq_core.model.showing.shown import (
    CHUNK_BYTES_MAX,
    CHUNKS_MAX,
    STREAM_BYTES_MAX,
    Number,
    check_said,
    said_as_text,
    valid_text,
)

Notify = Callable[["Showing"], None]


class NotSent(NamedTuple):
    """The progress and the chunks that the worker has not sent yet."""

    said: tuple[int, str] | None
    """The handler's new progress: the number of the report, and its text. None if there is no new progress."""
    chunks: list[tuple[int, str]]
    """The chunks of the job's stream, each with its number within the claim."""

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to send."""
        return self.said is None and not self.chunks


class Showing:
    """Stores the progress and the chunks of one claim's handler until the worker sends them."""

    __slots__ = (
        "_chunks", "_emitted", "_lock", "_notify", "_reports", "_said", "_size", "_taken", "is_new", "start"
    )  # fmt: skip

    def __init__(self, notify: Notify | None) -> None:
        self._notify = notify
        self._lock = threading.Lock()
        self._said: tuple[Number, Number | None, str] | None = None
        self._taken: tuple[Number, Number | None, str] | None = None
        """The progress that the worker took last."""
        self._reports = 0
        self._chunks: deque[tuple[int, str, int]] = deque()
        self._emitted = 0
        self._size = 0
        self.is_new = False
        """True if the worker was notified that there is progress or a chunk to send, and has not taken it yet."""
        self.start = 0
        """The number of the last chunk that the job's stream had before this claim's chunks. It comes from an answer of
        Redis; 0 before the first answer."""

    def progress(self, done: Number, total: Number | None, text: str) -> None:
        """Store the progress in place of the earlier progress. See JobContext.progress."""
        if type(done) is not int or type(total) is not int or done < 0 or total < 0:
            check_said(done, total)
        if type(text) is not str:
            raise InvalidOption.of("text", text, "must be a text")
        self._said = (done, total, text)
        if not self.is_new:
            self._tell()

    def emit(self, text: str) -> None:
        """Append a chunk to those that the worker has not taken yet. See JobContext.emit."""
        if not isinstance(text, str):
            raise InvalidOption.of("chunk", text, "must be a text")
        text = valid_text(text)
        size = len(text.encode())
        if size > CHUNK_BYTES_MAX:
            must = (
                f"must have at most {CHUNK_BYTES_MAX:,} bytes, and has {size:,}: emit it in parts"
            )
            raise InvalidOption.of("chunk", f"{text[:20]}…", must)
        with self._lock:
            self._emitted += 1
            self._add(self._emitted, text, size)
            is_first = len(self._chunks) == 1
        if not self.is_new or is_first:
            self._tell()

    def receive(
        self, said: tuple[Number, Number | None, str] | None, chunks: Iterable[tuple[int, str]]
    ) -> None:
        """Store the progress and the numbered chunks that the process of an isolated handler has sent."""
        if said is not None:
            self._said = said
        with self._lock:
            for number, text in chunks:
                self._add(number, text, len(text.encode()))
        self._tell()

    def take_raw(self) -> tuple[tuple[Number, Number | None, str] | None, list[tuple[int, str]]]:
        """Remove and return the new progress and chunks, in the form that ``receive`` accepts. Progress that has not
        changed becomes None."""
        before = self._taken
        taken = self.take()
        return (None if self._taken is before else self._taken), taken.chunks

    def _add(self, number: int, text: str, size: int) -> None:
        self._chunks.append((number, text, size))
        self._size += size
        while len(self._chunks) > CHUNKS_MAX or self._size > STREAM_BYTES_MAX:
            self._size -= self._chunks.popleft()[2]

    def _tell(self) -> None:
        self.is_new = True
        if self._notify is not None:
            self._notify(self)

    @property
    def has_chunks(self) -> bool:
        """True if there are chunks to send."""
        return bool(self._chunks)

    def take(self) -> NotSent:
        """Return the progress and the chunks to send, and remove them from this object."""
        # Set first: what a thread of the handler stores from now on is in the result, or notifies the worker again.
        self.is_new = False
        with self._lock:
            chunks = [(number, text) for number, text, _ in self._chunks]
            self._chunks.clear()
            self._size = 0
        said = self._said
        if said is None or said is self._taken:
            return NotSent(None, chunks)
        self._taken = said
        self._reports += 1
        return NotSent((self._reports, said_as_text(*said)), chunks)

    def put_back(self, taken: NotSent) -> None:
        """Store again the progress and the chunks that the worker could not send.

        If the handler has shown newer progress since, the newer progress is kept. If there is no room for all chunks,
        the oldest are dropped.
        """
        self.is_new = True
        if taken.said is not None:
            self._taken = None
        with self._lock:
            newer = list(self._chunks)
            self._chunks.clear()
            self._size = 0
            for number, text in taken.chunks:
                self._add(number, text, len(text.encode()))
            for each in newer:
                self._add(*each)
