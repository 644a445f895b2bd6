"""Algorithms by the names of their papers: each stands for settings of a built-in one and for an advantage.

A name is resolved when a configuration is read, and a run records what it stood for. So a run stays what it
was if a preset changes. docs/algorithms.md has the formula of each, and how it differs from the paper's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from unstable_stream.extensions.sections import as_table

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
