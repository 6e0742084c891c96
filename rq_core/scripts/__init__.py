"""Turns the Lua files in ``lua/`` into the functions and scripts that Redis runs.

This package parses the headers of the files and assembles the text of each script. Redis takes the text in one of two
forms: as a function, or as a script if the server loads no functions. This package sends nothing to Redis.

Read ``header`` first, then ``assemble`` and ``script``.

- ``header``: parses the header of a file.
- ``source``: parses a file.
- ``binding``: gives names to the keys and arguments of a call.
- ``constants``: Lua constants, from the values that Python uses.
- ``rooms``: groups the includes (shared Lua files) of a script by folder.
- ``assemble``: makes the whole text of a script.
- ``script``: the commands that load and call a script.
- ``plain``: the short Lua programs in ``lua/plain``, which are not assembled.
"""
