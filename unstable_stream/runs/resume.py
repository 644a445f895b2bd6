"""What a run keeps for life: whatever its recorded steps, ratings, batches and games are functions of.

Were these to change when a run goes on, the derived events after the change would follow from one
configuration and those before it from another, and nobody could recompute either.
"""

from collections.abc import Iterator
from typing import Any, Final

from unstable_stream.errors import ConfigError
from unstable_stream.runs.config import RunConfig

__all__ = ["check_resumable"]

_KEPT: Final = (
    "model",  # what checkpoints are adapters of
    "lora",
    "seed",
    "rewards",
    "model_pool",
    "buffer",
    "learner.batch_size",  # what a batch holds, and the buffer unless said otherwise
    "learner.max_train_len",  # which steps are dropped
    "algorithm.truncated_turns",
    "collector.filter_opponent_invalid",
    "collector.max_turns",  # when a game ends
    "collector.invalid_moves_allowed",
)


def check_resumable(begun: RunConfig, config: RunConfig) -> None:
    """Refuse to go on with a run under settings that its derived events depend on.

    Raises:
        ConfigError: names each key that differs, with both values.
    """
    before, after = begun.model_dump(mode="json"), config.model_dump(mode="json")
    changed = [
        change for name in _KEPT for change in _changes(name, _value(before, name), _value(after, name))
    ]
    if changed:
        raise ConfigError(
            "a run keeps what its steps, ratings and batches follow from; this would change "
            f"{'; '.join(changed)}. Leave it, or take it into a new run that begins here with: "
            "unstable-stream fork RUN --set KEY=VALUE"
        )


def _value(tree: Any, name: str) -> Any:
    for part in name.split("."):
        tree = tree[part]
    return tree


def _changes(name: str, before: Any, after: Any) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            yield from _changes(f"{name}.{key}", before.get(key), after.get(key))
    elif before != after:
        yield f"{name} from {_shown(before)} to {_shown(after)}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
