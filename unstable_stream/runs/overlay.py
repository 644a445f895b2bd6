"""Change a configuration while it is a tree of mappings, before it is checked.

The sections ``algorithm`` and ``engine`` have a type, which decides on their other keys.

Algorithms have also the names of their papers: each stands for settings of a built-in one and for an
advantage. A name is resolved when a configuration is read, and a run records what it stood for. So a run
stays what it was if a preset changes. docs/explanation/algorithms.md has the formula of each, and how
it differs from the paper's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel

from unstable_stream.algorithms.settings import BUILT_IN
from unstable_stream.extensions.sections import as_table
from unstable_stream.runs.engine_sections import ENGINES

_TYPES: Final[Mapping[str, Mapping[str, type[BaseModel]]]] = {"algorithm": BUILT_IN, "engine": ENGINES}
"""By section and ``type``; the first is the default."""

_CLIPPED: Final = {"epochs": 4, "clip_low": 0.2, "clip_high": 0.2, "is_clip": 3.0}
"""The defaults of what was called ``ppo`` before it had a critic: REINFORCE with PPO's objective."""


def as_recorded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration that a run recorded as it would be written today, with the same meaning.

    A run records all keys. So a key that is not there did not exist, and what it chooses was the only way.
    """
    tree = dict(settings)
    rewards, buffer, algorithm = (tree.get(name) for name in ("rewards", "buffer", "algorithm"))
    if isinstance(rewards, Mapping) and "step_texts" not in rewards:
        # Its steps have no texts, whatever code it names.
        tree["rewards"] = {**rewards, "step_texts": False}
    if isinstance(buffer, Mapping) and "overflow_draws" not in buffer:
        tree["buffer"] = {**buffer, "overflow_draws": "once"}
    if isinstance(algorithm, Mapping) and algorithm.get("type") == "ppo" and "gae_lambda" not in algorithm:
        tree["algorithm"] = {**_CLIPPED, **algorithm, "type": "reinforce"}
    return tree


def overlaid(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` with the keys of ``changes`` in place of its own, section by section."""
    tree = without_advantage(base, changes.get("algorithm"))
    for key, value in changes.items():
        below = named_table(tree.get(key)) if key in _TYPES else tree.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            before = _type(key, below)
            # A section of another type shares no keys with what was there.
            same = before is None or value.get("type", before) == before
            tree[key] = overlaid(below, value) if same else value
        else:
            tree[key] = value
    return tree


def retyped(name: str, section: Mapping[str, Any], new: Any) -> dict[str, Any]:
    """Return the section ``name`` with another type.

    Keys that somebody has set are kept where the new type has them too. Those that stand at the default of
    the old type, as all do in the configuration that a run records, give way to the new one's defaults.
    """
    known = dict(_TYPES.get(name, {}))
    if name == "algorithm":
        known |= {preset: known[stands_for.type] for preset, stands_for in PRESETS.items()}
    before, after = known.get(_type(name, section)), known.get(new)
    if before is None or after is None:
        return {"type": new}
    kept = {
        key: value
        for key, value in section.items()
        if key in after.model_fields and key in before.model_fields and value != _default(before, key)
    }
    return {**kept, "type": new}


def _type(name: str, section: object) -> Any:
    given = section.get("type") if isinstance(section, Mapping) else section
    return next(iter(_TYPES[name])) if given is None and name in _TYPES else given


def _default(model: type[BaseModel], key: str) -> Any:
    return model.model_fields[key].get_default(call_default_factory=True)


# -- presets ---------------------------------------------------------------------------------------

_BATCH_NORM: Final = ({"type": "NormalizeRewardsByEnv", "z_score": True},)


@dataclass(frozen=True)
class Preset:
    """The settings that a name stands for."""

    type: str
    """The built-in algorithm."""
    final: tuple[Mapping[str, Any], ...] = ()
    """``rewards.final``."""
    sampling: tuple[Mapping[str, Any], ...] = ()
    """``rewards.sampling``."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Keys of ``[algorithm]`` that are not at the type's default."""

    @property
    def rewards(self) -> dict[str, list[dict[str, Any]]]:
        """The advantage, as keys of ``[rewards]``."""
        return {"final": [*map(dict, self.final)], "sampling": [*map(dict, self.sampling)]}


_CLIP: Final = {"clip_low": 0.2, "clip_high": 0.2, "is_clip": 3.0}

PRESETS: Final[Mapping[str, Preset]] = {
    "spiral": Preset("reinforce", final=({"type": "RoleAdvantageByEnvFormatter"},)),
    "rloo": Preset("reinforce", sampling=({"type": "LeaveOneOutAdvantage"},)),
    "grpo": Preset(
        "reinforce", sampling=({"type": "GroupRelativeAdvantage"},), settings={**_CLIP, "kl_coef": 0.04}
    ),
    "dr-grpo": Preset(
        "reinforce", sampling=({"type": "GroupRelativeAdvantage", "normalize": False},), settings=_CLIP
    ),
    "dapo": Preset(
        "reinforce",
        sampling=({"type": "GroupRelativeAdvantage"},),
        settings={**_CLIP, "clip_high": 0.28, "loss_average": "token"},
    ),
    "gspo": Preset(
        "reinforce",
        sampling=({"type": "GroupRelativeAdvantage"},),
        settings={
            "clip_low": 3e-4,
            "clip_high": 4e-4,
            "trust_region": "update",
            "ratio_of": "answer_mean",
            "loss_average": "answer",
        },
    ),
    "cross-entropy": Preset("reinforce", settings={"is_clip": None}),
    "dpo": Preset("dpo"),
    "ipo": Preset("dpo", settings={"loss": "ipo"}),
    "a2c": Preset("a2c", sampling=_BATCH_NORM),
    "ppo": Preset("ppo", sampling=_BATCH_NORM),
}
"""By the name that ``algorithm.type`` takes."""


def resolved(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with what its preset stands for; what it sets itself is stronger."""
    algorithm = named_table(tree.get("algorithm"))
    preset = PRESETS.get(_name(algorithm))
    if preset is None:
        return dict(tree)
    rewards = tree.get("rewards", {})
    return {
        **tree,
        "algorithm": {**preset.settings, **algorithm, "type": preset.type},
        "rewards": {**preset.rewards, **rewards} if isinstance(rewards, Mapping) else rewards,
    }


def without_advantage(tree: Mapping[str, Any], algorithm: Any) -> dict[str, Any]:
    """Return a configuration over which a preset is named, without the advantage that the preset replaces.

    One that has the preset already keeps the advantage that was set beside it.
    """
    name = _name(named_table(algorithm))
    rewards = tree.get("rewards")
    if (
        name not in PRESETS
        or name == _name(named_table(tree.get("algorithm")))
        or not isinstance(rewards, Mapping)
    ):
        return dict(tree)
    kept = {stage: given for stage, given in rewards.items() if stage not in PRESETS[name].rewards}
    return {**tree, "rewards": kept}


def named_table(value: Any) -> Any:
    """Return a reference in one string as a table; anything else, also what cannot be read, as it is."""
    if not isinstance(value, str):
        return value
    try:
        return as_table(value)
    except ValueError:
        return value  # the check of the configuration says what is wrong with it


def _name(algorithm: Any) -> str:
    name = algorithm.get("type") if isinstance(algorithm, Mapping) else None
    return name if isinstance(name, str) else ""
