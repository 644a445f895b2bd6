"""Importing code that is no part of this package: a module, or a file by its path.

A file is imported once, under a name made of its path, so that two extensions of one file share their
classes. A process goes on with the code it has, whatever becomes of the file, until
:func:`forget_changed_files` is called, as is done before a run starts.
"""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Final

from unstable_stream.errors import UnstableStreamError

__all__ = [
    "FILE_MODULE_PREFIX",
    "NotImportableError",
    "digest_of",
    "forget_changed_files",
    "import_file",
    "import_module",
    "loading",
    "search",
]

FILE_MODULE_PREFIX: Final = "unstable_stream_extension_"

_DIGEST: Final = "__unstable_stream_sha256__"
_loading: ContextVar[bool] = ContextVar("unstable_stream_loading", default=False)


class NotImportableError(UnstableStreamError):
    """Code that could not be imported; one line that says where and why."""


def loading() -> bool:
    """Tell whether code is being imported as an extension right now, e.g. the script that started a run."""
    return _loading.get()


def search(directory: Path | str) -> None:
    """Let modules be found in ``directory``, after all other places; an empty string changes nothing."""
    if str(directory) and str(directory) not in sys.path:
        sys.path.append(str(directory))


def import_file(path: Path) -> ModuleType:
    """Import a file; its directory is searched for what it imports, as Python does for a script.

    Raises:
        NotImportableError: no such file, or it cannot be imported.
    """
    full = path.resolve()
    where = hashlib.sha256(str(full).encode()).hexdigest()[:8]
    name = f"{FILE_MODULE_PREFIX}{full.stem}_{where}"
    known = sys.modules.get(name)
    if known is not None:
        return known
    if not path.is_file():
        raise NotImportableError(f"cannot load {path}: no such file")
    source = full.read_bytes()
    spec = importlib.util.spec_from_file_location(name, full)
    assert spec is not None, "the name ends in .py"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    setattr(module, _DIGEST, hashlib.sha256(source).hexdigest())
    search(full.parent)
    sys.modules[name] = module  # annotations and dataclasses are looked up there
    try:
        with _as_extension():
            # Compiled here and not by the loader: that would take what it compiled before, if the file was
            # changed within a second.
            exec(compile(source, str(full), "exec"), vars(module))
    except Exception as error:
        sys.modules.pop(name, None)
        raise _failed(str(path), error) from error
    return module


def forget_changed_files() -> None:
    """Let files that have changed since they were imported be imported anew when they are next named."""
    for name in [name for name in sys.modules if name.startswith(FILE_MODULE_PREFIX)]:
        module = sys.modules[name]
        path = Path(str(module.__file__))
        now = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        if now != getattr(module, _DIGEST, None):
            del sys.modules[name]


def digest_of(module: ModuleType) -> str:
    """Return the sha256 of the source that a module was made of, empty if it has none."""
    imported: str | None = getattr(module, _DIGEST, None)
    if imported is not None:
        return imported
    file = inspect.getsourcefile(module)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""


def import_module(name: str) -> ModuleType:
    """Import a module; the working directory is searched too.

    Raises:
        NotImportableError: it cannot be imported.
    """
    search(Path.cwd())
    try:
        with _as_extension():
            return importlib.import_module(name)
    except Exception as error:
        raise _failed(name, error) from error


@contextmanager
def _as_extension() -> Iterator[None]:
    token = _loading.set(True)
    try:
        yield
    finally:
        _loading.reset(token)


def _failed(place: str, error: Exception) -> NotImportableError:
    if isinstance(error, UnstableStreamError):
        return NotImportableError(f"{place}: {error}")
    said = " ".join(str(error).split())
    return NotImportableError(f"cannot import {place}: {type(error).__name__}: {said}")
