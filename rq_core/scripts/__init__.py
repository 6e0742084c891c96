"""From the files in ``lua/`` to what Redis runs.

It owns reading a script's header, putting its text together, and the two forms in which Redis takes it: a function,
or a script for servers that load no functions. It does not send anything.

Read ``header`` first, then ``assemble``, then ``script``.
"""
