"""Packages that take long to import. Owns: importing one when it is first used. Every worker of the tests imports every
file, and only one of them runs the tests of a file. Refuses to know: which packages these are."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class LazyModule:
    """Stands for a module, which is imported at the first look into it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest looks for such names at every object of a file
            raise AttributeError(name)
        return getattr(import_module(self._name), name)
