"""Turns the files in ``lua/`` into the functions and scripts that Redis runs.

This room parses the headers of the files and assembles the text of each script. Redis takes the text in one of two
forms: as a function, or as a script if the server loads no functions. This room sends nothing.

Read ``header`` first, then ``assemble`` and ``script``.

- ``header``: parses the header of a file.
- ``source``: parses a file.
- ``binding``: gives names to the keys and arguments of a call.
- ``constants``: facts of the model as Lua constants.
- ``rooms``: groups the includes of a script by folder.
- ``assemble``: makes the whole text of a script.
- ``script``: the commands that load and call a script.
- ``plain``: the programs of ``lua/plain``.
"""
