"""From the files in ``lua/`` to what Redis runs.

It owns reading a file's header, putting a script's text together, and the two forms in which Redis takes it: a
function, or a script for servers that load no functions. It does not send anything.

Read ``header`` first, then ``assemble`` and ``script``.

- ``header``, ``source``: a file's header; a file, taken apart.
- ``binding``, ``constants``: names of keys and arguments; what Lua knows of the model.
- ``rooms``, ``assemble``, ``script``: includes in rooms; the whole text; how it is called.
- ``plain``: sends the programs of ``lua/plain``.
"""
