"""From the files in ``lua/`` to what Redis runs.

It owns reading a file's header, putting a script's text together, and the two forms in which Redis takes it: a
function, or a script for servers that load no functions. It does not send anything.

Read ``header`` first, then ``assemble`` and ``script``.
"""
