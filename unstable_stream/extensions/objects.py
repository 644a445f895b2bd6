"""Turn an object into its reference: the place to import it from, and its arguments.

An object that no other process can import (from a notebook, a lambda, a closure) is kept here under a name
that only this process knows.
"""

import hashlib
import inspect
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from unstable_stream.errors import ConfigError
from unstable_stream.extensions.arguments import is_plain, remembered_arguments
from unstable_stream.extensions.imports import FILE_MODULE_PREFIX
from unstable_stream.extensions.kinds import KINDS
from unstable_stream.extensions.reference import OBJECT_PREFIX, Reference, Spec

_objects: dict[str, object] = {}


def reference_to(kind: str, obj: object) -> str | dict[str, Any]:
    """Return the reference of an object, as a configuration holds it.

    Args:
        kind: a key of :data:`~unstable_stream.extensions.kinds.KINDS`, e.g. ``algorithm``.
        obj: an instance, a class, a function, or a reference already (string or table), which stays as it is.

    An instance is named by its class and its arguments, if these are known: from the fields of a dataclass,
    or from our base classes, which remember them. An object without a module or file gets the name
    ``object:...``, which is valid only in this process (see :func:`needs_this_process`).

    Raises:
        ConfigError: the kind is unknown.
    """
    if kind not in KINDS:
        raise ConfigError(f"unknown kind of extension {kind!r}; expected one of {', '.join(KINDS)}")
    if isinstance(obj, (str, Mapping)):
        return obj if isinstance(obj, str) else dict(obj)
    names = {target: name for name, target in KINDS[kind].built_in.items()}
    home = _home(obj)
    if home is not None:
        return names.get(home, home)
    if not inspect.isclass(obj) and not inspect.isroutine(obj):
        home = _home(type(obj))
        arguments = remembered_arguments(obj)
        if home is not None and arguments is not None and all(map(is_plain, arguments.values())):
            return Reference(names.get(home, home), json.loads(json.dumps(arguments))).spec
        bound = _bound_name(obj)
        if bound is not None:
            return bound
    return _register(obj)


def references_to(kind: str, objs: object) -> list[str | dict[str, Any]]:
    """Return the references of a list, of the parts of a ``Compose...``, or of a single object."""
    parts = getattr(objs, "transforms", objs)
    if isinstance(parts, Sequence) and not isinstance(parts, str):
        return [reference for part in parts for reference in references_to(kind, part)]
    return [reference_to(kind, objs)]


def needs_this_process(spec: Spec) -> bool:
    """Return whether a reference names an object of only this process; it needs ``backend="inline"``."""
    return Reference.parse(spec).target.startswith(OBJECT_PREFIX)


def registered(target: str, where: str) -> object:
    """Return an object of this process; raises :class:`ConfigError` in any other."""
    found = _objects.get(target)
    if found is None:
        raise ConfigError(
            f"{where}: {target!r} is an object of the process that named it; define it in a module or a file "
            'to use it here, or run with backend="inline" where it is defined'
        )
    return found


def source_digest(obj: object) -> str:
    """Return the sha256 of the source that defines an object; empty if the source is not available."""
    thing: Any = obj if inspect.isclass(obj) or inspect.isroutine(obj) else type(obj)
    try:
        return hashlib.sha256(inspect.getsource(thing).encode()).hexdigest()
    except (OSError, TypeError):
        return ""  # typed at a prompt, so its text is not kept


def _home(obj: object) -> str | None:
    """Return the ``module:Name`` or ``file.py:Name`` from which another process gets the same object."""
    thing = getattr(obj, "target", obj)  # a plug-in stands for its function or class
    name = getattr(thing, "__qualname__", None)
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    if name is None or module is None or "<" in name:
        return None
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    place = _place(module)
    return f"{place}:{name}" if found is obj and place is not None else None


def _place(module: ModuleType) -> str | None:
    spec = getattr(module, "__spec__", None)
    file = getattr(module, "__file__", None)
    if module.__name__ != "__main__" and not module.__name__.startswith(FILE_MODULE_PREFIX):
        return module.__name__
    if module.__name__ == "__main__" and spec is not None:
        return str(spec.name)  # python -m package.module
    return str(Path(file).resolve()) if file and file.endswith(".py") else None


def _bound_name(obj: object) -> str | None:
    """Return the module and name of a variable that holds this object, e.g. a template with its functions."""
    for module in _modules_around(obj):
        place = _place(module)
        if place is None:
            continue
        for name, value in vars(module).items():
            if value is obj:
                return f"{place}:{name}"
    return None


def _modules_around(obj: object) -> Iterator[ModuleType]:
    names = {type(obj).__module__, "__main__"}
    slots = [slot for cls in type(obj).__mro__ for slot in getattr(cls, "__slots__", ())]
    parts = [*getattr(obj, "__dict__", {}).values(), *(getattr(obj, slot, None) for slot in slots)]
    names |= {getattr(part, "__module__", None) or "" for part in parts}
    for name in sorted(names):
        module = sys.modules.get(name)
        if module is not None:
            yield module


def _register(obj: object) -> str:
    for name, known in _objects.items():
        if known is obj:
            return name
    title = getattr(obj, "__qualname__", type(obj).__qualname__).replace("<locals>.", "").strip("<>")
    name = f"{OBJECT_PREFIX}{title}"
    number = 2
    while name in _objects:
        name = f"{OBJECT_PREFIX}{title}-{number}"
        number += 1
    _objects[name] = obj
    return name
