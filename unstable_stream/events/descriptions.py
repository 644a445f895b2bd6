"""Describe every field of every event once: the docstring under the field is its description everywhere.

The archive's columns (:mod:`unstable_stream.archive.tables`), ``docs/reference/archive.md``, the JSON Schemas
in ``topics/schemas/`` and the AsyncAPI document are derived from the structs' annotations and these
docstrings. Python drops docstrings of attributes, so they are read from the source when they are asked for.
"""

import ast
import functools
import inspect
import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from unstable_stream.events.codec import EVENT_TYPES
from unstable_stream.events.envelope import Event

_ROLE = re.compile(r":\w+:`~?(?:[\w.]+\.)?(\w+)`")


def field_description(struct: type[msgspec.Struct], field: str) -> str:
    """Return the meaning and unit of a field, as one line of Markdown.

    Raises:
        KeyError: the struct has no such field, or nothing is written under it.
    """
    for owner in struct.__mro__:
        described = _docstrings(owner)
        if field in described:
            return described[field]
    raise KeyError(f"{struct.__name__}.{field} has no docstring under it; write its meaning and unit there")


@functools.cache
def recorded_structs() -> tuple[type[msgspec.Struct], ...]:
    """Return the event classes and the structs nested in them, in order of first appearance."""
    found: dict[type[msgspec.Struct], None] = {}

    def look(part: object) -> None:
        if isinstance(part, msgspec.inspect.StructType):
            found.setdefault(part.cls)
            for field in part.fields:
                look(field.type)
        elif isinstance(part, msgspec.inspect.Type):
            for name in part.__struct_fields__:
                inner = getattr(part, name)
                for child in inner if isinstance(inner, tuple) else (inner,):
                    look(child)

    for described in msgspec.inspect.multi_type_info(EVENT_TYPES.values()):
        look(described)
    return tuple(found)


def event_schemas(
    events: Iterable[type[Event]], ref_template: str = "#/$defs/{name}"
) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    """Return the JSON Schema of each event class, and the schemas by name that they refer to, all described.

    Args:
        events: event classes.
        ref_template: the form of a reference to a named schema.
    """
    heads, components = msgspec.json.schema_components(events, ref_template=ref_template)
    for struct in recorded_structs():
        schema = components.get(struct.__name__)
        if schema is None:
            continue
        if struct.__doc__:
            schema["description"] = plain_text(inspect.cleandoc(struct.__doc__), null="null")
        # A struct that is written as an array has positions instead of names.
        fields = schema["properties"] if "properties" in schema else schema["prefixItems"]
        for place, name in enumerate(struct.__struct_fields__):
            key = name if isinstance(fields, dict) else place
            fields[key] = {
                **fields[key],
                "description": plain_text(field_description(struct, name), null="null"),
            }
    return heads, components


def plain_text(text: str, null: str = "None") -> str:
    """Return a docstring as Markdown: no reStructuredText roles, single backticks, ``null`` for ``None``."""
    text = text.replace("``None``", null)
    return _ROLE.sub(r"`\1`", text).replace("``", "`")


@functools.cache
def _docstrings(struct: type) -> Mapping[str, str]:
    """Return the docstrings under the fields that the class itself declares."""
    if not issubclass(struct, msgspec.Struct) or struct is msgspec.Struct:
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
