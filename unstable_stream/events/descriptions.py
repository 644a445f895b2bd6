"""Describe every field of every event once: the docstring under the field is its description everywhere.

The archive's columns (:mod:`unstable_stream.archive.tables`), ``docs/reference/archive.md``, the JSON Schemas
in ``topics/schemas/`` and the AsyncAPI document are derived from the structs' annotations and these
docstrings. Python drops docstrings of attributes, so they are read from the source when they are asked for.
"""

import ast
import dataclasses
import functools
import inspect
import re
import textwrap
from collections.abc import Mapping

import msgspec

_ROLE = re.compile(r":\w+:`~?(?:[\w.]+\.)?(\w+)`")


def field_description(struct: type, field: str) -> str:
    """Return the meaning and unit of a field of a struct or dataclass, as one line of Markdown.

    Raises:
        KeyError: the struct has no such field, or nothing is written under it.
    """
    for owner in struct.__mro__:
        described = _docstrings(owner)
        if field in described:
            return described[field]
    raise KeyError(f"{struct.__name__}.{field} has no docstring under it; write its meaning and unit there")


def plain_text(text: str, null: str = "None") -> str:
    """Return a docstring as Markdown: no reStructuredText roles, single backticks, ``null`` for ``None``."""
    text = text.replace("``None``", null)
    return _ROLE.sub(r"`\1`", text).replace("``", "`")


@functools.cache
def _docstrings(struct: type) -> Mapping[str, str]:
    """Return the docstrings under the fields that the class itself declares."""
    declares = issubclass(struct, msgspec.Struct) or dataclasses.is_dataclass(struct)
    if not declares or struct is msgspec.Struct:
        return {}
    (declared,) = ast.parse(textwrap.dedent(inspect.getsource(struct))).body
    assert isinstance(declared, ast.ClassDef)
    return {
        field.target.id: " ".join(doc.value.value.split())
        for field, doc in zip(declared.body, declared.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(doc, ast.Expr)
        and isinstance(doc.value, ast.Constant)
        and isinstance(doc.value.value, str)
    }
