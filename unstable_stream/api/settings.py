"""Configuration as keyword arguments: flat (``learning_rate=…``) or nested (``learner={…}``), checked.

A flat keyword is the name of any key that only one section has, or of a documented argument (``_ALIASES``).
"""

from collections.abc import Mapping, Sequence
from functools import cache, reduce
from operator import getitem
from pathlib import Path
from typing import Any, Final, get_origin

from pydantic import BaseModel

from unstable_stream.api import shorthand
from unstable_stream.errors import ConfigError, did_you_mean
from unstable_stream.extensions import reference_to, references_to
from unstable_stream.runs.config import RunConfig, parse_config, read_toml, sections_of
from unstable_stream.runs.overlay import overlaid

Key = tuple[str, ...]

_ALIASES: Final[Mapping[str, Key]] = {
    "model_name": ("model",),
    "training_envs": ("train_envs",),
    "evaluation_envs": ("eval_envs",),
    "evaluation_opponent": ("evaluation", "opponents"),
    "evaluation_opponents": ("evaluation", "opponents"),
    "opponents": ("model_pool", "fixed"),
    "lora_cfg": ("lora",),
    "lora_config": ("lora",),
    "max_generation_len": ("sampling", "max_tokens"),
    "buffer_strategy": ("buffer", "strategy"),
    "final_reward_transformation": ("rewards", "final"),
    "step_reward_transformation": ("rewards", "step"),
    "sampling_reward_transformation": ("rewards", "sampling"),
}


_INSTEAD: Final[Mapping[str, str]] = {
    "action_extraction": "a template has its own extraction: (env_id, players, template)",
    "run_name": "name the run with name=…",
    "step_buffer": "give its settings: max_buffer_size=…, or build(collector=…, learner=…)",
    "tracker": "write trackers=['tensorboard'], 'wandb' or 'jsonl'; run.metrics() has all without",
    "use_trainer_cache": "training keeps no key-value cache; leave it out",
    "vllm_config": "write engine={'type': 'vllm', …}, lora={…} and max_tokens=…",
    "wandb_project": "write trackers=[{'type': 'wandb', 'project': …}]",
}
"""Arguments of UnstableBaselines that have another name here, or none."""


def make_config(
    settings: Mapping[str, object],
    base: "RunConfig | Mapping[str, Any] | Path | str | None" = None,
    overrides: Sequence[str | tuple[str, Any]] = (),
) -> RunConfig:
    """Return the configuration that keyword arguments describe.

    Args:
        settings: flat or nested keys; names and objects in short forms.
        base: a configuration to change: a TOML file, a mapping, or a configuration.
        overrides: ``key.path=value`` as on a command line, or pairs of both; stronger than ``settings``.

    Raises:
        ConfigError: an unknown keyword, with the closest known ones, or a configuration that cannot run.
    """
    tree, origin = _base_tree(base)
    asked = settings_tree(settings, str(tree.get("model", "")))
    if base is None and asked.get("model") == shorthand.TINY_PLAYER:
        tree = shorthand.tiny_player_defaults()
        if "type" in asked.get("algorithm", {}):
            del tree["algorithm"]  # these are for whoever names none
    if "opponents" in settings and "sample_mode" not in asked["model_pool"]:
        # Opponents to train against are given to be met; mirror self-play would never draw them.
        asked["model_pool"]["sample_mode"] = "random"
    return parse_config(overlaid(tree, asked), overrides, origin=origin)


def settings_tree(settings: Mapping[str, object], model: str) -> dict[str, Any]:
    """Return keyword arguments as sections of a configuration, short forms replaced.

    Args:
        settings: as for :func:`make_config`.
        model: the base model, if they name none.

    Raises:
        ConfigError: an unknown keyword.
    """
    tree = _tree_of(settings)
    _expand(tree, str(tree.get("model", model)))
    return tree


def expanded(name: str, value: object, model: str) -> Any:
    """Return the value of one key as a configuration holds it: names and objects in short forms replaced."""
    key, tree = full_key(name), _tree_of({name: value})
    if len(key) < 3:  # else it is of an entry of a list
        _expand(tree, model)
    return reduce(getitem, key, tree)


def _base_tree(base: "RunConfig | Mapping[str, Any] | Path | str | None") -> tuple[dict[str, Any], str]:
    if base is None:
        return {}, "configuration"
    if isinstance(base, RunConfig):
        return base.model_dump(mode="json"), "configuration"
    if isinstance(base, str | Path):
        return read_toml(Path(base)), str(base)
    return dict(base), "configuration"


