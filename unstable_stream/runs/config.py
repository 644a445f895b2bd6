"""The configuration of a run: one tree of frozen models, from TOML plus ``--set key=value``.

Unknown keys are errors. Every cross-field check runs before any process starts. The ``run-started`` event
records the resolved tree. The core takes plain values and does not see the configuration.

Every choice of code is open: a built-in's name, or a reference to an extension
(:mod:`unstable_stream.extensions`). Paths of files are made absolute when the configuration is read.
"""

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args

import pydantic
from pydantic import BaseModel

from unstable_stream.algorithms.settings import BUILT_IN
from unstable_stream.errors import ConfigError, did_you_mean
from unstable_stream.events import MOST_LEVELS, unfit
from unstable_stream.extensions.sections import ExtensionConfig
from unstable_stream.log.stores.address import is_address
from unstable_stream.runs.engine_sections import ENGINES
from unstable_stream.runs.engine_sections import EngineExtensionConfig as EngineExtensionConfig
from unstable_stream.runs.engine_sections import TransformersEngineConfig as TransformersEngineConfig
from unstable_stream.runs.engine_sections import VllmEngineConfig as VllmEngineConfig
from unstable_stream.runs.overlay import named_table, retyped, without_advantage
from unstable_stream.runs.run_config import RunConfig as RunConfig
from unstable_stream.runs.sections import EnvConfig as EnvConfig
from unstable_stream.runs.sections import OpponentConfig as OpponentConfig
from unstable_stream.runs.sections import RewardConfig as RewardConfig

