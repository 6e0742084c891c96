"""Plants bugs of tests/rigs/mutants/mutants.toml in the simulated code. Tests check that the simulator finds them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Final
from unittest import mock

from rq_core.scripts import script
from rq_core.scripts.header import Variant
from rq_core.scripts.script import build_function
from sql_audit.mirror import turn as mirror_module
from tests.rigs.mutants.planting import ROOT, Mutant, load
from tests.rigs.simulator.simulation import Plant
from tests.rigs.simulator.world import Scripts, includes

MUTANTS: Final = {mutant.name: mutant for mutant in load()}


@contextmanager
def planted(name: str) -> Iterator[Plant]:
    """Yield the code to simulate, with the named bug in it."""
    mutant = MUTANTS[name]
    if mutant.file.startswith("lua/"):
        yield Plant(scripts=_scripts(mutant))
    elif mutant.file == "rq_core/protocol/engine/delivery.py":
        yield Plant(delivery=_module(mutant).Delivery)
    elif mutant.file == "sql_audit/mirror/turn.py":
        yield Plant(mirror=_module(mutant).Mirror)
    else:
        # What the mirror has imported of it, as a whole or by its names.
        changed = _module(mutant)
        module = mutant.file.rpartition("/")[2].removesuffix(".py")
        theirs = {k for k, v in vars(mirror_module).items() if k in vars(changed)
                  and getattr(v, "__module__", None) == changed.__name__}  # fmt: skip
        patches = {k: getattr(changed, k) for k in theirs}
        if hasattr(mirror_module, module):
            patches[module] = changed
        assert patches, f"the mirror takes nothing from {mutant.file}"
        with mock.patch.multiple(mirror_module, **patches):
            yield Plant()


def _scripts(mutant: Mutant) -> Scripts:
    """Return a function that returns a script by its name. The scripts are built from a copy of lua/ with the bug."""
    lua = Path("lua")
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / lua
        shutil.copytree(script.lua_directory(), copy)
        target = copy / Path(mutant.file).relative_to(lua)
        target.write_text(mutant.apply(target.read_text(encoding="utf-8")), encoding="utf-8")
        with mock.patch.object(script, "lua_directory", return_value=copy):
            variant = Variant(includes=includes())
            made = {p.stem: build_function(p.stem, variant) for p in copy.glob("*.lua")}
    return made.__getitem__


@cache
def _module(mutant: Mutant) -> ModuleType:
    """Return a second copy of the module, with the bug in it. The imported module does not change."""
    name = mutant.file.removesuffix(".py").replace("/", ".")
    path = ROOT / mutant.file
    module = ModuleType(name)
    code = mutant.apply(path.read_text(encoding="utf-8"))
    exec(compile(code, str(path), "exec"), vars(module))  # noqa: S102 - our own code, changed in one place
    return module
