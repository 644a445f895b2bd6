"""Sections of a configuration that choose code: the models and types of a reference to an extension."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias, Union

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Tag, WithJsonSchema

from unstable_stream.errors import ConfigError
from unstable_stream.extensions.reference import Reference, absolute


def _as_spec(value: Any) -> Any:
    """Make the path of a file absolute; leave a value that is no reference for pydantic to refuse."""
    if not isinstance(value, (str, Mapping)):
        return value
    try:
        return absolute(value, "reference")
    except ConfigError as error:
        raise ValueError(str(error).removeprefix("reference: ")) from error


def as_table(value: Any) -> Any:
    spec = _as_spec(value)
    return {"type": spec} if isinstance(spec, str) else spec


def _as_text(value: Any) -> Any:
    spec = _as_spec(value)
    return Reference.parse(spec).text if isinstance(spec, (str, Mapping)) else spec


_TEXT_OR_TABLE = WithJsonSchema({"type": ["string", "object"]})

Transform: TypeAlias = Annotated[dict[str, Any], BeforeValidator(as_table), _TEXT_OR_TABLE]
"""``{type = "ClassName", argument = value, …}`` or a string; any reference to an extension."""

Choice: TypeAlias = Annotated[str | dict[str, Any], BeforeValidator(_as_spec)]
"""A built-in's name, or a reference to an extension: a string or a table ``{type = …, argument = value}``."""

Named: TypeAlias = Annotated[str, BeforeValidator(_as_text), _TEXT_OR_TABLE]
"""The same as one string, because events name it: a table becomes ``target(argument=value)``."""


class ConfigSection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, defer_build=True)


class ExtensionConfig(BaseModel):
    """An extension in place of a built-in: all keys but ``type`` are its arguments."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True, defer_build=True)

    type: str
    """``package.module:Name``, ``path/to/file.py:Name``, or the name of an entry point."""

    @property
    def spec(self) -> dict[str, Any]:
        """The reference: ``type`` and the arguments."""
        return {"type": self.type, **(self.model_extra or {})}


def by_type(sections: Mapping[str, type[BaseModel]], extension: type[ExtensionConfig]) -> Any:
    """Return the type of a section: one of these by its key ``type``, the extension's by any other."""

    def tag(value: Any) -> str:
        name = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
        return str(name) if name in sections else "extension"

    tagged = [Annotated[section, Tag(name)] for name, section in {**sections, "extension": extension}.items()]
    return Annotated[Union[tuple(tagged)], Discriminator(tag)]  # noqa: UP007  # their number is not known here