_TOO_DEEP: Final = f"values nest deeper than {MOST_LEVELS} levels"


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file; raises :class:`ConfigError`."""
    try:
        return parse_toml(path.read_text(encoding="utf-8-sig"), str(path))  # some editors write a BOM
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def parse_toml(text: str, origin: str) -> dict[str, Any]:
    """Return the content of a TOML document; ``origin`` names it in messages.

    Raises:
        ConfigError: it is no TOML, or its values nest too deep.
    """
    try:
        values = tomllib.loads(text)
    except RecursionError as error:
        raise ConfigError(f"{origin}: {_TOO_DEEP}") from error
    except ValueError as error:  # also of a number with too many digits
        raise ConfigError(f"{origin}: not valid TOML: {error}") from error
    _check(values, origin)
    return values


def _check(values: Mapping[str, Any], origin: str) -> None:
    problem = unfit(values)
    if problem is not None:
        raise ConfigError(f"{origin}: values {problem}")


def parse_config(
    values: Mapping[str, Any],
    overrides: Sequence[str | tuple[str, Any]] = (),
    *,
    origin: str = "configuration",
) -> RunConfig:
    """Apply ``key.path=value`` overrides to nested mappings, and validate.

    Args:
        values: the configuration, section by section.
        overrides: what is in place of it; also as pairs of key and value.
        origin: names it in messages.

    Raises:
        ConfigError: one line per problem: the key, what was found and what to change.
    """
    _check(values, origin)
    tree = {
        key: named_table(value) if key in ("algorithm", "engine") else value
        for key, value in _copied(values).items()
    }
    parted = [_parted(override) for override in overrides]
    for name, value in parted:
        section, _, leaf = name.partition(".")
        if name in ("algorithm", "algorithm.type"):
            tree = without_advantage(tree, value)
        if leaf == "type" and isinstance(tree.get(section), Mapping) and tree[section].get("type") != value:
            tree[section] = retyped(section, tree[section], value)
    for name, value in parted:
        _apply_override(tree, name, value)
    try:
        return _located(RunConfig.model_validate(tree))
    except pydantic.ValidationError as error:
        problems = [(_key(item), _explain(item)) for item in error.errors()]
        said = [f"{_origin(key, [name for name, _ in parted], origin)}: {told}" for key, told in problems]
        raise ConfigError("\n".join(said)) from error


def _located(config: RunConfig) -> RunConfig:
    """Return the configuration with absolute paths of models and adapters: it is read by processes, and by
    later commands, that stand elsewhere.
    """

    def located(name: str | None, *, model: bool) -> Any:
        is_id = name == "tiny-player" or name in config.model_revisions
        if not name or is_address(name) or (model and is_id):
            return name
        path = os.path.expanduser(name)  # pathlib raises where there is no such user, or a path is too long
        # A model that is no directory is an id, or the error will say what was typed.
        return name if model and not os.path.isdir(path) else str(Path(path).absolute())

    def of_opponents(opponents: Sequence[OpponentConfig]) -> tuple[OpponentConfig, ...]:
        return tuple(
            each.model_copy(update={"path": located(each.path, model=each.kind == "model")})
            for each in opponents
        )

    def begun(section: Any) -> Any:  # LearnerConfig or TrainedModelConfig
        return section.model_copy(
            update={"initial_lora_path": located(section.initial_lora_path, model=False)}
        )

    pool, evaluation = config.model_pool, config.evaluation
    return config.model_copy(
        update={
            "model": located(config.model, model=True),
            "learner": begun(config.learner),
            "trained_models": tuple(map(begun, config.trained_models)),
            "model_pool": pool.model_copy(update={"fixed": of_opponents(pool.fixed)}),
            "evaluation": evaluation.model_copy(update={"opponents": of_opponents(evaluation.opponents)}),
        }
    )


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(each) for key, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list | tuple) else value


def _parted(override: str | tuple[str, Any]) -> tuple[str, Any]:
    """Return key and value of an override."""
    if not isinstance(override, str):
        return override
    name, separator, text = override.partition("=")
    if not separator or not name:
        raise ConfigError(f"--set {override!r}: expected key=value, e.g. --set learner.iterations=50")
    try:
        values = tomllib.loads(f"value = {text}")
    except RecursionError as error:
        raise ConfigError(f"--set {name}: {_TOO_DEEP}") from error
    except ValueError:
        # A bare word is a string, so that --set name=demo needs no quotes; TOML has no word for nothing.
        return name.strip(), None if text.strip() == "none" else text
    _check(values, f"--set {name}")
    return name.strip(), values["value"]


def _apply_override(tree: dict[str, Any], name: str, value: Any) -> None:
    *parents, leaf = name.split(".")
    node: Any = tree
    for parent in parents:
        is_list = isinstance(node, list)
        child = entry_of(node, parent, f"--set {name}") if is_list else node.setdefault(parent, {})
        if not isinstance(child, dict | list):
            raise ConfigError(f"--set {name}: {parent!r} is not a section")
        node = child
    if isinstance(node, list):
        raise ConfigError(f"--set {name}: name a key of the entry too, or set the whole list")
    node[leaf] = value


def entry_of(entries: list[Any], part: str, asked: str) -> Any:
    """Return the entry of a list that has this name or number, asked for by ``asked``. ``Any``: of TOML.

    Raises:
        ConfigError: there is none.
    """
    named = [each for each in entries if isinstance(each, dict) and each.get("name") == part]
    if named:
        return named[0]
    if part.isdigit() and int(part) < len(entries):
        return entries[int(part)]
    known = [str(each.get("name", place)) for place, each in enumerate(entries) if isinstance(each, dict)]
    raise ConfigError(f"{asked}: the list has no entry {part!r}; it has {', '.join(known) or 'none'}")


def _key(item: Any) -> str:
    return ".".join(str(part) for part in item["loc"] if part not in _TAGGED)


def _origin(key: str, overridden: Sequence[str], origin: str) -> str:
    """Return what a mistake at a key is blamed on: the override of it or of what it is in, else the file."""
    return next((f"--set {name}" for name in overridden if f"{key}.".startswith(f"{name}.")), origin)


def _explain(item: Any) -> str:
    """Return one line for one of pydantic's error details."""
    where = _key(item)
    if item["type"] == "extra_forbidden":
        known = _known_keys(item["loc"][:-1])
        meant = did_you_mean(item["loc"][-1], known)
        told = f", {meant}" if meant else ""
        return f"unknown key {where!r}{told}" + (f"; known here: {', '.join(known)}" if known else "")
    if where in ("train_envs", "eval_envs") and isinstance(item["input"], str):
        return f"{where} is a list of tables: {where}.0.env_id={item['input']} names the first environment"
    if item["type"] == "missing":
        return f"{where!r} is required"
    if item["type"] == "model_type":
        return f"{where} is a table of keys with values, found {item['input']!r}"
    message = item["msg"].removeprefix("Value error, ")
    if not where or _may_hold_secret(item["input"]):
        return f"{where}: {message}" if where else message
    return f"{where}: {message}, found {item['input']!r}"


def _may_hold_secret(value: object) -> bool:
    """Return whether a value is an address with what may be a password or a signature to keep quiet."""
    return isinstance(value, str) and bool(set(value.partition("://")[2]) & set("@?#"))


def _known_keys(location: tuple[Any, ...]) -> list[str]:
    section: Any = RunConfig
    for part in location:
        if isinstance(part, int):
            continue
        if part in _TAGGED:
            section = _TAGGED[part]
            continue
        field = section.model_fields.get(part)
        if field is None:
            return []
        found = [each for each in sections_of(field.annotation) if each not in _TAGGED.values()]
        section = next(iter(found), section)  # for the engine the next part is its type
    return list(section.model_fields)


_TAGGED: Final[Mapping[str, type[BaseModel]]] = {**ENGINES, **BUILT_IN, "extension": ExtensionConfig}


def sections_of(annotation: Any) -> list[type[BaseModel]]:
    """Return the sections that a value of this type may be. ``Any``: a type as annotated."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return list(dict.fromkeys(model for part in get_args(annotation) for model in sections_of(part)))
