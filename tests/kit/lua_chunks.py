"""Lets the fake server compile each script once per test process.

fakeredis compiles a script at each call, and collects all garbage of Lua afterwards. In tests on the fake server, that
was more than half of the processor time.
"""

from __future__ import annotations

import functools
from typing import Any

from fakeredis.commands_mixins import scripting_mixin

COLLECT = "collectgarbage()"


class Chunks:
    """The Lua of one fake server. It keeps the functions of the scripts that it has run."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._functions: dict[bytes | str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def execute(self, text: bytes | str) -> Any:
        """Run a script. Lua collects garbage by itself."""
        if text == COLLECT:
            return None
        if (function := self._functions.get(text)) is None:
            function = self._functions[text] = self._runtime.compile(_compiled(text))
        return function()


@functools.cache
def _compiled(text: bytes | str) -> bytes:
    """Return the bytecode of a script."""
    dumped: bytes = _dump(_compiler().compile(text))
    return dumped


@functools.cache
def _compiler() -> Any:
    return scripting_mixin.LUA_MODULE.LuaRuntime(encoding=None)


def _dump(function: Any) -> Any:
    return _compiler().eval("string.dump")(function)


def share() -> None:
    """Let all fake servers of this process share compiled scripts."""
    mixin = scripting_mixin.ScriptingCommandsMixin
    runtime_of = mixin._get_server_runtime

    @functools.wraps(runtime_of)
    def get(self: Any, server: Any) -> Any:
        if not isinstance(server.__dict__.get("_lua_chunks"), Chunks):
            server._lua_chunks = Chunks(runtime_of(self, server))
        return server._lua_chunks

    mixin._get_server_runtime = get  # type: ignore[method-assign]
    check_globals = scripting_mixin._check_for_lua_globals

    def check(lua_runtime: Any, expected_globals: set[Any]) -> None:
        # A script that sets a global variable is found when it has ended. fakeredis also looks at each of its calls.
        if isinstance(lua_runtime, Chunks):
            check_globals(lua_runtime, expected_globals)

    scripting_mixin._check_for_lua_globals = check
