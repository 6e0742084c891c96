"""Imports an app by its place on a command line, ``module:app``."""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rq_core.errors import InvalidOption, TargetBroken

if TYPE_CHECKING:
    from types import TracebackType

    from rq_core.app.app import App


PRELOAD_VARIABLE: Final = "RQ_CORE_PRELOAD"
"""The environment variable that names a module. A process for isolated handlers imports this module before the modules
of tasks. A worker sets the variable for the processes that it starts."""


def preload() -> None:
    """Import the module that the environment variable RQ_CORE_PRELOAD names. Do nothing if the variable is not set."""
    if module := os.environ.get(PRELOAD_VARIABLE):
        importlib.import_module(module)


def find_modules_here() -> None:
    """Put the current directory first on sys.path, unless it is there already."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def load_app(target: str) -> App:
    """Import the app ``module:app``, and return it. Without ``:app``, the attribute ``app`` of the module is the app.

    The function puts the current directory first on sys.path, unless it is there already. Raises InvalidOption if the
    module or the app does not exist. Raises TargetBroken if the module raises an exception.
    """
    from rq_core.app.app import App

    module_name, _, attribute = target.partition(":")
    find_modules_here()
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and (module_name + ".").startswith(missing + "."):
            raise InvalidOption.of(
                "target",
                target,
                f"must be module:app; there is no module {missing} in {Path.cwd()}, nor an installed one",
            ) from None
        raise broken_target(module_name, error) from error
    app = getattr(module, attribute or "app", None)
    if not isinstance(app, App):
        raise InvalidOption.of(
            "target",
            target,
            f"must be module:app; {module_name} has no App named {attribute or 'app'}",
        )
    return app


def broken_target(module: str, error: BaseException) -> TargetBroken:
    """Return the error for a module whose import raised ``error``."""
    what = f"{type(error).__name__}: {error}".removesuffix(": ")
    return TargetBroken(module=module, where=_where(error), what=what)


def _where(error: BaseException) -> str:
    """Return the file and line of an import error, in the user's own code.

    This is the innermost place outside Python's library and outside installed packages.
    """
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{error.filename}:{error.lineno}"
    found = "unknown"
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if found == "unknown" or not (file.startswith(("<", _PYTHON)) or "site-packages" in file):
            found = f"{file}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


_PYTHON: Final = sysconfig.get_path("stdlib")
