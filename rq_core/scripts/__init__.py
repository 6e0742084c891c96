"""Turns the files in ``lua/`` into the functions and scripts that Redis runs.

This room parses the headers of files, assembles the text of a script, and gives the text one of the two forms that
Redis takes: a function, or a script for servers that load no functions. It sends nothing.

Read ``header`` first, then ``assemble`` and ``script``.

- ``header``: the header of a file.
- ``source``: a file, parsed.
- ``binding``: binds names of keys and arguments to their positions.
- ``constants``: facts of the model as Lua constants.
- ``rooms``: puts includes into rooms.
- ``assemble``: a script's whole text.
- ``script``: the commands that load and call a script.
- ``plain``: the programs of ``lua/plain``.
"""
