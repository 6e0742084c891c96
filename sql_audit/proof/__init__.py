"""Whether the log is true: from SQL alone, and compared with Redis.

It owns the replay of all events and what may be said after it. It reads; it changes nothing.

Read ``verify`` first, then ``replay`` and ``holders``; ``drift`` compares SQL with Redis.
"""
