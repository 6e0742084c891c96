"""Helpers that do not depend on jobs or queues.

- ``checks``: checks of options that users give.
- ``durations``: durations as users write them (seconds), and in Redis and SQL (ms).
- ``moments``: parses times as people write them.
- ``zones``: time zones.
- ``text``: makes text from jobs and servers safe to show.
- ``logs``: log lines.
- ``url``: URLs of servers.
- ``readiness``: words with which a process beside the workers says whether it is ready.
- ``cached_property``: cached properties without a lock.
"""
