"""The section ``evaluation`` of a run's configuration."""

from typing import Annotated, Any

import pydantic
from pydantic import Field, PositiveInt

from unstable_stream.events import Action, GamePosition
from unstable_stream.extensions.sections import ConfigSection, Named
from unstable_stream.runs.sections import OpponentConfig


class ExploitabilityConfig(ConfigSection):
    """The distance of checkpoints from optimal play, in games that OpenSpiel can solve."""

    games: tuple[Named, ...] = ()
    """The games, e.g. ``openspiel:kuhn_poker``; empty: nothing is measured. A list of them stands for the
    section: ``exploitability = ["openspiel:kuhn_poker"]``."""
    every: PositiveInt = 10
    """Measure every checkpoint whose iteration is a multiple of this, and always the first and the last."""
    template: Named | None = None
    """Prompt template for games that are not among the run's environments; the others keep theirs."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _games_are_enough(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = [value]
        return {"games": value} if isinstance(value, list | tuple) else value


class BranchConfig(ConfigSection):
    """A position of a recorded game; unstable-stream branch records it."""

    game_id: str
    """The game."""
    turn: Annotated[int, Field(ge=0)]
    """The number of its moves before the position."""
    seed: int
    """The seed of its environment."""
    actions: tuple[tuple[int, str], ...]
    """Seat and action of the moves that are made again, and of those that are tried after them."""

    @property
    def position(self) -> GamePosition:
        """The position, as games that begin there have it."""
        return GamePosition(game_id=self.game_id, turn=self.turn, seed=self.seed, moves=len(self.actions))

    @property
    def moves(self) -> tuple[Action, ...]:
        """The moves that lead there."""
        return tuple(Action(seat, action) for seat, action in self.actions)


class EvaluationConfig(ConfigSection):
    """Games against fixed opponents on fixed seeds, the same for every checkpoint."""

    opponents: tuple[OpponentConfig, ...] = ()
    every: PositiveInt = 10
    """Evaluate every checkpoint whose iteration is a multiple of this, and always the first and the last."""
    max_eval_games_per_ckpt: PositiveInt = 64
    """Games per checkpoint, environment and opponent."""
    first_last_games: PositiveInt | None = None
    """The same for the first and the last checkpoint; ``None``: as many as for the others."""
    seed: int | None = None
    """Decides the seeds of these games; ``None``: the run's seed. Runs with the same play the same games."""
    votes: PositiveInt = 1
    """The policy under evaluation answers each turn so often, and plays the action of most answers. In a
    round robin all policies do."""
    best_of: PositiveInt = 1
    """It answers each turn so often, and plays the answer that is most probable per token. One of this and
    ``votes`` is 1."""
    round_robin: bool = False
    """The opponents play each other instead, each pair so many games: every seed in both seat orders. For a
    run that trains nothing; see ``unstable-stream tournament``."""
    seatings: tuple[tuple[str, ...], ...] = ()
    """With ``round_robin``: the players of each seat, names of ``opponents``; every seed is played in each of
    these seatings, and nobody else plays. Empty: all pairs. ``unstable-stream play`` records it."""
    branch: BranchConfig | None = None
    """With ``round_robin``: all games begin from this position instead. ``None``: from the beginning."""
    exploitability: ExploitabilityConfig = ExploitabilityConfig()
