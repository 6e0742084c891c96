"""Finding an app by name: ``module:app``, as command lines give it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rq_core.errors import InvalidOption

if TYPE_CHECKING:
    from rq_core.app import App


def load_app(target: str) -> App:
    """Import ``module:app`` (``app`` may be left out), with the current directory first on the path.

    Raises InvalidOption if there is no such module or app; what the module itself raises is passed on.
    """
    from rq_core.app import App

    module_name, _, attribute = target.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise
        raise InvalidOption(
            option="target",
            value=target,
            must=f"must be module:app; there is no module {error.name}",
        ) from None
    app = getattr(module, attribute or "app", None)
    if not isinstance(app, App):
        raise InvalidOption(
            option="target",
            value=target,
            must=f"must be module:app; {module_name} has no App named {attribute or 'app'}",
        )
    return app
