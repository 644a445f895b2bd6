"""Change a configuration while it is a tree of mappings, before it is checked.

The sections ``algorithm`` and ``engine`` have a type, which decides on their other keys.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from unstable_stream.algorithms.settings import BUILT_IN
from unstable_stream.errors import ConfigError
from unstable_stream.log.stores.address import LONGEST_NAME, path_part
from unstable_stream.runs.engine_sections import ENGINES
from unstable_stream.runs.presets import PRESETS, named_table, without_advantage

_TYPES: Final[Mapping[str, Mapping[str, type[BaseModel]]]] = {"algorithm": BUILT_IN, "engine": ENGINES}
"""By section and ``type``; the first is the default."""

_CLIPPED: Final = {"epochs": 4, "clip_low": 0.2, "clip_high": 0.2, "is_clip": 3.0}
"""The defaults of what was called ``ppo`` before it had a critic: REINFORCE with PPO's objective."""


def as_recorded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration that a run recorded as it would be written today, with the same meaning.

    A run records all keys. So a key that is not there did not exist, and what it chooses was the only way.
    """
    tree = dict(settings)
    name = tree.get("name")
    if isinstance(name, str):
        try:
            path_part(name, "a name", longest=LONGEST_NAME)
        except ConfigError:  # a run had any name: its id was made of what files can have of it
            tree["name"] = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-. ")[:LONGEST_NAME] or "run"
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
