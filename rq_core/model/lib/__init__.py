"""Helpers that do not depend on jobs or queues.

- ``checks``: checks options that users pass.
- ``durations``: converts durations between seconds, as users write them, and ms, as Redis and SQL have them.
- ``moments``: parses times such as ``10m ago``.
- ``zones``: time zones.
- ``text``: makes text from jobs and servers safe to show.
- ``logs``: log lines.
- ``newest_values``: a dict that keeps the newest values, up to a total size.
- ``url``: URLs of servers.
- ``readiness``: how a mirror or relay reports to the supervisor that it is ready.
- ``cached_property``: cached properties without a lock.
"""
