"""A fork waits until what another thread prepares for an app's first use is there.

The client, and with it redis-py, is imported when it is first needed. A child that was forked in the middle of that
would wait for ever, for locks that a thread of its parent had: those of the modules that were being imported among
them, which Python does not renew. So such work is done under one lock of the process, which every fork takes first.
"""

from __future__ import annotations

# The first three because of the order: a fork takes the locks of what was imported last first. Who prepares something
# under our lock may need those of these modules, so ours must be taken before them.
import concurrent.futures.thread
import logging
import os
import random
import threading
from typing import Final

BEFORE: Final = (concurrent.futures.thread, logging, random)

PREPARING: Final = threading.RLock()
"""Held while something is imported or made that a forked child would need, too. The thread that forks may have it."""

os.register_at_fork(
    before=PREPARING.acquire,
    after_in_parent=PREPARING.release,
    after_in_child=PREPARING.release,
)
