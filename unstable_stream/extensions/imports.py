"""Import code from outside this package: a module, or a file by its path.

A file is imported once, under a name made of its path, so that two extensions of one file share their
classes. A process keeps the imported code even if the file changes, until :func:`forget_changed_files` is
called. The start of a run calls it.
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

FILE_MODULE_PREFIX: Final = "unstable_stream_extension_"

_DIGEST: Final = "__unstable_stream_sha256__"
_loading: ContextVar[bool] = ContextVar("unstable_stream_loading", default=False)


class NotImportableError(UnstableStreamError):
    """Code could not be imported; the message is one line with the place and the reason."""


def loading() -> bool:
    """Return whether code is being imported as an extension now, e.g. the script that started a run."""
    return _loading.get()


def search(directory: Path | str) -> None:
    """Search ``directory`` for modules, after all other places; an empty string changes nothing."""
    if str(directory) and str(directory) not in sys.path:
        sys.path.append(str(directory))


def import_file(path: Path) -> ModuleType:
    """Import a file; its own imports are also searched in its directory, as for a script.

    Raises:
        NotImportableError: the file does not exist or cannot be imported.
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
    sys.modules[name] = module  # annotations and dataclasses look names up there
    try:
        with _as_extension():
            # Compile here and not in the loader: if the file changed within a second, the loader would use
            # its older compiled code.
            exec(compile(source, str(full), "exec"), vars(module))
    except Exception as error:
        sys.modules.pop(name, None)
        raise _failed(str(path), error) from error
    return module


def forget_changed_files() -> None:
    """Forget the files that have changed since their import, so that they are imported again."""
    for name in [name for name in sys.modules if name.startswith(FILE_MODULE_PREFIX)]:
        module = sys.modules[name]
        path = Path(str(module.__file__))
        now = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        if now != getattr(module, _DIGEST, None):
            del sys.modules[name]


def digest_of(module: ModuleType) -> str:
    """Return the sha256 of a module's source; empty if it has no source."""
    imported: str | None = getattr(module, _DIGEST, None)
    if imported is not None:
        return imported
    file = inspect.getsourcefile(module)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""


def import_module(name: str) -> ModuleType:
    """Import a module; the working directory is searched too.

    Raises:
        NotImportableError: the module cannot be imported.
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
