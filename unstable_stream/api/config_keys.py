"""Every key of a configuration: type, default, allowed values, meaning; and the JSON Schema of the file.

docs/reference/configuration.md and ``unstable-stream config`` are made from these alone.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from unstable_stream.algorithms.settings import BUILT_IN
from unstable_stream.errors import ConfigError, did_you_mean
from unstable_stream.runs.config import RunConfig, entry_of, read_toml, sections_of
from unstable_stream.runs.engine_sections import ENGINES

_NAMES: Final = {bool: "boolean", int: "integer", float: "number", str: "text", dict: "table"}
_BOUNDS: Final = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}


class ConfigKey(NamedTuple):
    """One key, as documented."""

    path: str
    """E.g. ``learner.learning_rate``; of a list of sections without a number, ``train_envs.env_id``."""
    variant: str
    """The type that its section must have, e.g. ``vllm``; empty: there is one."""
    kind: str
    """The type of a value, e.g. ``number``; ``section`` where it has keys itself."""
    bounds: str
    """E.g. ``above 0``; empty: none."""
    default: str
    """As in TOML; ``required``, or empty for a section."""
    meaning: str


def config_keys(*, in_lists: bool = True) -> list[ConfigKey]:
    """Return all keys in the order of the reference, a section before its own keys.

    Args:
        in_lists: also those of the entries of lists.
    """
    return list(_keys(RunConfig, "", "", in_lists))


def explained(name: str) -> list[ConfigKey]:
    """Return the key of this name, in each variant of its section; of a section, its own keys follow.

    Raises:
        ConfigError: there is none; names those that are close.
    """
    keys = config_keys()
    wanted, _ = _without_entry(name, keys)
    found = [key for key in keys if key.path == wanted or key.path.rpartition(".")[0] == wanted]
    ends = found or [key for key in keys if key.path.endswith(f".{wanted}")]
    if not ends:
        hint = did_you_mean(wanted, [key.path for key in keys], "docs/reference/configuration.md lists them")
        raise ConfigError(f"no key {name!r}; {hint}")
    return ends


def set_in(path: Path, key: str, asked: str = "") -> str | None:
    """Return a key's value in a configuration file, as in TOML; ``None``: it is not set.

    Args:
        path: the file.
        key: the path of a :class:`ConfigKey`.
        asked: the key as it was asked for, whose entry of a list is meant; without one it is the first.

    Raises:
        ConfigError: the file cannot be read, or its list has no such entry.
    """
    node: Any = read_toml(path)
    _, entry = _without_entry(asked, config_keys())
    for part in key.split("."):
        if isinstance(node, list):
            node = entry_of(node, entry or "0", asked) if node else None
        node = node.get(part) if isinstance(node, Mapping) else None
    return None if node is None else as_toml(node)


def _without_entry(name: str, keys: Sequence[ConfigKey]) -> tuple[str, str]:
    """Return the path of a key named as for ``--set``, and the name or number of the entry, if it has one."""
    within = {key.path for key in keys} - {key.path for key in config_keys(in_lists=False)}
    lists = {path.rpartition(".")[0] for path in within}
    parts = name.split(".")
    for place in range(1, len(parts)):
        section, entry = ".".join(parts[:place]), parts[place]
        if section in lists and f"{section}.{entry}" not in within:
            return ".".join([section, *parts[place + 1 :]]), entry
    return ".".join(part for part in parts if not part.isdigit()), ""


def config_schema() -> dict[str, Any]:
    """Return the JSON Schema of a configuration file, for editors: with the short forms that are accepted."""
    schema = RunConfig.model_json_schema()
    definitions = schema["$defs"]
    for name, taken in (("ExtensionConfig", BUILT_IN), ("EngineExtensionConfig", ENGINES)):
        definitions[name]["properties"]["type"]["not"] = {"enum": list(taken)}
        definitions[name]["type"] = ["object", "string"]  # the name alone will do
    definitions["OpponentConfig"]["type"] = ["object", "string"]
    for section in ("algorithm", "engine"):
        # A table without a type is the default's, which several forms accept.
        found = schema["properties"][section]
        found["anyOf"] = found.pop("oneOf")
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "unstable_stream run", **schema}


def described(name: str, field: FieldInfo) -> ConfigKey:
    """Return what is known of one field of a section; the path is its name."""
    sections = sections_of(field.annotation)
    is_section = bool(sections) and not isinstance(field.default, int)
    text = field.description or " ".join(model.__doc__ or "" for model in sections[:1])
    if len(sections) > 1 and not field.description:
        text = f"By its ``type``: {', '.join(map(variant_of, sections))}."
    meaning = " ".join(text.replace("``", "`").split())
    if is_section:
        return ConfigKey(name, "", "section", "", "", meaning)
    default = "required" if field.is_required() else as_toml(field.get_default(call_default_factory=True))
    bounds = dict.fromkeys(_bounds([*field.metadata, field.annotation]))
    return ConfigKey(name, "", type_name(field.annotation), ", ".join(bounds), default, meaning)


def variant_of(section: type[BaseModel]) -> str:
    """Return the type that a section must have to be read as this one; empty: it has none."""
    tag = section.model_fields.get("type")
    return "" if tag is None else "an extension" if tag.is_required() else str(tag.default)


def _keys(section: type[BaseModel], prefix: str, variant: str, in_lists: bool) -> Iterator[ConfigKey]:
    for name, field in section.model_fields.items():
        yield described(prefix + name, field)._replace(variant=variant)
        is_list = get_origin(field.annotation) is tuple
        below = sections_of(field.annotation) if in_lists or not is_list else []
        for each in below:
            yield from _keys(each, f"{prefix}{name}.", variant_of(each) if len(below) > 1 else "", in_lists)


def _bounds(notes: Sequence[Any]) -> Iterator[str]:
    """Yield the bounds in the notes of a type, e.g. ``above 0``. ``Any``: notes of pydantic, or types."""
    for note in notes:
        for name, words in _BOUNDS.items():
            limit = getattr(note, name, None)
            if isinstance(limit, int | float):
                yield f"{words} {limit:g}"
        if get_origin(note) in (Union, UnionType, Annotated):
            yield from _bounds([*get_args(note), *getattr(note, "__metadata__", ())])


def as_toml(value: Any) -> str:
    """Return a value as TOML; none is ``none``, and left out within others. ``Any``: as a file may have."""
    if value is None:
        return "none"
    if isinstance(value, dict):
        pairs = [f"{_toml_key(key)} = {as_toml(item)}" for key, item in value.items() if item is not None]
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(as_toml(each) for each in value if each is not None) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    # JSON writes texts as TOML does, but for pairs of surrogates and the control character 127.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml_key(name: str) -> str:
    bare = name and all(each in "-_" or (each.isascii() and each.isalnum()) for each in name)
    return name if bare else as_toml(name)


def type_name(annotation: Any) -> str:
    """Return how the reference calls the type of a key, which is never empty."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_name(parts[0])
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(type_name(part) for part in parts if part is not type(None)))
    if origin is Literal:
        return f"one of {', '.join(f'`{choice}`' for choice in parts)}"
    if origin in (tuple, list):
        return "list of" + type_name(parts[0]).removeprefix("one of") if "Literal" in str(parts) else "list"
    if sections_of(annotation):
        return "section"
    return _NAMES[origin or annotation]
