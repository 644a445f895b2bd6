"""References: a target and its arguments, as a table or as one string.

``{type = "bots.py:Careful", depth = 3}`` and ``"bots.py:Careful(depth=3)"`` are the same. The string form is
for places where an event holds a string, such as an environment's id.
"""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from unstable_stream.errors import ConfigError
from unstable_stream.events import unfit
from unstable_stream.extensions.arguments import is_plain

Spec: TypeAlias = str | Mapping[str, Any]
"""The form of a reference in a configuration."""

OBJECT_PREFIX: Final = "object:"
"""The prefix of the name of an object that only this process has."""

_LONGEST: Final = 10_000
"""Characters of a reference as a string. A longer call can exhaust Python's parser."""
_LEVELS: Final = 32
"""Levels of its arguments: fewer than a recorded configuration may have, since it stands within one."""
_LONGEST_QUOTE: Final = 200

_FILE: Final = re.compile(r"(?P<path>.+\.py)(?::(?P<name>[A-Za-z_][\w.]*)?)?")


@dataclass(frozen=True)
class Reference:
    """A target that a configuration names, and its arguments."""

    target: str
    """``name``, ``package.module:Name``, ``path/to/file.py:Name`` or an entry point's name."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """JSON values, passed by keyword."""

    @classmethod
    def parse(cls, spec: Spec, where: str = "extension") -> "Reference":
        """Read a table or a string; ``where`` names the key in messages.

        Raises:
            ConfigError: the table has no ``type``, the string is too long, or an argument is no ``key=value``
                with a plain value.
        """
        if not isinstance(spec, str):
            arguments = dict(spec)
            target = arguments.pop("type", None)
            if not isinstance(target, str):
                found = f"{dict(spec)}"[:_LONGEST_QUOTE]
                raise ConfigError(f"{where}: {found} has no type, which names what is used")
            inner = cls.parse(target, where)
            return cls(inner.target, {**inner.arguments, **arguments})
        text = spec.strip()
        if len(text) > _LONGEST:
            raise ConfigError(
                f"{where}: {text[:_LONGEST_QUOTE]!r} and so on has {len(text)} characters, expected at "
                f"most {_LONGEST}"
            )
        if not text.endswith(")"):
            return cls(text)
        file = text.find(".py:")
        opening = text.find("(", max(file, 0))
        if opening <= 0:
            raise ConfigError(f"{where}: {text[:_LONGEST_QUOTE]!r}: expected target(key=value, ...)")
        return cls(text[:opening], _arguments(text[opening:], text, where))

    @property
    def text(self) -> str:
        """The reference as one string; :meth:`parse` reads it back."""
        if not self.arguments:
            return self.target
        listed = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.target}({listed})"

    @property
    def spec(self) -> str | dict[str, Any]:
        """The reference as a configuration holds it: a string, or a table if it has arguments."""
        return {"type": self.target, **self.arguments} if self.arguments else self.target

    @property
    def file(self) -> tuple[Path, str] | None:
        """Path and name if the target is in a file, else ``None``; the name may be empty."""
        found = _FILE.fullmatch(self.target)
        if found is None or self.target.startswith(OBJECT_PREFIX):
            return None
        return Path(found["path"]), found["name"] or ""

    @property
    def names_code(self) -> bool:
        """True if the target gives the place of the code, a module or a file, and is not only a name."""
        return ":" in self.target or self.file is not None


def absolute(spec: Spec, where: str = "extension") -> str | dict[str, Any]:
    """Return the reference with an absolute file path."""
    reference = Reference.parse(spec, where)
    file = reference.file
    if file is not None:
        path, name = file
        path = path.expanduser().resolve()
        reference = Reference(f"{path}:{name}" if name else str(path), reference.arguments)
    return reference.spec


def _arguments(call: str, text: str, where: str) -> dict[str, Any]:
    problem = (
        f"{where}: {text[:_LONGEST_QUOTE]!r}: expected target(key=value, ...) with numbers, strings, lists "
        "or tables"
    )
    try:
        parsed = ast.parse(f"_{call}", mode="eval").body
        if not isinstance(parsed, ast.Call) or parsed.args:
            raise ConfigError(problem)
        arguments = {str(word.arg): ast.literal_eval(word.value) for word in parsed.keywords if word.arg}
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as error:
        raise ConfigError(problem) from error
    if len(arguments) < len(parsed.keywords) or unfit(arguments, _LEVELS) or not is_plain(arguments):
        raise ConfigError(problem)
    return arguments