def _tree_of(settings: Mapping[str, object]) -> dict[str, Any]:
    """Return settings as a nested mapping; raises :class:`ConfigError` for an unknown keyword."""
    tree: dict[str, Any] = {}
    for name, value in settings.items():
        key = full_key(name)
        if isinstance(value, BaseModel):
            value = value.model_dump(mode="json")
        if isinstance(value, Path):
            value = str(value)
        if len(key) == 1 and isinstance(value, Mapping):
            node = tree.setdefault(key[0], {})
            node.update({each: item for each, item in value.items() if each not in node})
        elif len(key) == 1 and isinstance(tree.get(key[0]), dict):
            tree[key[0]] = {"type": value} | tree[key[0]]  # engine="vllm" after max_loras=4
        else:
            node = tree
            for section in key[:-1]:
                below = node.setdefault(section, {})
                if not isinstance(below, dict):
                    below = node[section] = {"type": below}
                node = below
            node[key[-1]] = value
    return tree


def full_key(name: str) -> Key:
    """Return section and key that a keyword stands for; raises :class:`ConfigError` for an unknown one."""
    if "." in name:
        return tuple(name.split("."))
    if name in RunConfig.model_fields:
        return (name,)
    if name in _ALIASES:
        return _ALIASES[name]
    found = _flat_keys().get(name, [])
    if len(found) == 1:
        return found[0]
    if found:
        ways = " or ".join(f"{section}={{{leaf!r}: …}}" for section, leaf in found)
        raise ConfigError(f"{name!r} is a key of several sections: write {ways}")
    known = sorted({*RunConfig.model_fields, *_ALIASES, *_flat_keys()})
    if name in _INSTEAD:
        raise ConfigError(f"{name}: {_INSTEAD[name]}")
    hint = did_you_mean(name, known, "docs/reference/configuration.md lists the keys")
    raise ConfigError(f"unknown setting {name!r}: {hint}")


@cache
def _flat_keys() -> dict[str, list[tuple[str, str]]]:
    """Return for each key within a section the places it has."""
    found: dict[str, list[tuple[str, str]]] = {}
    for section, field in RunConfig.model_fields.items():
        # Sections in a list (environments) have no keys that could be flat.
        models = [] if get_origin(field.annotation) is tuple else sections_of(field.annotation)
        for leaf in dict.fromkeys(leaf for model in models for leaf in model.model_fields):
            found.setdefault(leaf, []).append((section, leaf))
    return found


def _expand(tree: dict[str, Any], model: str) -> None:
    """Replace short forms and objects by what the configuration holds."""
    if "model" in tree:
        tree["model"] = str(tree["model"])
    for name in ("train_envs", "eval_envs"):
        if name in tree:
            _take_opponents(tree, tree[name])
            tree[name] = shorthand.environments(tree[name], model)
    for section, name in (("evaluation", "opponents"), ("model_pool", "fixed")):
        if name in tree.get(section, {}):
            tree[section] = {**tree[section], name: shorthand.opponents(tree[section][name])}
    if isinstance(tree.get("rewards"), Mapping):
        tree["rewards"] = {
            stage: reward_stage(stage, given) for stage, given in tree["rewards"].items() if given is not None
        }
    for kind in ("algorithm", "engine"):
        if kind in tree and not (isinstance(tree[kind], Mapping) and "type" not in tree[kind]):
            tree[kind] = shorthand.table(kind, tree[kind])
    for name, kind in (("trackers", "tracker"), ("consumers", "consumer")):
        if name in tree:
            tree[name] = references_to(kind, tree[name])
    for section, name, kind in (
        ("model_pool", "sample_mode", "opponent_sampling"),
        ("model_pool", "rating_system", "rating_system"),
        ("buffer", "strategy", "buffer_strategy"),
    ):
        if name in tree.get(section, {}):
            tree[section] = {**tree[section], name: reference_to(kind, tree[section][name])}


def reward_stage(stage: str, given: object) -> list[dict[str, Any]]:
    """Return the configuration of one stage's transformations.

    Args:
        stage: ``final``, ``step`` or ``sampling``.
        given: one transformation, a list of them or a ``Compose...`` of them, as objects, names or tables.
    """
    named = references_to(f"{stage}_transformation", given)
    return [{"type": each} if isinstance(each, str) else each for each in named]


def _take_opponents(tree: dict[str, Any], envs: object) -> None:
    """Take the fixed opponent of evaluation environments as the evaluation's opponent."""
    if not isinstance(envs, Sequence):
        return
    named = [each.fixed_opponent for each in envs if isinstance(each, shorthand.EvalEnvSpec)]
    different = [each for each in named if each is not None]
    if not different:
        return
    if any(each != different[0] for each in different) or len(different) != len(named):
        raise ConfigError(
            "EvalEnvSpec(fixed_opponent=…): every opponent is met in every evaluation environment here; name "
            "them once, evaluation_opponents=[…]"
        )
    tree.setdefault("evaluation", {}).setdefault("opponents", [different[0]])
