"""Put off what a library imports at its start and few ever use.

TextArena imports ``nltk``, and with it half of scipy, for a handful of word games; transformers imports
scipy for losses of object detection. That costs every process of a run that loads them up to two seconds
before its first game.
"""

import importlib
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

# A package and a module in it that two threads import at the same time each wait for the other: Python then
# hands out one of them half made.
_loading = threading.RLock()


@contextmanager
def deferring(names: Mapping[str, Sequence[str]]) -> Iterator[None]:
    """Have ``from MODULE import NAME`` bind what imports the module when it is first called or looked into.

    Only for names that stand for functions and other objects that are called or asked for attributes. Other
    names of such a module import it at once, and ``import MODULE`` binds what imports it at the first use. A
    module that is loaded, or is not installed, is as ever. Afterwards importing a module loads it.
    """
    absent = [name for name in names if name not in sys.modules and _is_installed(name)]
    stand_ins = {name: _Module(name, names[name]) for name in absent}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for stand_in in stand_ins.values():
            stand_in.step_aside()


def _is_installed(name: str) -> bool:
    # Of a module inside a package the search would import the package.
    return importlib.util.find_spec(name.partition(".")[0]) is not None


class _Module(ModuleType):
    def __init__(self, name: str, names: Sequence[str]) -> None:
        super().__init__(name)
        self.__spec__ = importlib.machinery.ModuleSpec(name, loader=None)  # find_spec refuses one without
        self._deferred = frozenset(names)

    def step_aside(self) -> None:
        """Let the next import load the module."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]

    def load(self) -> ModuleType:
        """Return the module itself."""
        with _loading:
            self.step_aside()
            importlib.import_module(self.__name__.partition(".")[0])
            return importlib.import_module(self.__name__)

    def __getattr__(self, name: str) -> Any:
        if name in self._deferred:
            return _Name(self, name)
        if name.startswith("__"):
            raise AttributeError(name)  # the import system asks, and must not load it
        return getattr(self.load(), name)


class _Name:
    """A name of a module, imported when it is first used."""

    def __init__(self, module: _Module, name: str) -> None:
        self._module = module
        self._name = name

    def _found(self) -> Any:
        return getattr(self._module.load(), self._name)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._found()(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found(), name)
