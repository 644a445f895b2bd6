"""How much of the game each checkpoint explores: n-gram coverage of action sequences.

    unstable-stream consume examples/consumers/exploration_coverage.py --until-end

For every 16th game of a checkpoint in an environment it emits, under the checkpoint's update:

- ``exploration/ENV/CHECKPOINT/distinct-3grams``: distinct 3-grams of moves over all 3-grams, in all its games
  so far. Near 0: it plays the same lines again and again.
- ``exploration/ENV/CHECKPOINT/novelty``: the share of a game's distinct 3-grams that no earlier game of the
  newest eight checkpoints had, mean over its last 16 games.

A 3-gram is three moves in a row, of whatever seats; a shorter game is one gram.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from unstable_stream import Context, consumer
from unstable_stream.events import GameOutcome

N = 3
EVERY_GAMES = 16
CHECKPOINTS_KEPT = 8


@dataclass
class Play:
    """What one checkpoint has played in one environment."""

    games: int = 0
    grams: int = 0
    distinct: set[int] = field(default_factory=set)
    recent_novelty: list[float] = field(default_factory=list)


@dataclass
class Coverage:
    """By environment, then checkpoint; the newest checkpoints only, so that it does not grow with the run."""

    plays: dict[str, dict[str, Play]] = field(default_factory=dict)


@consumer(topics=["game-outcomes"], name="exploration-coverage", state=Coverage)
def coverage(event: GameOutcome, context: Context) -> None:
    """N-gram coverage of action sequences, by checkpoint."""
    grams = grams_of([action.action for action in event.actions])
    if not grams:
        return
    plays: dict[str, Play] = context.state.plays.setdefault(event.env_id, {})
    known = set().union(*(play.distinct for play in plays.values()))
    novelty = len(set(grams) - known) / len(set(grams))
    # A checkpoint in two seats of one game has still played one game.
    for model, version in {seat.model_uid: seat.policy_version for seat in event.seats}.items():
        if version is None:
            continue  # a fixed opponent
        play = plays.setdefault(model, Play())
        play.games += 1
        play.grams += len(grams)
        play.distinct.update(grams)
        play.recent_novelty = [*play.recent_novelty, novelty][-EVERY_GAMES:]
        if play.games % EVERY_GAMES == 0:
            name = f"exploration/{event.env_id}/{model}"
            context.emit(f"{name}/distinct-{N}grams", len(play.distinct) / play.grams, update=version)
            recent = play.recent_novelty
            context.emit(f"{name}/novelty", sum(recent) / len(recent), update=version)
    for old in sorted(plays)[:-CHECKPOINTS_KEPT]:
        del plays[old]


def grams_of(actions: Sequence[str]) -> list[int]:
    """A 64-bit digest of each n-gram: one move may be kilobytes of text."""
    n = min(N, len(actions))
    return [_digest(actions[i : i + n]) for i in range(len(actions) - n + 1)] if n else []


def _digest(actions: Sequence[str]) -> int:
    # Length prefixes keep "ab", "c" and "a", "bc" apart.
    text = "".join(f"{len(action)}:{action}" for action in actions)
    return int.from_bytes(hashlib.blake2b(text.encode(errors="replace"), digest_size=8).digest(), "big")
