"""Turns the files in ``lua/`` into the functions and scripts that Redis runs.

It owns the headers of files, the assembly of a script's text, and the two forms in which Redis takes the text: a
function, or a script for servers that load no functions. It does not send anything.

Read ``header`` first, then ``assemble`` and ``script``.

- ``header``, ``source``: a file's header; a file, parsed.
- ``binding``, ``constants``: names of keys and arguments; facts of the model as Lua constants.
- ``rooms``, ``assemble``, ``script``: includes in rooms; a script's whole text; the commands that load and call it.
- ``plain``: sends the programs of ``lua/plain``.
"""
