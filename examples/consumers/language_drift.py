"""How the model's language changes as it trains: repetition, variety, length.

    unstable-stream consume examples/consumers/language_drift.py:repetition --until-end

For every 64 training trajectories of an environment, in the order they were played, it emits under the newest
update among them:

- ``language/ENV/distinct-2``: distinct token pairs over all token pairs in the window. Falling: it says the
  same things again and again.
- ``language/ENV/repeated-4grams``: the share of 4-grams that had occurred in the same completion before.
  Rising: it loops.
- ``language/ENV/completion-tokens``: mean tokens of a completion.
- ``language/ENV/length-drift``: the same, over that of the first window.

On tokens, so that no tokenizer is needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from unstable_stream import Context, consumer
from unstable_stream.events import Trajectory, unpack_tokens

WINDOW_TRAJECTORIES = 64


@dataclass
class Window:
    """What the trajectories since the last emission add up to."""

    trajectories: int = 0
    newest: int = 0
    completions: int = 0
    tokens: int = 0
    pairs: int = 0
    distinct_pairs: set[tuple[int, int]] = field(default_factory=set)
    fours: int = 0
    repeated_fours: int = 0
    first_length: float | None = None


@dataclass
class Language:
    """A window for each environment."""

    windows: dict[str, Window] = field(default_factory=dict)


@consumer(topics=["trajectories"], state=Language)
def repetition(event: Trajectory, context: Context) -> None:
    """Repetition, variety and length of completions, by update."""
    if event.split != "train":
        return
    window: Window = context.state.windows.setdefault(event.env_id, Window())
    for turn in event.turns:
        add(window, unpack_tokens(turn.completion_token_ids).tolist())
    window.trajectories += 1
    window.newest = max(window.newest, event.policy_version or 0)
    if window.trajectories < WINDOW_TRAJECTORIES:
        return
    length = window.tokens / max(1, window.completions)
    first = length if window.first_length is None else window.first_length
    name = f"language/{event.env_id}"
    if window.pairs:
        context.emit(f"{name}/distinct-2", len(window.distinct_pairs) / window.pairs, update=window.newest)
    if window.fours:
        context.emit(f"{name}/repeated-4grams", window.repeated_fours / window.fours, update=window.newest)
    context.emit(f"{name}/completion-tokens", length, update=window.newest)
    context.emit(f"{name}/length-drift", length / first if first else 1.0, update=window.newest)
    context.state.windows[event.env_id] = Window(first_length=first)


def add(window: Window, tokens: Sequence[int]) -> None:
    """Add one completion."""
    window.completions += 1
    window.tokens += len(tokens)
    pairs = list(pairwise(tokens))
    window.pairs += len(pairs)
    window.distinct_pairs.update(pairs)
    fours = [tuple(tokens[i : i + 4]) for i in range(len(tokens) - 3)]
    window.fours += len(fours)
    window.repeated_fours += len(fours) - len(set(fours))
