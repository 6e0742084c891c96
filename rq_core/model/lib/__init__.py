"""Helpers that know nothing of jobs or queues.

- ``checks``, ``durations``: checks of options that users give; seconds in Python, ms in Redis and SQL.
- ``moments``, ``zones``: times as people write them; time zones.
- ``text``, ``logs``, ``url``: text from jobs and servers, made safe to show; log lines; URLs of servers.
- ``cached_property``: cached properties without a lock.
"""
