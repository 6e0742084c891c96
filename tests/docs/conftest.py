"""Fixture: loads an example of docs/examples."""

import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from tests.docs.transcript import EXAMPLES

Load = Callable[[str], Any]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Return a function that imports an example as a module of its own."""

    def loaded(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return loaded
